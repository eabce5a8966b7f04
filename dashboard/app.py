"""The web application: routes, and what lies around them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dashboard import api, events, exports, login
from dashboard.hub import Hub
from dashboard.pages import help as help_page
from dashboard.pages import overview, replicas, request, requests
from dashboard.security import Guard, HostCheck, Sessions
from dashboard.sources import Sources
from dashboard.store import StoreAwayError
from dashboard.web import STATIC, Site, json_error, site_of


def create_app(sources: Sources, hub: Hub) -> Guard:
    """The application over `sources`; its lifespan runs `hub`.

    The guard is outside of Starlette's own error handling, so that no answer goes without its headers.
    """
    sessions = Sessions(sources.config.operator_token)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ticking = asyncio.create_task(hub.run())
        yield
        hub.close()
        ticking.cancel()
        sources.store.close()

    app = Starlette(
        routes=_routes(),
        exception_handlers={HTTPException: _http_error, StoreAwayError: _store_away, 500: _failure},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.site = Site(sources, hub)
    app.state.sessions = sessions
    return Guard(app, HostCheck(sources.config.host, sources.machine), sessions)


def _routes() -> list[Any]:
    return [
        Route("/", overview.page),
        Route("/requests", requests.page),
        Route("/requests/{request_id}", request.page),
        Route("/replicas", replicas.page),
        Route("/help", help_page.page),
        Route("/login", login.form, methods=["GET"]),
        Route("/login", login.enter, methods=["POST"]),
        Route("/logout", login.leave, methods=["POST"]),
        Route("/metrics", api.metrics),
        Route("/api/overview", api.overview),
        Route("/api/requests", api.requests),
        Route("/api/requests/{request_id}", api.request),
        Route("/api/steps", api.steps),
        Route("/api/export/{what}", exports.export),
        Route("/api/replicas", api.replicas),
        Route("/api/kv/reset", api.reset_cache, methods=["POST"]),
        Route("/api/log-level", api.set_log_level, methods=["PUT"]),
        Route("/api/events", events.stream),
        Mount("/static", _CachedFiles(directory=STATIC)),
    ]


class _CachedFiles(StaticFiles):
    """Static files. A URL that carries the file's hash may be kept for ever."""

    async def get_response(self, path: str, scope: Any) -> Response:
        if "\0" in path:
            raise HTTPException(404)
        response = await super().get_response(path, scope)
        kept = response.status_code == 200 and scope["query_string"].startswith(b"v=")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        return response


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api/")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if _wants_json(request):
        return json_error(error.detail, error.status_code)
    response = site_of(request).page(request, "error.html", error.status_code, detail=error.detail)
    response.headers.update(error.headers or {})
    return response


async def _store_away(request: Request, _: Exception) -> Response:
    if _wants_json(request):
        return json_error("the store is not there (yet): telemetry has written nothing, or is switched off", 503)
    return site_of(request).page(request, "error.html", 503, detail="The store cannot be read")


async def _failure(request: Request, _: Exception) -> Response:
    if _wants_json(request):
        return json_error("internal error; see the dashboard's log", 500)
    return site_of(request).page(request, "error.html", 500, detail="Something went wrong here")
