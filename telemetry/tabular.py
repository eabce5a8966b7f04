"""Rows as lines of text: JSON lines and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from telemetry import schema
from telemetry.queries import Row

REQUEST_COLUMNS = tuple(schema.requests.c.keys())
TOKEN_COLUMNS = (
    "ts",
    "request_id",
    "index",
    "prompt_index",
    "trace_id",
    "replica",
    "incarnation_id",
    "endpoint",
    "model",
    "model_sha256",
    "tokenizer_sha256",
    "params",
    "seed",
    "prompt_token_ids",
    "cached_tokens",
    "output_token_ids",
    "token_times_ms",
    "step_ids",
    "finish_reason",
    "stop_string",
    "error",
    "timings",
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def json_lines(rows: Iterable[Row]) -> Iterator[bytes]:
    """One JSON object per line."""
    return (msgspec.json.encode(row) + b"\n" for row in rows)


def csv_lines(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[bytes]:
    """RFC 4180, UTF-8, with a header. Lists and objects are cells of JSON; null is an empty cell.

    Text that a spreadsheet would take for a formula gets an apostrophe in front: it may come from a client.
    """
    yield _csv_line(columns)
    for row in rows:
        yield _csv_line([_cell(row.get(column)) for column in columns])


def _csv_line(cells: Sequence[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return msgspec.json.encode(value).decode()
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value
