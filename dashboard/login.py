"""The operator token: asked for once, kept as a signed cookie."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dashboard.security import COOKIE, SESSION_S, Sessions
from dashboard.web import site_of

_PAUSE_AFTER_WRONG_S = 0.5
_LONGEST_FORM_BYTES = 8192


async def form(request: Request) -> Response:
    """``GET /login``."""
    return _show(request, request.query_params.get("next", "/"))


async def enter(request: Request) -> Response:
    """``POST /login``: a right token sets the cookie."""
    fields = await _fields(request)
    sessions: Sessions = request.app.state.sessions
    if not sessions.knows(fields.get("token", "")):
        await asyncio.sleep(_PAUSE_AFTER_WRONG_S)
        return _show(request, fields.get("next", "/"), "That is not the operator token.", 403)
    response = RedirectResponse(_own_path(fields.get("next", "/")), status_code=303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, sessions.issue(), SESSION_S, httponly=True, samesite="strict", secure=secure)
    return response


async def leave(request: Request) -> Response:
    """``POST /logout``."""
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _show(request: Request, next_path: str, error: str = "", status: int = 200) -> Response:
    return site_of(request).page(request, "login.html", status, next=_own_path(next_path), error=error)


async def _fields(request: Request) -> dict[str, str]:
    """The form's fields. (A form of two short fields needs no parser of its own.)"""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM_BYTES:
            return {}
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _own_path(path: str) -> str:
    """A path on this site; anything else would let a link send the operator elsewhere."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and "\n" not in path else "/"
