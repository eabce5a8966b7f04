"""``GET /api/export/…``: everything of a window, streamed: an export of any length holds one page in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dashboard.sources import Sources
from dashboard.web import site_of
from telemetry.chrome_trace import chrome_trace
from telemetry.otlp_json import otlp_lines
from telemetry.queries import Reader
from telemetry.tabular import REQUEST_COLUMNS, TOKEN_COLUMNS, csv_lines, json_lines
from telemetry.windows import Window, each_request, each_step, each_token_line

_CHUNK_BYTES = 1 << 16
_MEDIA = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8", "chrome": "application/json"}
_SUFFIXES = {"jsonl": "jsonl", "csv": "csv", "chrome": "json"}


class ExportQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters: seconds since the epoch, since ≤ t < until; without them there is no bound."""

    since: float | None = None
    until: float | None = None
    format: str = ""


class _Export(NamedTuple):
    """What one kind of export writes, by format; the first is the default."""

    formats: tuple[str, ...]
    lines: Callable[[Sources, Reader, Window, str], Iterator[bytes]]


def export(request: Request) -> Response:
    """``GET /api/export/{requests|tokens|traces|steps}?since=&until=&format=``. 503 while there is no store."""
    what = request.path_params["what"]
    kind = _EXPORTS.get(what)
    if kind is None:
        raise HTTPException(404, f"there is no export of {what!r}: choose {', '.join(_EXPORTS)}")
    query = _read_query(request, kind)
    sources = site_of(request).sources
    with sources.store.reading():
        pass  # so that a store that is not there is answered with its own status, before the stream begins
    chosen = query.format or kind.formats[0]
    return StreamingResponse(
        _in_chunks(_stream(sources, kind, (query.since, query.until), chosen)),
        media_type=_MEDIA[chosen],
        headers={"content-disposition": f'attachment; filename="vitrine-{what}.{_SUFFIXES[chosen]}"'},
    )


def _read_query(request: Request, kind: _Export) -> ExportQuery:
    given = {name: value for name, value in request.query_params.items() if value}
    try:
        query = msgspec.convert(given, ExportQuery, strict=False)
    except msgspec.ValidationError as e:
        raise HTTPException(400, f"since and until are seconds since the epoch, format a word: {e}") from e
    if query.format and query.format not in kind.formats:
        raise HTTPException(400, f"format is one of {', '.join(kind.formats)}, not {query.format!r}")
    return query


def _stream(sources: Sources, kind: _Export, window: Window, chosen: str) -> Iterator[bytes]:
    with sources.store.reading() as reader:
        yield from kind.lines(sources, reader, window, chosen)


def _in_chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Fewer and larger pieces: each one is a turn of the event loop."""
    chunk = bytearray()
    for line in lines:
        chunk += line
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _requests(_: Sources, reader: Reader, window: Window, chosen: str) -> Iterator[bytes]:
    rows = each_request(reader, window)
    return csv_lines(rows, REQUEST_COLUMNS) if chosen == "csv" else json_lines(rows)


def _tokens(_: Sources, reader: Reader, window: Window, chosen: str) -> Iterator[bytes]:
    rows = each_token_line(reader, window)
    return csv_lines(rows, TOKEN_COLUMNS) if chosen == "csv" else json_lines(rows)


def _traces(sources: Sources, reader: Reader, window: Window, _: str) -> Iterator[bytes]:
    return otlp_lines(reader, window, (sources.config.host, sources.config.port))


def _steps(_: Sources, reader: Reader, window: Window, chosen: str) -> Iterator[bytes]:
    rows = each_step(reader, window)
    return chrome_trace(rows) if chosen == "chrome" else json_lines(rows)


_EXPORTS = {
    "requests": _Export(("jsonl", "csv"), _requests),
    "tokens": _Export(("jsonl", "csv"), _tokens),
    "traces": _Export(("jsonl",), _traces),
    "steps": _Export(("chrome", "jsonl"), _steps),
}
