"""Pages of requests, newest first, that take about the same time whatever is asked and however much there is.

One condition that has an index says where to look; all others are tried on what is found there, a piece at a time and
for a moment only. A page that has looked at as much as it may has a cursor and perhaps few rows, or none: the next one
goes on from there. Pages go by key (the last row's), never by offset, so that a list does not shift while new requests
arrive.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, FromClause, Select, select, tuple_
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from telemetry import schema

Row = dict[str, Any]
Columns = ReadOnlyColumnCollection[str, Any]
Key = tuple[float, str]
"""(received_ts, request_id)"""

PIECE_ROWS = 3000
LOOK_S = 0.04
"""A page begins no further piece after this time."""

_OPEN_STATES = ("tokenizing", "waiting", "running")
_COLUMNS = schema.requests.c


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


def list_requests(connection: Connection, filters: RequestFilters, limit: int, cursor: str) -> RequestPage:
    """A page of at most `limit` rows. Raises CursorError."""
    before = _decode_cursor(cursor) if cursor else None
    found: list[Row] = []
    if filters.id_prefix:
        found = _by_id(connection, filters, limit + 1, before)
        before = None
    else:
        ends_at = time.monotonic() + LOOK_S
        while len(found) <= limit:
            rows, before = _piece(connection, filters, limit + 1 - len(found), before)
            found += rows
            if before is None or time.monotonic() > ends_at:
                break
    if len(found) > limit:
        return RequestPage(found[:limit], _encode_cursor(_key(found[limit - 1])))
    return RequestPage(found, _encode_cursor(before) if before else "")


def request_id_of(text: str) -> str:
    """``chatcmpl-…`` and ``cmpl-…``, the ids of answers, carry the hex digits of the request's ``req-…``."""
    return re.sub(r"^(chatcmpl|cmpl)-", "req-", text)


def _piece(
    connection: Connection, filters: RequestFilters, limit: int, before: Key | None
) -> tuple[list[Row], Key | None]:
    """Rows that match among the next `PIECE_ROWS`, and the last key looked at; None: there are no more."""
    indexed = _newest_first(select(schema.requests).where(*_where_to_look(filters), *_behind(before)))
    if not _others(filters, _COLUMNS):
        rows = _rows(connection, indexed.limit(limit))
        return rows, None
    piece = indexed.limit(PIECE_ROWS).subquery()
    rows = _rows(connection, _newest_first(select(piece).where(*_others(filters, piece.c)), piece).limit(limit))
    last = indexed.with_only_columns(_COLUMNS.received_ts, _COLUMNS.request_id).offset(PIECE_ROWS - 1).limit(1)
    key = connection.execute(last).first()
    return rows, (key.received_ts, key.request_id) if key else None


def _by_id(connection: Connection, filters: RequestFilters, limit: int, before: Key | None) -> list[Row]:
    """Those whose id begins so (ids are in the order of time), and those to which the client gave this very id."""
    start = request_id_of(filters.id_prefix)
    begins = (_COLUMNS.request_id >= start, _COLUMNS.request_id <= start + "\U0010ffff")
    conditions = [*_between(filters), *_equal(filters, _COLUMNS), *_least(filters, _COLUMNS)]
    mine = select(schema.requests).where(*begins, *conditions, *_behind(before))
    theirs = select(schema.requests).where(
        _COLUMNS.client_request_id == filters.id_prefix, *conditions, *_behind(before)
    )
    rows = _rows(connection, mine.order_by(_COLUMNS.request_id.desc()).limit(limit))
    rows += _rows(connection, _newest_first(theirs).limit(limit))
    unique = {row["request_id"]: row for row in rows}
    return sorted(unique.values(), key=_key, reverse=True)[:limit]


def _where_to_look(filters: RequestFilters) -> list[ColumnElement[bool]]:
    """The one condition that narrows most and has an index, and the window."""
    if filters.ids is not None:
        return [_COLUMNS.request_id.in_(filters.ids), *_between(filters)]
    name = _indexed(filters)
    narrowing = [_COLUMNS[name] == getattr(filters, name)] if name else []
    return [*narrowing, *_between(filters)]


def _indexed(filters: RequestFilters) -> str:
    """The column that says where to look; "" for none."""
    if filters.trace_id:
        return "trace_id"
    if filters.state in _OPEN_STATES:
        return "state"
    return next((name for name in ("error_type", "finish_reason", "replica") if getattr(filters, name)), "")


def _others(filters: RequestFilters, columns: Columns) -> list[ColumnElement[bool]]:
    """The conditions that are tried on what was found."""
    by_index = "" if filters.ids is not None else _indexed(filters)
    return [*_equal(filters, columns, by_index), *_least(filters, columns)]


def _equal(filters: RequestFilters, columns: Columns, but: str = "") -> Iterator[ColumnElement[bool]]:
    for name in ("state", "replica", "model", "endpoint", "finish_reason", "error_type", "trace_id"):
        if name != but and (value := getattr(filters, name)):
            yield columns[name] == value


def _least(filters: RequestFilters, columns: Columns) -> Iterator[ColumnElement[bool]]:
    least = {
        columns.ttft_s: filters.min_ttft_s,
        columns.e2e_s: filters.min_e2e_s,
        columns.output_tokens: filters.min_output_tokens,
    }
    return (column >= value for column, value in least.items() if value is not None)


def _between(filters: RequestFilters) -> Iterator[ColumnElement[bool]]:
    if filters.since is not None:
        yield _COLUMNS.received_ts >= filters.since
    if filters.until is not None:
        yield _COLUMNS.received_ts < filters.until


def _behind(key: Key | None) -> list[ColumnElement[bool]]:
    """What comes after this key in a list that begins with the newest.

    The first condition follows from the second, and is what an index on another column and the time can use.
    """
    if key is None:
        return []
    return [_COLUMNS.received_ts <= key[0], tuple_(_COLUMNS.received_ts, _COLUMNS.request_id) < key]


def _newest_first(query: Select[Any], of: FromClause = schema.requests) -> Select[Any]:
    return query.order_by(of.c.received_ts.desc(), of.c.request_id.desc())


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


def _key(row: Row) -> Key:
    return row["received_ts"], row["request_id"]


def _encode_cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode()


def _decode_cursor(cursor: str) -> Key:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=Key)
    except ValueError as e:
        raise CursorError(f"not a cursor: {cursor!r}") from e
