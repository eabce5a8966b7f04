"""``GET /metrics`` passed on: telemetry answers, over ZeroMQ."""

from __future__ import annotations

from typing import Any

import zmq
import zmq.asyncio

TIMEOUT_MS = 2000


class MetricsProxy:
    """Asks the telemetry process. Each question has a socket of its own: one unanswered does not block the next."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._context: zmq.asyncio.Context = zmq.asyncio.Context.shadow(context)
        self._address = address

    async def ask(self, accept: str) -> tuple[str, bytes] | None:
        """Content type and body for this Accept header, or None while telemetry is away."""
        socket = self._context.socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(self._address)
            await socket.send(accept.encode())
            if not await socket.poll(TIMEOUT_MS):
                return None
            frames = await socket.recv_multipart()
        finally:
            socket.close()
        return (frames[0].decode(), frames[1]) if len(frames) == 2 else None
