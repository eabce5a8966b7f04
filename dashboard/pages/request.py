"""``/requests/{id}``: one request, from the first byte to the last."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dashboard.gaps import gap_chart
from dashboard.hub import Events
from dashboard.store import incarnation
from dashboard.tokens import SequenceTokens, read_line
from dashboard.verdict import parts, sentence, wait_spans
from dashboard.waterfall import draw
from dashboard.web import Site, site_of
from telemetry.queries import Row

TOKENS_SHOWN = 500

_TIMINGS = (
    ("tokenize", "tokenize_s", "tokenizer"),
    ("queue", "queue_s", "scheduler"),
    ("preempted", "preempted_s", "wait"),
    ("prefill", "prefill_s", "runner"),
    ("decode", "decode_s", "runner light"),
    ("drain", "drain_s", "gateway"),
    ("transport", "transport_s", "gateway light"),
    ("unaccounted", "unaccounted_s", "unaccounted"),
)


def page(request: Request) -> Response:
    """The page. ``?sequence=`` chooses among several, ``?from=`` the first token of the table."""
    site = site_of(request)
    params = {**request.query_params, "id": request.path_params["request_id"]}
    context = view(site, params)
    running = context["request"]["state"] != "finished"
    query = f"page=request&id={context['request']['request_id']}"
    return site.page(request, "request/page.html", live=query if running else "page=", **context)


def live(site: Site, params: Mapping[str, str]) -> Events:
    """A running request as it is now; its end is an event of its own."""
    row = find(site, params.get("id", ""))
    if row["state"] == "finished":
        return {"finished": "now"}
    return {"head": site.render("request/head.html", **_summary(row, []))}


def find(site: Site, request_id: str) -> Row:
    """The request. Raises HTTPException 404."""
    with site.sources.store.reading() as reader:
        row = reader.find_request(request_id)
    if row is None:
        raise HTTPException(404, "There is no request with this id; it may be older than what is kept")
    return row


def view(site: Site, params: Mapping[str, str]) -> dict[str, Any]:
    """Everything that the page shows."""
    row = find(site, params["id"])
    with site.sources.store.reading() as reader:
        sequences = reader.get_sequences(row["request_id"])
    number = min(_whole(params.get("sequence", "")), max(0, len(sequences) - 1))
    chosen = sequences[number] if sequences else None
    tokens = read_tokens(site, row, chosen) if chosen else None
    return {
        **_summary(row, sequences),
        "trace_url": trace_url(site.sources.config.jaeger_url, row["trace_id"]),
        "sequences": sequences,
        "sequence": chosen,
        "waits": [(s["idx"], *wait) for s in sequences for wait in wait_spans(s)],
        "tokens": tokens,
        "gaps": gap_chart(tokens.output) if tokens else None,
        "first": _whole(params.get("from", "")),
        "shown": TOKENS_SHOWN,
    }


def trace_url(jaeger_url: str, trace_id: str) -> str:
    """A trace's page in Jaeger; "" where nobody said where that is."""
    return f"{jaeger_url.rstrip('/')}/trace/{trace_id}" if jaeger_url else ""


def read_tokens(site: Site, row: Row, sequence: Row) -> SequenceTokens | None:
    """A sequence's line of the token log, with the piece of each id; None where there is no line."""
    file, offset = sequence["log_file"], sequence["log_offset"]
    if file is None or offset is None:
        return None
    with site.sources.store.reading() as reader:
        line = reader.token_line(file, offset)
        model = incarnation(reader, row["incarnation_id"])
    model_path = (model or {}).get("model_path") or site.sources.model_path
    return read_line(line, site.pieces, model_path) if line else None


def _summary(row: Row, sequences: list[Row]) -> dict[str, Any]:
    return {
        "request": row,
        "sentence": sentence(row, sequences),
        "parts": parts(row),
        "timings": [(name, row[column], css) for name, column, css in _TIMINGS],
        "waterfall": draw(row, sequences, _last_known_ts(row) - row["received_ts"]),
    }


def _last_known_ts(row: Row) -> float:
    """Until when something is known of a request: now while it runs; its last record where its end is missing."""
    return float(row["updated_ts"]) if row["state"] == "finished" else time.time()


def _whole(text: str) -> int:
    """A number from a URL; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
