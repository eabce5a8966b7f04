"""Where spans go while their cost is measured: an OTLP/HTTP receiver that takes everything and keeps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import TracebackType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class _Server(uvicorn.Server):
    """uvicorn that leaves the signals to the program it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No handlers."""
        yield


class SpanSink:
    """Runs in the event loop that measures. ``received_bytes`` says whether anything came."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        app = Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])
        self._server = _Server(uvicorn.Config(app, log_level="critical"))

    async def __aenter__(self) -> SpanSink:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._serving

    async def _take(self, request: Request) -> Response:
        """An empty answer is a complete success (OTLP specification, "OTLP/HTTP response")."""
        self.received_bytes += len(await request.body())
        return Response(media_type="application/x-protobuf")
