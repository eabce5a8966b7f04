"""Engine steps in the Trace Event Format of Chrome, which Perfetto (ui.perfetto.dev) opens.

Format: "Trace Event Format" of the Chromium project; times are microseconds, here since the first step's plan.

::

    process "r0 #1"      one incarnation of a replica
      thread scheduler   ├ plan ┤                                ├ publish ┤
      thread runner                ├──────── decode ─────────┤
                                   ├──── forward ────┤ sample ┤
      counters           sequences (running, waiting), KV blocks (free, active, cached)

An arrow leads from a step's plan through its execution to its publication. Events come out in order of time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from telemetry.queries import Row

MAX_REQUESTS_NAMED = 256
"""A slice names at most so many of its requests."""

_SCHEDULER, _RUNNER = 1, 2
_THREADS = {_SCHEDULER: "scheduler", _RUNNER: "runner"}
Event = dict[str, Any]


class _Piece(msgspec.Struct, order=True):
    """An event on its way out; pieces of equal start leave in the order in which they were made."""

    start_ns: int
    number: int
    event: Event
    end_ns: int | None = None  # of a slice
    arrow: Event | None = None  # leaves with the slice
    inner: list[tuple[str, tuple[int, int]]] = msgspec.field(default_factory=list)  # slices within this one


class StepTimeline:
    """Turns rows of steps (in order of ``planned_ts``, plans decoded) into events, one pass, bounded memory."""

    def __init__(self) -> None:
        self._origin_ns: int | None = None
        self._pids: dict[str, int] = {}
        self._waiting: list[_Piece] = []
        self._ends: dict[tuple[int, int], int] = {}  # by (pid, thread): where its last slice ended
        self._made = 0

    def events(self, rows: Iterable[Row]) -> Iterator[Event]:
        """All events, in order of time."""
        for row in rows:
            planned_ns = round(row["planned_ts"] * 1e9)
            self._origin_ns = planned_ns if self._origin_ns is None else self._origin_ns
            yield from self._emit(planned_ns - self._origin_ns)
            yield from self._introduce(row["incarnation_id"])
            self._add_step(row, planned_ns - self._origin_ns)
        yield from self._emit(None)

    def _introduce(self, incarnation_id: str) -> Iterator[Event]:
        if incarnation_id in self._pids:
            return
        pid = self._pids[incarnation_id] = len(self._pids) + 1
        replica, _, number = incarnation_id.rpartition("/")[2].rpartition(".")
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"{replica} #{number}"}}
        for tid, name in _THREADS.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}

    def _add_step(self, row: Row, planned_ns: int) -> None:
        pid = self._pids[row["incarnation_id"]]
        times = _Times(row, planned_ns)
        arguments = _arguments(row)
        step = {"step": row["step_id"]}
        self._counter(pid, planned_ns, "sequences", {"running": row["num_seqs"], "waiting": row["waiting"]})
        blocks = {state: row[f"blocks_{state}"] for state in ("free", "active", "cached")}
        self._counter(pid, planned_ns, "KV blocks", blocks)
        parts = [("forward", times.forward), ("sample", times.sample)]
        self._slice(pid, _SCHEDULER, "plan", times.plan, step, "s")
        self._slice(pid, _RUNNER, row["kind"], times.run, arguments, "t", parts)
        self._slice(pid, _SCHEDULER, "publish", times.publish, step, "f")

    def _slice(
        self,
        pid: int,
        tid: int,
        name: str,
        interval_ns: tuple[int, int],
        arguments: Mapping[str, Any],
        flow: str,
        inner: Sequence[tuple[str, tuple[int, int]]] = (),
    ) -> None:
        """A slice with its part of the step's arrow: "s" where it starts, "t" on its way, "f" where it ends."""
        place = {"cat": "step", "pid": pid, "tid": tid}
        arrow: Event = {"ph": flow, "name": "step", "id": f"{pid}.{arguments['step']}", **place}
        if flow == "f":
            arrow["bp"] = "e"
        self._push(interval_ns, {"ph": "X", "name": name, **place, "args": arguments}, arrow, inner)

    def _counter(self, pid: int, at_ns: int, name: str, values: Mapping[str, int]) -> None:
        self._push((at_ns, None), {"ph": "C", "name": name, "pid": pid, "tid": 0, "args": values})

    def _push(
        self,
        interval_ns: tuple[int, int | None],
        event: Event,
        arrow: Event | None = None,
        inner: Sequence[tuple[str, tuple[int, int]]] = (),
    ) -> None:
        self._made += 1
        start_ns, end_ns = interval_ns
        heapq.heappush(self._waiting, _Piece(start_ns, self._made, event, end_ns, arrow, list(inner)))

    def _emit(self, before_ns: int | None) -> Iterator[Event]:
        """What lies before `before_ns`, where later rows begin; all for None."""
        while self._waiting and (before_ns is None or self._waiting[0].start_ns < before_ns):
            piece = heapq.heappop(self._waiting)
            if piece.end_ns is None:
                yield {**piece.event, "ts": piece.start_ns / 1e3}
            elif not self._postponed(piece):
                yield from self._finished(piece, piece.end_ns)

    def _postponed(self, piece: _Piece) -> bool:
        """Slices of one thread do not overlap: what begins a rounding error too early begins later instead."""
        track = (piece.event["pid"], piece.event["tid"])
        free_ns = self._ends.get(track, piece.start_ns)
        if piece.start_ns < free_ns and piece.arrow is not None:
            piece.start_ns = free_ns
            heapq.heappush(self._waiting, piece)
            return True
        return False

    def _finished(self, piece: _Piece, end_ns: int) -> Iterator[Event]:
        start_ns, end_ns = piece.start_ns, max(piece.start_ns, end_ns)
        yield {**piece.event, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
        if piece.arrow is not None:
            self._ends[piece.event["pid"], piece.event["tid"]] = end_ns
            yield {**piece.arrow, "ts": start_ns / 1e3}
        for name, interval_ns in piece.inner:
            begin_ns, stop_ns = (min(max(at_ns, start_ns), end_ns) for at_ns in interval_ns)
            step = {"step": piece.event["args"]["step"]}
            self._push((begin_ns, stop_ns), {**piece.event, "name": name, "args": step})


class _Times:
    """When the parts of a step were, in nanoseconds on the time line."""

    def __init__(self, row: Row, planned_ns: int) -> None:
        execute_ns, sample_ns, publish_ns = (_ns(row[f"{part}_s"]) for part in ("execute", "sample", "publish"))
        published = planned_ns + _ns(row["duration_s"])
        self.publish = (max(planned_ns, published - publish_ns), published)
        self.plan = (planned_ns, planned_ns + _ns(row["schedule_s"]))
        begin = max(planned_ns, self.publish[0] - sample_ns - execute_ns)  # the latest that it can have been
        if row["execute_at"] is not None:
            begin = planned_ns + _ns(row["execute_at"])
        self.forward = (begin, begin + execute_ns)
        self.sample = (begin + execute_ns, begin + execute_ns + sample_ns)
        self.run = (begin, self.sample[1])


def chrome_trace(rows: Iterable[Row]) -> Iterator[bytes]:
    """A whole trace file, in pieces. `rows`: see `StepTimeline`."""
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    first_ts: list[float] = []
    separator = b"\n"
    for event in StepTimeline().events(_noting(rows, first_ts)):
        yield separator + msgspec.json.encode(event)
        separator = b",\n"
    origin = datetime.fromtimestamp(first_ts[0], UTC).isoformat() if first_ts else None
    yield b'\n],"otherData":' + msgspec.json.encode({"writer": "vitrine", "time_origin": origin}) + b"}\n"


def _noting(rows: Iterable[Row], first_ts: list[float]) -> Iterator[Row]:
    for row in rows:
        if not first_ts:
            first_ts.append(row["planned_ts"])
        yield row


def _arguments(row: Row) -> dict[str, Any]:
    requests = list(dict.fromkeys(request_id for request_id, *_ in row["plan"] if request_id))
    return {
        "step": row["step_id"],
        "rows": row["num_seqs"],
        "tokens": row["num_tokens"],
        "blocks_free": row["blocks_free"],
        "blocks_active": row["blocks_active"],
        "blocks_cached": row["blocks_cached"],
        "waiting": row["waiting"],
        "head": row["head_request_id"],
        "head_reason": row["head_reason"],
        "idle_us": round(row["idle_s"] * 1e6, 1),
        "requests": requests[:MAX_REQUESTS_NAMED],
        "requests_not_named": max(0, len(requests) - MAX_REQUESTS_NAMED),
    }


def _ns(duration_s: float) -> int:
    return round(duration_s * 1e9)
