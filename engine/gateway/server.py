"""The gateway process: HTTP server, inbox, line to the supervisor, heartbeat, all on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop
import zmq
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.gateway.app import GatewayApp
from engine.gateway.errors import unavailable
from engine.gateway.exchange import ABORT_CONNECTION
from engine.gateway.service import Service
from engine.messages import ControlMessage, Directory, Drain, Drained, Ready, Stop
from engine.process import BEAT_INTERVAL_S, ControlLine, ProcessContext, inherited_listener
from engine.transport import Inbox
from telemetry.gauges import Gauge

KEEP_ALIVE_S = 60
STOP_GRACE_S = 2
"""After Stop, connections that are still busy get this long."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, with a way to drop a connection that does not read."""

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_CONNECTION: {"call": self.transport.abort}}


class HttpServer(uvicorn.Server):
    """uvicorn's, which leaves signals alone and says when it listens."""

    def __init__(self, app: GatewayApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("server", "vitrine")],
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
        )
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: the supervisor decides, by message."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self.listening.set()


class Gateway:
    """Wires the parts together and obeys the supervisor."""

    def __init__(self, context: ProcessContext) -> None:
        """Raises CannotStartError."""
        self._context = context
        self._service = Service(context)
        self._http = HttpServer(GatewayApp(self._service))
        self._inbox = Inbox(context.zmq, context.inbox_address)
        self._control = ControlLine(context)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Serve until told to stop."""
        _watch(self._inbox.socket, self._on_inbox)
        _watch(self._control.socket, self._on_control)
        self._spawn(self._beat())
        self._spawn(self._announce())
        await self._http.serve(sockets=[listener])
        for task in self._tasks:
            task.cancel()
        self._service.engine.close()

    async def _announce(self) -> None:
        await self._http.listening.wait()
        self._context.gauges.set(Gauge.READY, 1)
        self._control.send(Ready({}))

    async def _beat(self) -> None:
        gauges = self._context.gauges
        while True:
            gauges.beat()
            gauges.set(Gauge.BUSY_NS, time.process_time_ns())
            self._service.engine.beat()
            self._service.check_readers()
            self._on_inbox()
            self._on_control()
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _on_inbox(self) -> None:
        messages = self._inbox.take()
        if messages:
            self._service.engine.on_messages(messages)
            asyncio.get_running_loop().call_soon(self._on_inbox)  # more may have come: see _watch

    def _on_control(self) -> None:
        for message in self._control.take():
            self._obey(message)

    def _obey(self, message: ControlMessage) -> None:
        match message:
            case Directory():
                self._service.engine.on_directory(message)
            case Drain():
                self._spawn(self._drain(message.deadline_ns))
            case Stop():
                self._stop()
            case _:
                self._context.log.warning("unexpected control message", message=type(message).__name__)

    async def _drain(self, deadline_ns: int) -> None:
        """Take nothing new; at the deadline end what still runs; tell when nothing does."""
        self._service.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._service.wait_idle(), max(0, deadline_ns - time.monotonic_ns()) / 1e9)
        self._fail_all()
        await self._service.wait_idle()
        self._control.send(Drained())

    def _stop(self) -> None:
        self._service.draining = True
        self._fail_all()
        self._http.should_exit = True

    def _fail_all(self) -> None:
        self._service.fail_all(unavailable("the server is shutting down", "shutting_down"))

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _watch(zmq_socket: zmq.Socket[Any], on_readable: Callable[[], None]) -> None:
    """Call when messages have come.

    ZeroMQ's descriptor is edge-triggered: it tells of a change once. So a callback has to take messages
    until there are none, and is called once now for those that are here already.
    """
    loop = asyncio.get_running_loop()
    loop.add_reader(zmq_socket.fileno(), on_readable)
    loop.call_soon(on_readable)


def main(context: ProcessContext) -> None:
    """Run the gateway."""
    listener = inherited_listener()
    uvloop.run(_serve(context, listener))


async def _serve(context: ProcessContext, listener: socket.socket) -> None:
    await Gateway(context).run(listener)
