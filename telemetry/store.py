"""Writes the store: one transaction per tick. The telemetry process is its only writer but for the audit trail."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Executable,
    Table,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DatabaseError, OperationalError

from telemetry import schema

Row = dict[str, Any]

STEPS_KEPT = 5000
SAMPLES_KEPT_S = 6 * 3600
_PENDING_ROWS = 20_000
_LOCK_WAIT_MS = 500
_OPEN_STATES = ("tokenizing", "waiting", "running")


class StoreError(Exception):
    """The store cannot be used; the message is one clear line for the operator."""


class Batch(msgspec.Struct):
    """What one transaction writes. Rows wait here while the store cannot be written."""

    running: dict[str, Row] = msgspec.field(default_factory=dict)  # by request id
    finished: dict[str, Row] = msgspec.field(default_factory=dict)
    sequences: list[Row] = msgspec.field(default_factory=list)
    steps: list[Row] = msgspec.field(default_factory=list)
    samples: list[Row] = msgspec.field(default_factory=list)
    replica_events: list[Row] = msgspec.field(default_factory=list)
    incarnations: dict[str, Row] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        lists = (self.sequences, self.steps, self.samples, self.replica_events)
        maps = (self.running, self.finished, self.incarnations)
        return sum(map(len, lists)) + sum(map(len, maps))

    def shed(self) -> int:
        """Give up the oldest rows while there are too many; returns how many."""
        before = len(self)
        self.running.clear()
        for rows in (self.steps, self.samples, self.sequences):
            del rows[:-_PENDING_ROWS]
        for request_id in list(self.finished)[:-_PENDING_ROWS]:
            del self.finished[request_id]
        return before - len(self)


class Store:
    """The store of one data folder."""

    def __init__(self, data_path: Path) -> None:
        """Open or create it; a damaged file is put aside. Raises StoreError."""
        self.path = data_path / schema.STORE_FILE
        self.set_aside: Path | None = None  # where a damaged file went
        self._engine = create_engine(f"sqlite:///{self.path}")
        event.listen(self._engine, "connect", _set_up)
        try:
            self._create()
        except OperationalError as e:
            raise StoreError(f"cannot open the store {self.path}: {e.orig}") from e
        except DatabaseError:
            self._put_aside()
            self._create()

    def _create(self) -> None:
        with self._engine.begin() as connection:
            schema.metadata.create_all(connection)
            version = connection.scalar(select(schema.schema_version.c.version))
            if version is None:
                connection.execute(insert(schema.schema_version).values(version=schema.SCHEMA_VERSION))
            elif _migrate(connection, version) != schema.SCHEMA_VERSION:
                raise StoreError(
                    f"the store {self.path} has schema {version}, this version of vitrine needs "
                    f"{schema.SCHEMA_VERSION}: move the file away, or choose another --data-dir"
                )

    def _put_aside(self) -> None:
        self._engine.dispose()
        self.set_aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        self.path.rename(self.set_aside)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    # --- what was there before -----------------------------------------------------------------------

    def next_seqs(self) -> dict[str, int]:
        """By journal: the number of its first record that has not been taken account of."""
        table = schema.cursors
        with self._engine.connect() as connection:
            rows = connection.execute(select(table.c.journal, table.c.next_seq)).all()
        return {row.journal: row.next_seq for row in rows}

    def state(self, key: str) -> bytes | None:
        """A value that was saved with `commit`."""
        table = schema.collector_state
        with self._engine.connect() as connection:
            return connection.scalar(select(table.c.value).where(table.c.key == key))

    def finished_ids(self, request_ids: Sequence[str]) -> set[str]:
        """Which of these requests are in the store as finished."""
        if not request_ids:
            return set()
        table = schema.requests
        query = select(table.c.request_id).where(table.c.request_id.in_(request_ids), table.c.state == "finished")
        with self._engine.connect() as connection:
            return set(connection.scalars(query))

    # --- writing -------------------------------------------------------------------------------------

    def commit(self, batch: Batch, journals: dict[str, tuple[int, int]], state: dict[str, bytes]) -> None:
        """Write all of it or nothing. `journals` maps to (cursor, next_seq). Raises SQLAlchemyError."""
        with self._engine.begin() as connection:
            _write_requests(connection, batch)
            _upsert(connection, schema.sequences, batch.sequences)
            _upsert(connection, schema.steps, batch.steps)
            _upsert(connection, schema.samples, batch.samples)
            _upsert(connection, schema.incarnations, batch.incarnations.values())
            if batch.replica_events:
                connection.execute(insert(schema.replica_events), batch.replica_events)
            positions = [{"journal": j, "cursor": c, "next_seq": n} for j, (c, n) in journals.items()]
            _upsert(connection, schema.cursors, positions)
            _upsert(connection, schema.collector_state, [{"key": k, "value": v} for k, v in state.items()])

    def trim(self, now_ts: float, journals: Iterable[str]) -> None:
        """Delete what has left the rings, and the cursors of all but these journals. Raises SQLAlchemyError."""
        steps, samples, cursors = schema.steps.c, schema.samples.c, schema.cursors.c
        newest_out = select(steps.planned_ts).order_by(steps.planned_ts.desc()).offset(STEPS_KEPT).limit(1)
        with self._engine.begin() as connection:
            connection.execute(delete(schema.steps).where(steps.planned_ts <= newest_out.scalar_subquery()))
            connection.execute(delete(schema.samples).where(samples.ts < now_ts - SAMPLES_KEPT_S))
            connection.execute(delete(schema.cursors).where(cursors.journal.not_in(list(journals))))

    def close_orphans(self, open_ids: set[str]) -> int:
        """End the requests that are running in the store but of which no record is left; returns how many."""
        table = schema.requests
        with self._engine.begin() as connection:
            running = connection.scalars(select(table.c.request_id).where(table.c.state.in_(_OPEN_STATES)))
            lost = [{"lost_id": request_id} for request_id in running if request_id not in open_ids]
            if lost:
                ended = {
                    "state": "finished",
                    "finish_reason": "error",
                    "error_type": "records_lost",
                    "error_message": "how this request ended was not recorded: the system was killed",
                }
                connection.execute(update(table).where(table.c.request_id == bindparam("lost_id")).values(ended), lost)
        return len(lost)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _set_up(connection: Any, _record: Any) -> None:
    connection.execute(f"PRAGMA busy_timeout = {_LOCK_WAIT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _migrate(connection: Connection, version: int) -> int:
    """Bring a store of an earlier schema up to date; returns the schema that it has now."""
    while version in schema.MIGRATIONS:
        for statement in schema.MIGRATIONS[version]:
            connection.execute(text(statement))
        version += 1
        connection.execute(update(schema.schema_version).values(version=version))
    return version


def _write_requests(connection: Connection, batch: Batch) -> None:
    """A finished request stays finished: running rows do not replace it, whatever is replayed."""
    table = schema.requests
    running = [row for request_id, row in batch.running.items() if request_id not in batch.finished]
    _upsert(connection, table, running, keep_finished=True)
    _upsert(connection, table, batch.finished.values())


def _upsert(connection: Connection, table: Table, rows: Iterable[Row], keep_finished: bool = False) -> None:
    """Insert rows; those that exist are replaced (with `keep_finished`, unless they say finished)."""
    values = list(rows)
    if values:
        connection.execute(_upsert_statement(table, keep_finished), values)


@functools.cache
def _upsert_statement(table: Table, keep_finished: bool) -> Executable:
    """Built once per table: building costs more than executing."""
    statement = upsert(table)
    changed = {c.name: statement.excluded[c.name] for c in table.c if not c.primary_key}
    where = table.c.state != "finished" if keep_finished else None
    return statement.on_conflict_do_update(list(table.primary_key), set_=changed, where=where)
