"""W3C Trace Context (https://www.w3.org/TR/trace-context-2/), read strictly.

What is malformed counts as absent: a bad ``traceparent`` gives a fresh trace, a bad ``tracestate`` is left out
and does not touch the ``traceparent`` (section 4.3).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

import msgspec

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MAX_MEMBERS = 32
_MAX_STATE_CHARS = 512
_NO_FLAGS = -1


class TraceContext(msgspec.Struct, frozen=True):
    """The trace a request belongs to. ``flags`` is -1 and ``parent_span_id`` "" without a caller's context."""

    trace_id: str
    parent_span_id: str = ""
    flags: int = _NO_FLAGS
    state: str = ""


def read_context(parents: Sequence[bytes], states: Sequence[bytes]) -> TraceContext:
    """From all ``traceparent`` and ``tracestate`` headers of a request."""
    match = _match_parent(parents)
    if match is None:
        return TraceContext(secrets.token_hex(16))
    _, trace_id, span_id, flags, _ = match.groups()
    return TraceContext(trace_id, span_id, int(flags, 16), _read_state(states))


def _match_parent(parents: Sequence[bytes]) -> re.Match[str] | None:
    if len(parents) != 1:
        return None
    match = _PARENT.fullmatch(parents[0].decode("latin-1").strip(" \t"))
    if match is None:
        return None
    version, trace_id, span_id, _, rest = match.groups()
    unknown = version == "ff" or (version == "00" and rest is not None)
    return None if unknown or not int(trace_id, 16) or not int(span_id, 16) else match


def _read_state(states: Sequence[bytes]) -> str:
    """The combined header, or "" when it breaks a rule or is longer than we pass on."""
    members = [m.strip(" \t") for m in b",".join(states).decode("latin-1").split(",")]
    members = [m for m in members if m]
    keys = {m.partition("=")[0] for m in members}
    combined = ",".join(members)
    if len(members) > _MAX_MEMBERS or len(keys) < len(members) or len(combined) > _MAX_STATE_CHARS:
        return ""
    return combined if all(_MEMBER.fullmatch(m) for m in members) else ""


def write_parent(trace_id: str, span_id: int, sampled: bool) -> str:
    """A ``traceparent`` value."""
    return f"00-{trace_id}-{span_id:016x}-{'01' if sampled else '00'}"
