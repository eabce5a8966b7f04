"""What every page needs: templates, the header's contents, and answers in HTML or JSON."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dashboard import formatting
from dashboard.definitions import DEFINITIONS
from dashboard.health import health
from dashboard.history import History
from dashboard.hub import Events, Hub
from dashboard.pieces import PieceShelf
from dashboard.sources import Sources
from dashboard.verdict import parts

HERE = Path(__file__).parent
STATIC = HERE / "static"
WINDOWS = {"5m": 300, "15m": 900, "1h": 3600}
DEFAULT_WINDOW = "15m"
_FILTERS = (
    formatting.duration,
    formatting.count,
    formatting.number,
    formatting.percent,
    formatting.size,
    formatting.clock,
    formatting.iso,
    formatting.short,
    formatting.visible,
    formatting.si,
    formatting.price,
    formatting.harmless,
)


class Site:
    """The application's parts, reachable from every page as ``request.app.state.site``."""

    def __init__(self, sources: Sources, hub: Hub) -> None:
        self.sources = sources
        self.hub = hub
        self.history = History(sources.store)
        self.pieces = PieceShelf(sources.model_path)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters |= {function.__name__: function for function in _FILTERS}
        self._templates.filters["parts"] = parts
        self._templates.globals |= {
            "asset": asset,
            "definitions": DEFINITIONS,
            "link": link,
            "json": _compact_json,
            "now": time.time,
            "site": self,
        }
        for name in self._templates.list_templates():  # compiled now, so that the first page is as quick as the next
            self._templates.get_template(name)

    def render(self, template: str, /, **context: Any) -> str:
        """A template as text."""
        return self._templates.get_template(template).render(context)

    def page(self, request: Request, template: str, status: int = 200, /, **context: Any) -> HTMLResponse:
        """A whole page. ``live`` in the context is the query of its event stream."""
        window = chosen_window(request.query_params)
        shell = {
            "path": request.url.path,
            "window": window,
            "health": health(self.sources.live),
            "live": "page=",
            "status": status,
        }
        return HTMLResponse(self.render(template, **{**shell, **context}), status_code=status)

    def shell_events(self) -> Events:
        """The header's live parts, for every topic."""
        return {"health": self.render("health.html", health=health(self.sources.live)), "tick": f"{time.time():.0f}"}


def site_of(request: Request) -> Site:
    """The site that answers this request."""
    site: Site = request.app.state.site
    return site


def json_response(value: Any, status: int = 200) -> Response:
    """Any plain value or struct as JSON."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def json_error(message: str, status: int) -> Response:
    """An error in the shape that clients of the API know."""
    return json_response({"error": {"message": message}}, status)


def chosen_window(params: Mapping[str, str]) -> str:
    """The time window of a URL, the default for none or an unknown one."""
    window = params.get("window", "")
    return window if window in WINDOWS else DEFAULT_WINDOW


def link(path: str, window: str = DEFAULT_WINDOW, **params: Any) -> str:
    """A URL of ours. The chosen window follows from page to page; empty parameters are left out."""
    query = {name: value for name, value in params.items() if value not in ("", None, 0, 0.0)}
    if window != DEFAULT_WINDOW:
        query["window"] = window
    return f"{path}?{urlencode(query)}" if query else path


@cache
def asset(name: str) -> str:
    """URL of a static file, with its hash, so that browsers may keep it for ever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def _compact_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
