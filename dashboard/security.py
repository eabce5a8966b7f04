"""Who may talk to the dashboard, and what a browser may do with its answers.

One ASGI middleware, outside of everything else: the Host header is checked (DNS rebinding), unsafe methods
must come from the dashboard's own pages, an operator token is asked for where one is set, and every answer
carries the headers that keep text from becoming markup.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "vitrine_session"
SESSION_S = 12 * 3600
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN_PATHS = ("/login", "/static/")

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On every answer, also on errors."""


class HostCheck:
    """Which Host headers are ours.

    Bound to loopback: the loopback names. Bound to one address: also that. Bound to all addresses: also this
    machine's name and any literal address, since rebinding needs a name.
    """

    def __init__(self, bound_to: str, machine: str = "") -> None:
        self._names = _LOOPBACK_NAMES | {bound_to.lower(), machine.lower()} - _WILDCARDS - {""}
        self._any_address = bound_to in _WILDCARDS

    def allows(self, host: str) -> bool:
        """Whether a request with this Host header may be answered."""
        name = _host_name(host)
        return name in self._names or (self._any_address and _is_address(name))


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Sessions:
    """Signed cookies that prove knowledge of the operator token without containing it."""

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._clock = clock

    @property
    def required(self) -> bool:
        """Whether a token was configured."""
        return bool(self._token)

    def knows(self, token: str) -> bool:
        """Whether `token` is the operator token (compared in constant time)."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def issue(self) -> str:
        """A cookie value, valid for `SESSION_S`."""
        expires = str(int(self._clock()) + SESSION_S)
        return f"{expires}.{self._sign(expires)}"

    def accepts(self, cookie: str) -> bool:
        """Whether a cookie value is ours and has not run out."""
        expires, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(expires).encode()):
            return False
        return int(expires) > self._clock()

    def _sign(self, expires: str) -> str:
        return hmac.new(self._token.encode(), f"session until {expires}".encode(), hashlib.sha256).hexdigest()


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp, hosts: HostCheck, sessions: Sessions) -> None:
        self._app = app
        self._hosts = hosts
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refuse(scope, Headers(scope=scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            return PlainTextResponse("This dashboard does not answer to that host name.\n", status_code=421)
        if scope["method"] not in _SAFE_METHODS and not _same_origin(headers, host):
            return PlainTextResponse("Refused: the request comes from another site.\n", status_code=403)
        if self._sessions.required and not self._may_enter(scope["path"], headers):
            return _ask_for_token(scope)
        return None

    def _may_enter(self, path: str, headers: Headers) -> bool:
        if path.startswith(_OPEN_PATHS):
            return True
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._sessions.knows(credential.strip())
        return self._sessions.accepts(_session_cookie(headers.get("cookie", "")))


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether an unsafe request comes from our own page, or from no page at all (curl)."""
    site = headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == host


def _session_cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


def _ask_for_token(scope: Scope) -> Response:
    path = scope["path"]
    if path.startswith("/api/") or path == "/metrics":
        return JSONResponse(
            {"error": {"message": "The operator token is needed: Authorization: Bearer <token>"}},
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse("/login?next=" + quote(path + ("?" + query if query else ""), safe=""), status_code=303)


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers
