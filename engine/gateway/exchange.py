"""One HTTP request and its response: who it is, what trace it belongs to, and what has been written so far.

Every response goes through `Exchange.send`, which adds the headers that all of them have.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Iterable

from starlette.types import Message, Receive, Scope, Send

from engine.gateway.errors import ApiError, ClientGoneError, body_too_large, unauthorized
from engine.gateway.trace_context import read_context, write_parent
from telemetry.span_ids import server_span_id

Headers = Iterable[tuple[str, str]]
ABORT_CONNECTION = "vitrine.abort_connection"
"""Extension of the ASGI scope: its ``call`` drops the connection without flushing it."""

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_BODY_TIMEOUT_S = 120.0


class Exchange:
    """Reads the request and writes the response of one ASGI call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, sampled: bool) -> None:
        """`sampled` is the trace flag to answer with where the caller sent none."""
        self.received_ns = time.monotonic_ns()
        self.wall_ns = time.time_ns()
        self.scope = scope
        self.request_id = new_request_id()
        self.client_request_id = self._client_id()
        self.trace = read_context(self.headers(b"traceparent"), self.headers(b"tracestate"))
        self.status = 0  # 0 until the response has started
        self.body_bytes = 0
        self.first_increment_ns = 0
        self._sampled = sampled if self.trace.flags < 0 else bool(self.trace.flags & 1)
        self._receive = receive
        self._send = send

    def headers(self, name: bytes) -> list[bytes]:
        """All values of a request header (lower-case `name`)."""
        return [value for key, value in self.scope["headers"] if key == name]

    def require_key(self, api_key: str) -> None:
        """Raise ApiError 401 unless the request carries `api_key` ("" asks for none)."""
        if not api_key:
            return
        expected = b"Bearer " + api_key.encode()
        given = self.headers(b"authorization")
        if len(given) != 1 or not hmac.compare_digest(given[0], expected):
            raise unauthorized()

    async def read_json_body(self, limit_bytes: int) -> bytes:
        """The whole body. Raises ApiError (408, 413, 415) and ClientGoneError.

        JSON must be declared as such: a web page can send other types across sites without being asked.
        """
        media_type = b"".join(self.headers(b"content-type")).partition(b";")[0].strip().lower()
        if media_type != b"application/json":
            raise ApiError(415, "send the header 'Content-Type: application/json'", code="unsupported_media_type")
        length = b"".join(self.headers(b"content-length"))
        if length.isdigit() and int(length) > limit_bytes:
            raise body_too_large(limit_bytes)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await self._read_chunks(limit_bytes)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s", code="timeout") from None

    async def _read_chunks(self, limit_bytes: int) -> bytes:
        chunks: list[bytes] = []
        total = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            total += len(chunk)
            if total > limit_bytes:
                raise body_too_large(limit_bytes)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    async def wait_for_disconnect(self) -> None:
        """Return when the client has closed the connection (after the body has been read)."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, message: Message) -> None:
        """Pass an ASGI message on; a response start gets the common headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            common = [(k.encode(), v.encode()) for k, v in self._common_headers()]
            message = {**message, "headers": [*message.get("headers", []), *common]}
        else:
            self.body_bytes += len(message.get("body", b""))
        await self._send(message)

    async def start(self, status: int, headers: Headers) -> None:
        """Write status and headers."""
        encoded = [(k.encode(), v.encode()) for k, v in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, body: bytes, last: bool) -> None:
        """Write a part of the body; waits while the client is slow."""
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def respond(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole JSON response."""
        await self.start(status, [("content-type", "application/json"), ("content-length", str(len(body))), *headers])
        await self.write(body, last=True)

    async def drop_connection(self) -> None:
        """Close the connection at once, what is buffered included."""
        extension = self.scope.get("extensions", {}).get(ABORT_CONNECTION)
        if extension is not None:
            extension["call"]()
            await asyncio.sleep(0)  # the server learns of it in the loop's next turn

    def _common_headers(self) -> Headers:
        yield "x-request-id", self.client_request_id or self.request_id
        yield "traceparent", write_parent(self.trace.trace_id, server_span_id(self.request_id), self._sampled)
        yield "server-timing", self._server_timing()
        yield "x-content-type-options", "nosniff"

    def _server_timing(self) -> str:
        total = f"total;dur={(time.monotonic_ns() - self.received_ns) / 1e6:.3f}"
        if not self.first_increment_ns:
            return total
        return f"ttft;dur={(self.first_increment_ns - self.received_ns) / 1e6:.3f}, {total}"

    def _client_id(self) -> str:
        """The caller's X-Request-Id, where it is a plain word that can be echoed and recorded."""
        values = self.headers(b"x-request-id")
        return values[0].decode() if len(values) == 1 and _SANE_ID.fullmatch(values[0]) else ""


def new_request_id() -> str:
    """``req-`` and 24 hex digits: 48 bits of milliseconds, so that ids sort by time, and 48 random ones."""
    return f"req-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"
