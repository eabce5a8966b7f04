"""Deletes what is too old, or too much, from the store: a bounded piece of work each time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, delete, select

from telemetry import schema
from telemetry.database import oldest_finished, used_bytes

STEPS_KEPT = 5000
SAMPLES_KEPT_S = 6 * 3600
REQUESTS_AT_ONCE = 2000
"""Deleted in one transaction at most: tens of milliseconds."""

DAY_S = 86_400


class Limits(msgspec.Struct, frozen=True):
    """How much is kept; 0 means no limit. Running requests and the audit trail are always kept."""

    max_age_s: float = 0.0
    max_bytes: int = 0


def trim_rings(connection: Connection, now_ts: float, journals: Iterable[str]) -> None:
    """Delete what has left the rings of steps and samples, and the cursors of all but these journals."""
    steps, samples, cursors = schema.steps.c, schema.samples.c, schema.cursors.c
    newest_out = select(steps.planned_ts).order_by(steps.planned_ts.desc()).offset(STEPS_KEPT).limit(1)
    connection.execute(delete(schema.steps).where(steps.planned_ts <= newest_out.scalar_subquery()))
    connection.execute(delete(schema.samples).where(samples.ts < now_ts - SAMPLES_KEPT_S))
    connection.execute(delete(schema.cursors).where(cursors.journal.not_in(list(journals))))


def trim_requests(connection: Connection, now_ts: float, limits: Limits) -> int:
    """Delete the oldest requests that are too old, or all are too large; returns how many. More may remain."""
    before_ts = now_ts - limits.max_age_s if limits.max_age_s else None
    gone = oldest_finished(connection, before_ts, REQUESTS_AT_ONCE) if before_ts is not None else []
    if not gone and limits.max_bytes and used_bytes(connection) > limits.max_bytes:
        gone = oldest_finished(connection, None, REQUESTS_AT_ONCE)
    if gone:
        connection.execute(delete(schema.sequences).where(schema.sequences.c.request_id.in_(gone)))
        connection.execute(delete(schema.requests).where(schema.requests.c.request_id.in_(gone)))
    if before_ts is not None:
        _trim_replicas(connection, before_ts)
    return len(gone)


def _trim_replicas(connection: Connection, before_ts: float) -> None:
    events, incarnations = schema.replica_events.c, schema.incarnations.c
    connection.execute(delete(schema.replica_events).where(events.ts < before_ts))
    connection.execute(delete(schema.incarnations).where(incarnations.ended_ts < before_ts))
