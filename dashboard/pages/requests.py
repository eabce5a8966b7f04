"""``/requests``: the live list, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboard.filters import ListQuery, read_query
from dashboard.hub import Events
from dashboard.store import StoreAwayError
from dashboard.token_filter import find_by_tokens
from dashboard.web import Site, chosen_window, site_of
from telemetry.request_list import CursorError, RequestPage

MAX_ROWS = 200
STATES = ("tokenizing", "waiting", "running", "finished")
FINISH_REASONS = ("stop", "length", "abort", "error")


def find(site: Site, query: ListQuery, token_ids: tuple[int, ...] = ()) -> RequestPage:
    """One page of the list; with `token_ids`, of those that have them. Raises HTTPException 400: a strange cursor."""
    limit = max(1, min(query.limit, MAX_ROWS))
    try:
        with site.sources.store.reading() as reader:
            if token_ids:
                return find_by_tokens(reader, query, token_ids, limit)
            return reader.list_requests(query.filters, limit, query.cursor)
    except CursorError as e:
        raise HTTPException(400, "The cursor is not one of ours; start from the first page") from e


def page(request: Request) -> Response:
    """The page, or only its next rows for htmx' “load more”."""
    site, query = site_of(request), read_query(request.query_params)
    try:
        found = find(site, query)
    except StoreAwayError:
        found = RequestPage([], "")
    context = _context(site, query, found)
    if request.headers.get("hx-request"):
        return HTMLResponse(site.render("requests/more.html", **context))
    live = "page=" if query.cursor else "page=requests&" + request.url.query
    return site.page(request, "requests/page.html", live=live, **context)


def live(site: Site, params: Mapping[str, str]) -> Events:
    """The first page's rows as they are now."""
    query = read_query(params)
    return {"rows": site.render("requests/rows.html", **_context(site, query, find(site, query)))}


def _context(site: Site, query: ListQuery, found: RequestPage) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "cursor": found.cursor,
        "query": query,
        "window": chosen_window({"window": query.window}),
        "longest_s": max((row["e2e_s"] or 0.0 for row in found.rows), default=0.0),
        "states": STATES,
        "finish_reasons": FINISH_REASONS,
        "replicas": [entry.replica for entry in site.sources.live.replicas()],
        "api_port": site.sources.config.port,
        "model": site.sources.model,
    }
