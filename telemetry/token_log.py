"""The token log: one JSON line per sequence of a finished request, ids in and out with their times.

Lines are written before the rows that point to them are committed. After a crash `recover` cuts off a torn
last line and remembers the lines past the last commit, so that no line is written twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from telemetry.events import ReplicaInfo
from telemetry.facts import RequestFacts, SequenceFacts
from telemetry.replicas import Replicas
from telemetry.rows import LogRef

MAX_FILE_BYTES = 64 << 20
_SUFFIX = ".jsonl"
_render = structlog.processors.JSONRenderer(serializer=lambda event, **_: msgspec.json.encode(event).decode())

Texts = Callable[[ReplicaInfo | None, Sequence[int]], str]
"""Decodes token ids with a replica's tokenizer."""


class TokenLog:
    """Appends to the newest file of a folder; a new one begins when it is full."""

    def __init__(self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._known: dict[tuple[str, int], LogRef] = {}  # lines that were written but not committed
        self._path: Path | None = None
        self._fd = -1
        self._size = 0

    @property
    def position(self) -> LogRef:
        """Where the next line goes: to be committed together with the rows, and given to `recover`."""
        return (self._path.name if self._path else "", self._size)

    def recover(self, committed: LogRef) -> None:
        """Go on where an earlier process was; `committed` is its last committed position, ("", 0) if unknown."""
        files = sorted(self._folder.glob("*" + _SUFFIX))
        for path in files if committed[0] else files[-1:]:
            if path.name >= committed[0]:
                self._learn(path, committed[1] if path.name == committed[0] else 0)
        if files:
            self._open(files[-1])

    def write(self, facts: Sequence[tuple[RequestFacts, list[bytes]]]) -> dict[str, dict[int, LogRef]]:
        """Append the lines of finished requests (see `lines`); returns where each sequence's line is.

        Raises OSError, and then nothing has been written.
        """
        refs: dict[str, dict[int, LogRef]] = {}
        new: list[bytes] = []
        self._rotate()
        at = self._size
        for request, lines in facts:
            found = refs[request.request_id] = {}
            for sequence, line in zip(request.sequences, lines, strict=True):
                known = self._known.pop((request.request_id, sequence.index), None)
                found[sequence.index] = known or self._ref(at)
                if known is None:
                    new.append(line)
                    at += len(line)
        self._append(b"".join(new))
        return refs

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- how ----------------------------------------------------------------------------------------

    def _ref(self, offset: int) -> LogRef:
        assert self._path is not None
        return (self._path.name, offset)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written to {self._path}")
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _rotate(self) -> None:
        if self._fd >= 0 and self._size < self._max_file_bytes:
            return
        self.close()
        self._open(self._new_path())

    def _new_path(self) -> Path:
        """A name later than all others; a second that is taken already gets the next number."""
        newest = max((p.name for p in self._folder.glob("*" + _SUFFIX)), default="")
        now = time.time()
        while True:
            path = self._folder / f"tokens-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}{_SUFFIX}"
            if path.name > newest:
                return path
            now += 1

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._path = path
        self._size = os.fstat(self._fd).st_size

    def _learn(self, path: Path, start: int) -> None:
        """Remember the whole lines from `start` on, and cut off a torn last one."""
        with path.open("r+b") as f:
            f.seek(start)
            offset = start
            for line in f:
                if not line.endswith(b"\n"):
                    f.truncate(offset)
                    break
                if key := _line_key(line):
                    self._known[key] = (path.name, offset)
                offset += len(line)


def _line_key(line: bytes) -> tuple[str, int] | None:
    try:
        event = json.loads(line)
        return event["request_id"], event["index"]
    except (ValueError, KeyError, TypeError):
        return None


def lines(facts: RequestFacts, replicas: Replicas, texts: Texts | None = None) -> list[bytes]:
    """A line per sequence; with `texts`, prompt and answer in words too."""
    return [_line(facts, sequence, replicas, texts) for sequence in facts.sequences]


def _line(facts: RequestFacts, sequence: SequenceFacts, replicas: Replicas, texts: Texts | None) -> bytes:
    received, terminal, info = facts.received, facts.terminal, replicas.info(facts.incarnation_id)
    assert terminal is not None
    prompts = facts.tokenized.prompt_token_ids if facts.tokenized else []
    prompt = prompts[sequence.prompt_index] if sequence.prompt_index < len(prompts) else []
    event: dict[str, Any] = {
        "ts": datetime.fromtimestamp(facts.wall_ns(terminal.at_ns) / 1e9, UTC).isoformat(),
        "request_id": facts.request_id,
        "index": sequence.index,
        "prompt_index": sequence.prompt_index,
        "trace_id": received.trace_id,
        "replica": facts.replica,
        "incarnation_id": facts.incarnation_id,
        "endpoint": received.endpoint,
        "model": info.model if info else received.model,
        "model_sha256": info.model_sha256 if info else "",
        "tokenizer_sha256": info.tokenizer_sha256 if info else "",
        "params": received.params,
        "seed": sequence.seed,
        "prompt_token_ids": prompt,
        "cached_tokens": sequence.cached_tokens,
        "output_token_ids": sequence.token_ids,
        "token_times_ms": [round((at - received.at_ns) / 1e6, 3) for at in sequence.token_times_ns],
        "step_ids": sequence.step_ids,
        "finish_reason": sequence.finish_reason,
        "stop_string": sequence.stop_string or None,
        "error": _error(facts),
        "timings": _timings(facts, sequence),
    }
    if texts is not None:
        event |= {"prompt_text": texts(info, prompt), "output_text": texts(info, sequence.token_ids)}
    rendered = _render(None, "", event)
    return (rendered if isinstance(rendered, bytes) else rendered.encode()) + b"\n"


def _error(facts: RequestFacts) -> dict[str, str] | None:
    if not facts.error_type or facts.terminal is None:
        return None
    return {"type": facts.error_type, "message": facts.terminal.error_message}


def _timings(facts: RequestFacts, sequence: SequenceFacts) -> dict[str, float | None]:
    """Seconds: the request's own, and the sequence's."""
    request = {name: getattr(facts.times, name) for name in ("ttft_s", "e2e_s", "tokenize_s", "transport_s", "drain_s")}
    names = ("queue_s", "preempted_s", "prefill_s", "decode_s", "detokenize_s", "tpot_s")
    return request | {name: getattr(sequence.times, name) for name in names}
