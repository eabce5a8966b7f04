"""Everything of a window of time, oldest first, read page by page: what exports stream.

A window is [since, until) in seconds since the epoch; None is open. Pages go by key, each in a short transaction
of its own, so that an export of any length holds one page in memory and never keeps the writer waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Select, Table, select, tuple_

from telemetry import schema
from telemetry.queries import Reader, Row, with_plan

PAGE_ROWS = 500

Window = tuple[float | None, float | None]


def each_request(reader: Reader, window: Window, page_rows: int = PAGE_ROWS) -> Iterator[Row]:
    """Requests received in the window, also those that still run."""
    table = schema.requests
    return _each(reader, table, (table.c.received_ts, table.c.request_id), window, page_rows)


def each_step(reader: Reader, window: Window, page_rows: int = PAGE_ROWS) -> Iterator[Row]:
    """Engine steps planned in the window, their plans decoded."""
    table = schema.steps
    key = (table.c.planned_ts, table.c.incarnation_id, table.c.step_id)
    return map(with_plan, _each(reader, table, key, window, page_rows))


def each_token_line(reader: Reader, window: Window) -> Iterator[Row]:
    """The token-log lines of the sequences of requests received in the window.

    Of one whose line is no longer there (or never was: ``--token-log off``) request and index, its ids null.
    """
    for request in each_request(reader, window):
        for sequence in reader.get_sequences(request["request_id"]):
            yield token_line(reader, sequence) or {
                "request_id": request["request_id"],
                "index": sequence["idx"],
                "prompt_token_ids": None,
                "output_token_ids": None,
            }


def token_line(reader: Reader, sequence: Row) -> Row | None:
    """The token-log line of a row of ``sequences``, or None."""
    if sequence["log_file"] is None:
        return None
    return reader.token_line(sequence["log_file"], sequence["log_offset"])


def _each(reader: Reader, table: Table, key: Sequence[Column[Any]], window: Window, page_rows: int) -> Iterator[Row]:
    query = _within(select(table), key[0], window).order_by(*key).limit(page_rows)
    page = query
    while True:
        with reader.engine.connect() as connection:
            rows = [dict(row) for row in connection.execute(page).mappings()]
        yield from rows
        if len(rows) < page_rows:
            return
        page = query.where(tuple_(*key) > tuple(rows[-1][column.name] for column in key))


def _within(query: Select[Any], column: Column[Any], window: Window) -> Select[Any]:
    since, until = window
    if since is not None:
        query = query.where(column >= since)
    return query if until is None else query.where(column < until)
