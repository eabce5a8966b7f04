"""Reads one run: its journals in, facts out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from telemetry.assembly import Assembly
from telemetry.events import (
    AnyRecord,
    ProcessDied,
    ReplicaInfo,
    ReplicaState,
    ReplicaStateChanged,
    RequestReceived,
    StepRecord,
)
from telemetry.facts import RequestFacts, StepFacts
from telemetry.replicas import Replicas, Row, event_row
from telemetry.span_resources import Resources
from telemetry.tail import Tail

READ_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What a record that makes no sense (damaged, or a stage's mistake) may raise on its way."""


class Pass(msgspec.Struct):
    """What one pass over all journals gave. Only news, except for ``finished`` (see `Tail`)."""

    finished: list[RequestFacts] = msgspec.field(default_factory=list)
    steps: list[StepFacts] = msgspec.field(default_factory=list)
    deaths: list[ProcessDied] = msgspec.field(default_factory=list)
    replica_events: list[Row] = msgspec.field(default_factory=list)
    incarnations: dict[str, Row] = msgspec.field(default_factory=dict)
    records: int = 0
    dropped: int = 0
    lag_ns: int = 0


class RunReader:
    """The journals of a run, and what has been put together from them."""

    def __init__(
        self,
        run_id: str,
        journals: Path,
        next_seqs: Mapping[str, int],
        on_error: Callable[[str], None],
        past: bool = False,
    ) -> None:
        """`on_error` is told about records that could not be interpreted. `past`: nobody writes to it any more.

        The clock of a past run may be that of before the host's last start: its records tell the wall time.
        """
        self.replicas = Replicas(run_id)
        self.states: dict[str, ReplicaState] = {}  # by replica, the latest incarnation's
        self._infos: dict[str, ReplicaInfo] = {}
        self.assembly = Assembly(run_id)
        self.tail = Tail(journals, next_seqs)
        self.resources = Resources()
        self.wall_offset_ns = time.time_ns() - time.monotonic_ns()
        self._on_error = on_error
        self.past = past
        self._last_ns = 0  # when the latest record was made
        self._shed = 0

    def read(self) -> Pass:
        """One pass over all journals; `finished` stays empty, see `advance`."""
        result = Pass()
        for owner, record, fresh in self.tail.poll():
            try:
                self.assembly.feed(owner, record)
                self._interpret(record, fresh, result)
            except READ_ERRORS as e:
                self._on_error(f"{type(record).__name__}: {e!r}")
                result.dropped += 1
            self._note_time(made_ns(record), fresh, result)
        for owner in self.tail.owners():
            self.resources.know(owner)
        return result

    def advance(self, result: Pass) -> Pass:
        """Close what is complete; to be called once per pass, when its steps have been taken care of.

        In a past run that is for `finish` to do.
        """
        if not self.past:
            result.finished = self.assembly.advance(time.monotonic_ns())
        result.dropped += self.tail.take_dropped() + self.assembly.shed - self._shed
        self._shed = self.assembly.shed
        return result

    def latest_info(self, replica: str) -> ReplicaInfo | None:
        """What the latest incarnation of a replica that was ready runs."""
        return self._infos.get(replica)

    def finish(self, error_type: str, message: str) -> Pass:
        """The run is over: close what is open; requests without a terminal end with this error."""
        result = Pass()
        result.finished = self.assembly.close_all(self._last_ns, error_type, message)
        result.incarnations = self.replicas.end_all(self._wall_ts(self._last_ns), message)
        return result

    def close(self) -> None:
        """Close the journals."""
        self.tail.close()

    def _interpret(self, record: AnyRecord, fresh: bool, result: Pass) -> None:
        match record:
            case RequestReceived() if self.past:
                self.wall_offset_ns = record.wall_ns - record.at_ns
            case StepRecord():
                steps = self.assembly.take_steps()
                result.steps.extend(steps if fresh else [])
            case ReplicaStateChanged():
                self.states[record.replica] = record.state
                if record.info is not None:
                    self._infos[record.replica] = record.info
                row = self.replicas.change(record, self._wall_ts(record.at_ns))
                if fresh:
                    result.incarnations[row["id"]] = row
                    result.replica_events.append(event_row(record, self._wall_ts(record.at_ns)))
            case ProcessDied() if fresh:
                result.deaths.append(record)
                result.replica_events.append(event_row(record, self._wall_ts(record.at_ns)))

    def _note_time(self, made_ns: int, fresh: bool, result: Pass) -> None:
        self._last_ns = max(self._last_ns, made_ns)
        if fresh:
            result.records += 1
            result.lag_ns = max(result.lag_ns, time.monotonic_ns() - made_ns if made_ns else 0)

    def _wall_ts(self, at_ns: int) -> float:
        return (at_ns + self.wall_offset_ns) / 1e9


def made_ns(record: AnyRecord) -> int:
    """When a record was made, or nearly so."""
    if isinstance(record, StepRecord):
        return record.published_ns
    return int(getattr(record, "at_ns", 0) or getattr(record, "end_ns", 0))
