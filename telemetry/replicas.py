"""The lives of replicas, from the supervisor's records: rows of ``incarnations`` and ``replica_events``."""

from __future__ import annotations

from typing import Any

from telemetry.events import ProcessDied, ReplicaInfo, ReplicaState, ReplicaStateChanged
from telemetry.facts import Scope, incarnation_id

Row = dict[str, Any]

_INFO = (
    "version",
    "revision",
    "model",
    "model_path",
    "model_sha256",
    "tokenizer_sha256",
    "dtype",
    "device",
    "host",
    "flags",
    "max_model_len",
    "block_size",
    "num_blocks",
)
_OVER = (ReplicaState.UNHEALTHY, ReplicaState.STOPPED)


class Replicas:
    """Every incarnation of a run, as far as its records go."""

    def __init__(self, run_id: str) -> None:
        self.infos: dict[str, ReplicaInfo] = {}  # by incarnation id
        self._run_id = run_id
        self._rows: dict[str, Row] = {}

    def change(self, record: ReplicaStateChanged, ts: float) -> Row:
        """Take a change of state, made at wall-clock time `ts`; returns the incarnation's row as it is now."""
        key = incarnation_id(self._run_id, Scope(record.replica, record.incarnation))
        row = self._rows.setdefault(key, _new_row(key, record, ts))
        row.update(state=str(record.state), reason=record.reason)
        if record.state is ReplicaState.READY:
            row["ready_ts"] = row["ready_ts"] or ts
        if record.state in _OVER:
            row["ended_ts"] = row["ended_ts"] or ts
        if record.info is not None:
            self.infos[key] = record.info
            row.update({name: getattr(record.info, name) for name in _INFO})
        return dict(row)

    def end_all(self, ts: float, reason: str) -> dict[str, Row]:
        """The run is over; returns the rows of the incarnations that end with it."""
        ended = {key: row for key, row in self._rows.items() if row["ended_ts"] is None}
        for row in ended.values():
            row.update(state=str(ReplicaState.STOPPED), reason=reason, ended_ts=ts)
        return ended

    def info(self, incarnation: str | None) -> ReplicaInfo | None:
        """What an incarnation runs, once it is ready; of an unknown one, what any other of the run does."""
        return self.infos.get(incarnation or "") or next(reversed(self.infos.values()), None)


def _new_row(key: str, record: ReplicaStateChanged, ts: float) -> Row:
    row: Row = {"id": key, "replica": record.replica, "incarnation": record.incarnation, "started_ts": ts}
    return {**row, "ready_ts": None, "ended_ts": None, **dict.fromkeys(_INFO)}


def event_row(record: ReplicaStateChanged | ProcessDied, ts: float) -> Row:
    """A row of ``replica_events``."""
    row: Row = {"ts": ts, "replica": record.replica, "incarnation": record.incarnation}
    if isinstance(record, ProcessDied):
        return {**row, "event": "died", "stage": str(record.stage), "reason": record.exit_status}
    return {**row, "event": str(record.state), "stage": "", "reason": record.reason}
