"""Answers to ``GET /metrics``: the gateway and the dashboard ask over ZeroMQ and pass them on."""

from __future__ import annotations

import threading
from typing import Any

import structlog
import zmq

from engine.transport import quiet
from telemetry.exposition import Exposition

_LOOK_MS = 100

log = structlog.get_logger()


class MetricsServer(threading.Thread):
    """A thread of its own, so that no scrape waits for a pass over the journals or for the store."""

    def __init__(self, context: zmq.Context[Any], address: str, exposition: Exposition) -> None:
        """Bind `address`. Questions are answered once the thread runs."""
        super().__init__(name="metrics server", daemon=True)
        self._exposition = exposition
        self._stopping = threading.Event()
        self._socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        quiet(self._socket)
        self._socket.bind(address)

    def run(self) -> None:
        """Answer until told to stop."""
        while not self._stopping.is_set():
            if self._socket.poll(_LOOK_MS):
                self._answer(self._socket.recv_multipart())
        self._socket.close()

    def stop(self) -> None:
        """Answer nothing more; returns when the thread has ended."""
        self._stopping.set()
        self.join()

    def _answer(self, question: list[bytes]) -> None:
        """The last frame is the Accept header, those before the way back. A failure is answered by silence: 503."""
        *way_back, accept = question
        try:
            content_type, body = self._exposition.render(accept.decode("latin-1"))
            self._socket.send_multipart([*way_back, content_type.encode(), body], zmq.NOBLOCK)
        except Exception:
            log.exception("the metrics could not be answered")
