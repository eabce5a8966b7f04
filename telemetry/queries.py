"""Reading the store: what the dashboard shows, as functions of plain arguments that answer plain rows.

Rows are dicts with the column names of `telemetry.schema`. Pages go by key (the last row's), never by
offset, so that a list does not shift while new requests arrive.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Engine, Select, insert, select, tuple_

from telemetry import schema, token_files
from telemetry.database import Database
from telemetry.rows import LogRef
from telemetry.token_search import FoundLine, TokenQuery, search

Row = dict[str, Any]
MAX_LIMIT = 1000


class RequestFilters(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of requests is narrowed to; "" and None do not narrow. Times are seconds since the epoch."""

    state: str = ""
    replica: str = ""
    model: str = ""
    endpoint: str = ""
    finish_reason: str = ""
    error_type: str = ""
    trace_id: str = ""
    id_prefix: str = ""  # of the request's id, or the whole id that the client gave
    min_ttft_s: float | None = None
    min_e2e_s: float | None = None
    min_output_tokens: int | None = None
    since: float | None = None
    until: float | None = None
    ids: frozenset[str] | None = None  # only these requests


class RequestPage(msgspec.Struct, frozen=True):
    """Some requests, newest first, and the cursor of the next page ("" after the last)."""

    rows: list[Row]
    cursor: str


class CursorError(ValueError):
    """A cursor that no page gave out."""


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
        """A page of requests, newest first. Raises CursorError."""
        limit = max(1, min(limit, MAX_LIMIT))
        table = schema.requests
        query = select(table).where(*_conditions(filters or RequestFilters()))
        if cursor:
            query = query.where(tuple_(table.c.received_ts, table.c.request_id) < _decode_cursor(cursor))
        query = query.order_by(table.c.received_ts.desc(), table.c.request_id.desc()).limit(limit + 1)
        rows = self._rows(query)
        more = len(rows) > limit
        return RequestPage(rows[:limit], _encode_cursor(rows[limit - 1]) if more else "")

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


def _conditions(filters: RequestFilters) -> Sequence[ColumnElement[bool]]:
    columns = schema.requests.c
    equal = ("state", "replica", "model", "endpoint", "finish_reason", "error_type", "trace_id")
    found = [columns[name] == getattr(filters, name) for name in equal if getattr(filters, name)]
    least = {
        columns.ttft_s: filters.min_ttft_s,
        columns.e2e_s: filters.min_e2e_s,
        columns.output_tokens: filters.min_output_tokens,
        columns.received_ts: filters.since,
    }
    found += [column >= value for column, value in least.items() if value is not None]
    if filters.until is not None:
        found.append(columns.received_ts < filters.until)
    if filters.ids is not None:
        found.append(columns.request_id.in_(filters.ids))
    if filters.id_prefix:
        start = request_id_of(filters.id_prefix)
        starts = (columns.request_id >= start) & (columns.request_id <= start + "\U0010ffff")
        found.append(starts | (columns.client_request_id == filters.id_prefix))
    return found


def request_id_of(text: str) -> str:
    """``chatcmpl-…`` and ``cmpl-…``, the ids of answers, carry the hex digits of the request's ``req-…``."""
    return re.sub(r"^(chatcmpl|cmpl)-", "req-", text)


def _encode_cursor(row: Row) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((row["received_ts"], row["request_id"]))).decode()


def _decode_cursor(cursor: str) -> tuple[float, str]:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=tuple[float, str])
    except ValueError as e:
        raise CursorError(f"not a cursor: {cursor!r}") from e


def with_plan(row: Row) -> Row:
    """A row of ``steps``, its plan decoded."""
    return {**row, "plan": msgspec.msgpack.decode(row["plan"]) if row["plan"] else []}
