"""Delivery: writes the answer of one request, whole or as a stream, and ends the request.

The terminal is journaled before the last byte is written. Errors keep their HTTP status as long as nothing was
written, which is why a stream's headers wait for the first increment; later ones become an event of the stream
(``data: {"error": …}``, then ``data: [DONE]``).
"""

from __future__ import annotations

import asyncio
import time

from engine.gateway.errors import ApiError, internal_error
from engine.gateway.exchange import Exchange
from engine.gateway.generation_request import GenerationRequest
from engine.gateway.requests import SLOW_READER, RequestState
from engine.gateway.responses import DONE, ResponseWriter

SLOW_AFTER_S = 30.0
"""A write may be held up for this long while much is pending, …"""
STUCK_AFTER_S = 300.0
"""… and for this long in any case: the reader is aborted then."""
MUCH_PENDING_BYTES = 256 << 10
"""About twenty thousand tokens with their ids."""
LARGE_ANSWER_BYTES = 4 << 20
"""Answers with more in them than this are written in a thread, so that the event loop goes on."""
ENDED_GRACE_S = 1.0
"""How long a write that is held up may outlast the end of its request."""

_STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


class Delivery:
    """The writer of one response. `run` is called once."""

    def __init__(self, exchange: Exchange, state: RequestState) -> None:
        self._exchange = exchange
        self._state = state
        self._task: asyncio.Task[None] | None = None
        self._blocked_since: float | None = None
        self._blocked_bytes = 0

    async def run(self, request: GenerationRequest | None, writer: ResponseWriter | None) -> None:
        """Deliver. Without a request and a writer the state is already over: it was refused.

        Cancelling ends the request, too: with what its state says, or as an error.
        """
        self._task = asyncio.current_task()
        try:
            await self._deliver(request, writer)
        except asyncio.CancelledError:
            if not self._state.over:
                raise
            await self._exchange.drop_connection()
        except Exception:
            self._state.fail(internal_error())
            if not self._state.finished:
                self._state.finish(self._exchange.status or 500)
            raise
        finally:
            self.conclude()

    def conclude(self) -> None:
        """The terminal, where there was none: the response broke off, or never began."""
        if self._state.finished:
            return
        if not self._state.over:
            self._state.fail(internal_error("the response broke off"))
        self._state.finish(self._exchange.status)

    async def _deliver(self, request: GenerationRequest | None, writer: ResponseWriter | None) -> None:
        await self._state.wait()
        self._exchange.first_increment_ns = self._state.first_increment_ns
        if self._state.failure is not None:
            await self._refuse(self._state.failure)
        elif self._state.abort_reason or request is None or writer is None:
            self._state.finish(0)
        elif request.stream:
            await self._stream(request, writer)
        else:
            await self._answer(writer)

    async def _refuse(self, error: ApiError) -> None:
        self._state.finish(error.status)
        await self._exchange.respond(error.status, error.body(), error.headers.items())

    async def _answer(self, writer: ResponseWriter) -> None:
        large = self._state.pending_bytes > LARGE_ANSWER_BYTES
        pieces = self._state.take()
        if large:
            self._state.finish(200)  # before others get a turn, who could end the request otherwise
            body = await asyncio.to_thread(writer.whole, pieces)
        else:
            body = writer.whole(pieces)
            self._state.finish(200)
        await self._exchange.respond(200, body)

    async def _stream(self, request: GenerationRequest, writer: ResponseWriter) -> None:
        self._state.committed = True
        await self._exchange.start(200, _STREAM_HEADERS)
        while not self._state.abort_reason:
            events = writer.events(self._state.take())
            if self._state.over:
                self._state.finish(200)
                await self._write(events + self._tail(request, writer), last=True)
                return
            await self._write(events, last=False)
            await self._state.wait()
        self._state.finish(200)

    def _tail(self, request: GenerationRequest, writer: ResponseWriter) -> bytes:
        if self._state.failure is not None:
            return b"data: " + self._state.failure.body() + b"\n\n" + DONE
        return (writer.usage_event() if request.options.usage else b"") + DONE

    # --- slow readers

    async def _write(self, events: bytes, last: bool) -> None:
        self._blocked_since, self._blocked_bytes = time.monotonic(), len(events)
        await self._exchange.write(events, last)
        self._blocked_since = None

    def check(self, now_s: float) -> None:
        """Called now and then (`now_s` is monotonic): end the delivery when its reader holds it up for too long."""
        if self._blocked_since is None or self._task is None:
            return
        if now_s - self._blocked_since > self._patience_s():
            self._state.abort(SLOW_READER)
            self._task.cancel()

    def _patience_s(self) -> float:
        state = self._state
        if state.failure is not None or state.abort_reason:
            return ENDED_GRACE_S
        much = self._blocked_bytes + state.pending_bytes > MUCH_PENDING_BYTES
        return SLOW_AFTER_S if much else STUCK_AFTER_S
