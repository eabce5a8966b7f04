"""Writes the store: one transaction per tick. The telemetry process is its only writer but for the audit trail."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, insert, select, text, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from telemetry import schema
from telemetry.database import Database, DatabaseError, is_damaged, upsert
from telemetry.retention import Limits, trim_requests, trim_rings

Row = dict[str, Any]

KEEP_ALL = Limits()
_PENDING_ROWS = 20_000
_TAKEOVER_S = 5.0
_TAKEOVER_POLL_S = 0.2
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
    """The store of one installation."""

    def __init__(self, data_path: Path, url: str = "", limits: Limits = KEEP_ALL) -> None:
        """Open or create it; a damaged file is put aside. Raises StoreError."""
        self.set_aside: Path | None = None  # where a damaged file went
        self._limits = limits
        try:
            self._database = Database(data_path, url)
            self._engine = self._database.open_writer()
        except DatabaseError as e:
            raise StoreError(str(e)) from e
        try:
            self._create_in_time()
        except SQLAlchemyError as e:
            if not is_damaged(e, self._database):
                raise StoreError(f"cannot open the store {self._database.name}: {_reason(e)}") from e
            self._put_aside()
            self._create()

    def _create_in_time(self) -> None:
        """A PostgreSQL server needs a moment to notice that a writer which was killed is gone."""
        end = time.monotonic() + (0 if self._database.path else _TAKEOVER_S)
        while True:
            try:
                return self._create()
            except OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(_TAKEOVER_POLL_S)

    def _create(self) -> None:
        with self._engine.begin() as connection:
            schema.metadata.create_all(connection)
            version = connection.scalar(select(schema.schema_version.c.version))
            if version is None:
                connection.execute(insert(schema.schema_version).values(version=schema.SCHEMA_VERSION))
            elif _migrate(connection, version) != schema.SCHEMA_VERSION:
                raise StoreError(
                    f"the store {self._database.name} has schema {version}, this version of vitrine needs "
                    f"{schema.SCHEMA_VERSION}: give it another one, with --store-url or --data-dir"
                )

    def _put_aside(self) -> None:
        self._engine.dispose()
        path = self._database.path
        assert path is not None
        self.set_aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        path.rename(self.set_aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

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
            upsert(connection, schema.sequences, batch.sequences)
            upsert(connection, schema.steps, batch.steps)
            upsert(connection, schema.samples, batch.samples)
            upsert(connection, schema.incarnations, batch.incarnations.values())
            if batch.replica_events:
                connection.execute(insert(schema.replica_events), batch.replica_events)
            positions = [{"journal": j, "cursor": c, "next_seq": n} for j, (c, n) in journals.items()]
            upsert(connection, schema.cursors, positions)
            upsert(connection, schema.collector_state, [{"key": k, "value": v} for k, v in state.items()])

    def trim(self, now_ts: float, journals: Iterable[str]) -> int:
        """Delete what is not to be kept, a piece of it: returns how many requests. Raises SQLAlchemyError."""
        with self._engine.begin() as connection:
            trim_rings(connection, now_ts, journals)
        with self._engine.begin() as connection:
            return trim_requests(connection, now_ts, self._limits)

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
    upsert(connection, table, running, keep_finished=True)
    upsert(connection, table, batch.finished.values())


def _reason(error: SQLAlchemyError) -> str:
    """What the database said, in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
