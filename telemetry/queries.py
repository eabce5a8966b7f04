"""Reading the store: what the dashboard shows, as functions of plain arguments that answer plain rows.

Rows are dicts with the column names of `telemetry.schema`. Pages go by key (the last row's), never by
offset, so that a list does not shift while new requests arrive.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, Select, insert, select

from telemetry import schema, token_files
from telemetry.database import Database
from telemetry.request_list import RequestFilters, RequestPage, list_requests, request_id_of
from telemetry.rows import LogRef
from telemetry.token_search import FoundLine, TokenQuery, search

Row = dict[str, Any]
MAX_LIMIT = 1000


def open_reader(data_path: Path, store_url: str = "") -> Reader:
    """A reader of the store. Raises FileNotFoundError while there is no file, DatabaseError for a wrong URL."""
    database = Database(data_path, store_url)
    if database.path is not None and not database.path.exists():
        raise FileNotFoundError(database.path)
    return Reader(database, data_path / schema.TOKEN_FOLDER)


class Reader:
    """Queries for the dashboard. Safe for several threads; every call is a short transaction of its own."""

    def __init__(self, database: Database, token_folder: Path) -> None:
        self._token_folder = token_folder
        self._engine = database.open_reader()

    @property
    def engine(self) -> Engine:
        """For queries that are not here."""
        return self._engine

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # --- requests -----------------------------------------------------------------------------------

    def list_requests(self, filters: RequestFilters | None = None, limit: int = 50, cursor: str = "") -> RequestPage:
        """A page of requests, newest first: `telemetry.request_list` says how. Raises CursorError."""
        with self._engine.connect() as connection:
            return list_requests(connection, filters or RequestFilters(), max(1, min(limit, MAX_LIMIT)), cursor)

    def get_request(self, request_id: str) -> Row | None:
        """One request, or None."""
        return self._row(select(schema.requests).where(schema.requests.c.request_id == request_id))

    def find_request(self, text: str) -> Row | None:
        """The one request that `text` names: its id, the id of its answer, or the beginning of either."""
        table, start = schema.requests, request_id_of(text)
        last = start + "\U0010ffff"
        within = select(table).where(table.c.request_id >= start, table.c.request_id <= last).limit(2)
        found = self._rows(within) if start else []
        exact = [row for row in found if row["request_id"] == start]
        return exact[0] if exact else found[0] if len(found) == 1 else None

    def get_sequences(self, request_id: str) -> list[Row]:
        """The sequences of a request in order; none while it runs."""
        table = schema.sequences
        return self._rows(select(table).where(table.c.request_id == request_id).order_by(table.c.idx))

    def token_line(self, file: str, offset: int) -> Row | None:
        """The token-log line of a sequence (``log_file`` and ``log_offset`` of its row); None when it is gone."""
        try:
            with token_files.opened(self._token_folder, Path(file).name) as blocks:
                line = token_files.line_at(blocks, offset)
                return json.loads(line) if line else None
        except (OSError, ValueError):
            return None

    def search_tokens(
        self, query: TokenQuery, before: LogRef | None, is_cancelled: Callable[[LogRef], bool]
    ) -> Iterator[FoundLine]:
        """See `telemetry.token_search.search`."""
        return search(self._token_folder, query, before, is_cancelled)

    # --- steps, samples, replicas -------------------------------------------------------------------

    def steps(self, since: float, until: float, incarnation_id: str = "", limit: int = 2000) -> list[Row]:
        """The engine steps planned in a window, in order of time; of more than `limit` the latest.

        ``plan`` is decoded: ``[[request_id, idx, start, num_tokens, sampled], …]``.
        """
        table = schema.steps
        query = select(table).where(table.c.planned_ts >= since, table.c.planned_ts < until)
        if incarnation_id:
            query = query.where(table.c.incarnation_id == incarnation_id)
        rows = self._rows(query.order_by(table.c.planned_ts.desc()).limit(limit))
        return [with_plan(row) for row in reversed(rows)]

    def get_step(self, incarnation_id: str, step_id: int) -> Row | None:
        """One step, its plan decoded, or None when it has left the ring."""
        table = schema.steps
        row = self._row(select(table).where(table.c.incarnation_id == incarnation_id, table.c.step_id == step_id))
        return with_plan(row) if row else None

    def samples(self, since: float, until: float, replica: str = "") -> list[Row]:
        """One row per second of a window, in order (``ts``, ``replica``, ``values``: see `telemetry.samples`)."""
        table = schema.samples
        window = (table.c.ts >= since, table.c.ts < until, table.c.replica == replica)
        return self._rows(select(table).where(*window).order_by(table.c.ts))

    def incarnations(self, limit: int = 200) -> list[Row]:
        """Incarnations of replicas, latest first."""
        table = schema.incarnations
        return self._rows(select(table).order_by(table.c.started_ts.desc()).limit(limit))

    def replica_events(self, since: float = 0.0, limit: int = 200) -> list[Row]:
        """State changes and deaths, latest first."""
        table = schema.replica_events
        query = select(table).where(table.c.ts >= since).order_by(table.c.ts.desc(), table.c.id.desc())
        return self._rows(query.limit(limit))

    # --- audit --------------------------------------------------------------------------------------

    def append_audit(self, who: str, action: str, target: str, result: str) -> None:
        """Record an operator's action. Raises sqlalchemy.exc.OperationalError when it cannot be written."""
        values = {"ts": time.time(), "who": who, "action": action, "target": target, "result": result}
        with self._engine.begin() as connection:
            connection.execute(insert(schema.audit).values(values))

    def list_audit(self, limit: int = 200) -> list[Row]:
        """Operators' actions, latest first."""
        return self._rows(select(schema.audit).order_by(schema.audit.c.id.desc()).limit(limit))

    # --- how ----------------------------------------------------------------------------------------

    def _rows(self, query: Select[Any]) -> list[Row]:
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _row(self, query: Select[Any]) -> Row | None:
        rows = self._rows(query)
        return rows[0] if rows else None


def with_plan(row: Row) -> Row:
    """A row of ``steps``, its plan decoded."""
    return {**row, "plan": msgspec.msgpack.decode(row["plan"]) if row["plan"] else []}
