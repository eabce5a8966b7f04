"""The token log: one JSON line per sequence of a finished request, ids in and out with their times.

Lines are written before the rows that point to them are committed. After a crash `recover` cuts off a torn
last line and remembers the lines past the last commit, so that no line is written twice. A closed file is
compressed and deleted (`telemetry.token_archive`) only when all its lines are committed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from telemetry.events import ReplicaInfo
from telemetry.facts import RequestFacts, SequenceFacts
from telemetry.replicas import Replicas
from telemetry.rows import LogRef
from telemetry.token_archive import Retention, TokenArchive, sync_folder, write_whole
from telemetry.token_files import all_names, begun_ts, name_at, plain_names

_REPLAY_S = 1800.0
"""After a restart: by then every request of which there are records has been read again and closed."""

_render = structlog.processors.JSONRenderer(serializer=lambda event, **_: msgspec.json.encode(event).decode())

Texts = Callable[[ReplicaInfo | None, Sequence[int]], str]
"""Decodes token ids with a replica's tokenizer."""


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """When a file is closed and a new one begun, and when data is brought to the disk (see ``--token-log-fsync``)."""

    max_bytes: int = 64 << 20
    max_age_s: float = 86_400.0  # 0: no limit
    fsync: Literal["off", "rotate", "always"] = "off"


class TokenLog:
    """Appends to the newest file of a folder; a new one begins when it is full or too old."""

    def __init__(
        self,
        folder: Path,
        rotation: Rotation | None = None,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rotation = rotation or Rotation()
        self._clock = clock
        self._archive = TokenArchive(folder, retention or Retention(), self._rotation.fsync != "off")
        self._known: dict[tuple[str, int], LogRef] = {}  # lines that were written but not committed
        self._replayed_at = float("inf")
        self._committed: LogRef = ("", 0)
        self._name = ""  # of the current file, or of the last one where none is open
        self._fd = -1
        self._size = 0
        self._has_closed_one = True  # one that nobody has looked after

    @property
    def position(self) -> LogRef:
        """Up to where all lines are covered: to be committed together with the rows, and given to `recover`."""
        end = (self._name, self._size)
        return end if self._clock() >= self._replayed_at else min(self._known.values(), default=end)

    def recover(self, committed: LogRef) -> None:
        """Go on where an earlier process was; `committed` is its last committed position, ("", 0) if unknown."""
        self._archive.recover()
        self._committed = committed
        self._replayed_at = self._clock() + _REPLAY_S
        plain = plain_names(self._folder)
        for name in plain if committed[0] else plain[-1:]:
            if name >= committed[0]:
                self._learn(name, committed[1] if name == committed[0] else 0)
        if plain and plain[-1] == all_names(self._folder)[-1]:
            self._open(plain[-1])
        else:
            self._name, self._size = committed

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
                known = self._known.get((request.request_id, sequence.index))
                found[sequence.index] = known or (self._name, at)
                if known is None:
                    new.append(line)
                    at += len(line)
        self._append(b"".join(new))
        for request_id, own in refs.items():
            for index in own:
                self._known.pop((request_id, index), None)
        return refs

    def committed(self, position: LogRef) -> None:
        """What was written up to `position` is in the store."""
        self._committed = position

    def work(self) -> None:
        """A few milliseconds of compressing closed files; to be called often. Raises OSError."""
        if self._has_closed_one:
            self.trim()
        self._has_closed_one = self._archive.work()  # then the next is to be chosen

    def trim(self) -> None:
        """Close a file that is too old, delete old ones, choose one to compress; to be called now and then.

        Raises OSError.
        """
        self._has_closed_one = False
        if self._fd >= 0 and self._is_too_old():
            self._end_file()
        self._archive.trim(self._closed(), self._clock())

    def close(self) -> None:
        """Close the file."""
        self._archive.close()
        self._close()

    # --- files --------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        if self._fd >= 0 and (self._size >= self._rotation.max_bytes or self._is_too_old()):
            self._end_file()
        if self._fd < 0:
            self._open(self._new_name())
            if self._rotation.fsync != "off":
                sync_folder(self._folder)

    def _is_too_old(self) -> bool:
        """Whether a file with lines has been open for long enough."""
        begun, max_age_s = begun_ts(self._name), self._rotation.max_age_s
        return bool(max_age_s and self._size and begun is not None and self._clock() - begun >= max_age_s)

    def _end_file(self) -> None:
        if self._rotation.fsync != "off":
            os.fsync(self._fd)
        self._close()
        self._has_closed_one = True

    def _closed(self) -> list[str]:
        """The files that nothing will be written to and that recovery will not ask for."""
        done = self._fd < 0 and self._committed == (self._name, self._size)
        last = self._committed[0]
        return [name for name in all_names(self._folder) if name < last or (done and name == last)]

    def _new_name(self) -> str:
        """A name later than all others; a second that is taken already gets the next number."""
        newest = max([*all_names(self._folder), self._name, self._committed[0]])
        now = self._clock()
        while (name := name_at(now)) <= newest:
            now += 1
        return name

    def _open(self, name: str) -> None:
        self._fd = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        self._size = os.fstat(self._fd).st_size

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, data: bytes) -> None:
        if not data:
            return
        try:
            write_whole(self._fd, data)
            if self._rotation.fsync == "always":
                os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _learn(self, name: str, start: int) -> None:
        """Remember the whole lines from `start` on, and cut off a torn last one."""
        with (self._folder / name).open("r+b") as f:
            f.seek(start)
            offset = start
            for line in f:
                if not line.endswith(b"\n"):
                    f.truncate(offset)
                    break
                if key := _line_key(line):
                    self._known[key] = (name, offset)
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
