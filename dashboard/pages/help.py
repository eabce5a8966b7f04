"""``/help``: the keys, and what every number means."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from dashboard.web import site_of


def page(request: Request) -> Response:
    """The page."""
    return site_of(request).page(request, "help.html")
