"""Span ids: hashes of what a span stands for, so that whoever needs one can compute it.

The gateway answers with the id of a span that the telemetry process will make later, and a record that is
interpreted twice (after a crash) gives the same span again.
"""

from __future__ import annotations

from hashlib import blake2b

from telemetry.events import Stage

REQUEST = -1
"""In place of a sequence's index: the span belongs to the request as a whole."""


def span_id(request_id: str, sequence: int, stage: str, attempt: int) -> int:
    """A 64-bit id, never 0 (which W3C trace context forbids). `stage` may be finer than `Stage`."""
    digest = blake2b(f"{request_id}|{sequence}|{stage}|{attempt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def server_span_id(request_id: str) -> int:
    """The id of the request's SERVER span, the gateway's: the parent of all others."""
    return span_id(request_id, REQUEST, Stage.GATEWAY, 0)
