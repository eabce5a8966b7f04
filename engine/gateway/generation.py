"""``POST /v1/completions`` and ``POST /v1/chat/completions``: one request from its first byte to its last.

Everything that becomes of a request, refusals included, is journaled::

    RequestReceived ─ RequestRouted (per attempt) ─ FirstIncrement ─ RequestFinished ─ last byte ─ ResponseSent
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus

import structlog
from starlette.types import Receive, Scope, Send

from engine.gateway.delivery import Delivery
from engine.gateway.errors import ApiError, ClientGoneError, internal_error
from engine.gateway.exchange import Exchange
from engine.gateway.generation_request import GenerationRequest
from engine.gateway.prompts import ContextLimit
from engine.gateway.requests import CLIENT_GONE, RequestState
from engine.gateway.responses import ResponseHead, ResponseShape, ResponseWriter
from engine.gateway.service import Service
from telemetry.events import RequestReceived, ResponseSent

LARGE_BODY_BYTES = 256 << 10
"""Bodies longer than this are checked in a thread, so that the event loop goes on."""

ReadBody = Callable[[bytes, ContextLimit], GenerationRequest]


class GenerationEndpoint:
    """ASGI app of one endpoint."""

    def __init__(self, service: Service, path: str, read: ReadBody, shape: ResponseShape) -> None:
        self._service = service
        self._path = path
        self._read_body = read
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope["exchange"]
        state = RequestState(exchange.request_id, self._service.journal)
        delivery = Delivery(exchange, state)
        try:
            await self._run(exchange, state, delivery)
        finally:
            delivery.conclude()
            self._service.engine.leave(state)
            self._service.leave(state)
            self._service.journal.append(ResponseSent(exchange.request_id, time.monotonic_ns(), exchange.body_bytes))
            _log_end(exchange, state)

    async def _run(self, exchange: Exchange, state: RequestState, delivery: Delivery) -> None:
        request = None
        try:
            with _blaming(state):
                request = await self._read(exchange)
        finally:
            self._service.journal.append(self._received(exchange, request))
        if request is None:
            await delivery.run(None, None)
            return
        with _blaming(state):
            self._service.enter(state, delivery)
            self._submit(exchange, state, request)
        async with _watching(exchange, state):
            await delivery.run(request, self._writer(exchange, request))

    async def _read(self, exchange: Exchange) -> GenerationRequest:
        self._service.admit(exchange)
        body = await exchange.read_json_body(self._service.config.max_body_bytes)
        if len(body) > LARGE_BODY_BYTES:
            return await asyncio.to_thread(self._read_body, body, self._service.limit)
        return self._read_body(body, self._service.limit)

    def _submit(self, exchange: Exchange, state: RequestState, request: GenerationRequest) -> None:
        self._service.check_model(request.model)
        state.expect(request.num_sequences, request.stream, request.options.prompt_only)
        self._set_deadline(exchange, state, request)
        engine = self._service.engine
        tokens = request.estimated_tokens(self._service.limit.tokens)
        engine.submit(state, request.submit(exchange.request_id, engine.gateway), tokens, request.num_sequences)

    def _writer(self, exchange: Exchange, request: GenerationRequest) -> ResponseWriter:
        response_id = self._shape.id_prefix + exchange.request_id.removeprefix("req-")
        head = ResponseHead(response_id, exchange.wall_ns // 1_000_000_000, self._service.model)
        return ResponseWriter(self._shape, head, request.options, request.prompts.texts)

    def _set_deadline(self, exchange: Exchange, state: RequestState, request: GenerationRequest) -> None:
        """The shorter of the client's patience and the server's own counts from the request's arrival."""
        limits = [s for s in (request.timeout_s, self._service.config.request_timeout) if s]
        if limits:
            state.set_deadline(min(limits), exchange.received_ns)

    def _received(self, exchange: Exchange, request: GenerationRequest | None) -> RequestReceived:
        return RequestReceived(
            request_id=exchange.request_id,
            at_ns=exchange.received_ns,
            wall_ns=exchange.wall_ns,
            endpoint=self._path,
            model=request.model if request else "",
            stream=request.stream if request else False,
            num_sequences=request.num_sequences if request else 0,
            client_request_id=exchange.client_request_id,
            trace_id=exchange.trace.trace_id,
            parent_span_id=exchange.trace.parent_span_id,
            trace_flags=exchange.trace.flags,
            tracestate=exchange.trace.state,
            params=request.given if request else {},
        )


def _log_end(exchange: Exchange, state: RequestState) -> None:
    """One line per request: a warning where the server is to blame, for those who debug where nobody is."""
    log = structlog.get_logger().bind(request_id=exchange.request_id, trace_id=exchange.trace.trace_id)
    error = state.failure
    if error is None:
        log.debug("request ended", outcome=str(state.outcome), status=exchange.status)
        return
    tell = log.warning if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else log.info
    tell("request failed", status=error.status, error=error.error_type, reason=error.message)


@contextlib.contextmanager
def _blaming(state: RequestState) -> Iterator[None]:
    """What goes wrong inside becomes the end of the request."""
    try:
        yield
    except ApiError as error:
        state.fail(error)
    except ClientGoneError:
        state.abort(CLIENT_GONE)
    except Exception:
        structlog.get_logger().exception("a request could not be taken in", request_id=state.request_id)
        state.fail(internal_error())


@contextlib.asynccontextmanager
async def _watching(exchange: Exchange, state: RequestState) -> AsyncIterator[None]:
    """Meanwhile, notice when the client leaves."""

    async def watch() -> None:
        await exchange.wait_for_disconnect()
        state.abort(CLIENT_GONE)

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
