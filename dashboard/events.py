"""``GET /api/events``: the live stream of one page, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlencode

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from dashboard.hub import Events, Hub, TooManyViewersError, Viewer
from dashboard.pages import overview, replicas, request, requests
from dashboard.web import Site, json_error, site_of

SEND_TIMEOUT_S = 10
"""A viewer whose socket takes nothing for this long is cut off."""

_RETRY_MS = 1000
_LONGEST_VALUE = 200

PAGES: dict[str, Callable[[Site, Mapping[str, str]], Events]] = {
    "": lambda site, _: {},
    "overview": overview.live,
    "requests": requests.live,
    "request": request.live,
    "replicas": replicas.live,
}


async def stream(request: Request) -> Response:
    """The events of ``?page=…`` with that page's own parameters."""
    params = dict(request.query_params)
    page = params.pop("page", "")
    if page not in PAGES or any(len(value) > _LONGEST_VALUE for value in params.values()):
        return json_error(f"page must be one of {', '.join(filter(None, PAGES))}", 400)
    site = site_of(request)
    key = f"{page}?{urlencode(sorted(params.items()))}"
    try:
        viewer = site.hub.join(key, lambda: {**site.shell_events(), **PAGES[page](site, params)})
    except TooManyViewersError:
        return json_error("too many open streams", 503)
    return EventSourceResponse(_messages(site.hub, key, viewer), send_timeout=SEND_TIMEOUT_S, ping=15)


async def _messages(hub: Hub, key: str, viewer: Viewer) -> AsyncIterator[ServerSentEvent]:
    try:
        yield ServerSentEvent(comment="vitrine", retry=_RETRY_MS)
        async for events in viewer.events():
            for name, data in events.items():
                yield ServerSentEvent(data, event=name)
    finally:
        hub.leave(key, viewer)
