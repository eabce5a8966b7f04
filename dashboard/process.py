"""The dashboard's process: an asyncio loop with the web server and the line to the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import uvicorn
import zmq
import zmq.asyncio

from dashboard.app import create_app
from dashboard.commands import Commands
from dashboard.hub import Hub
from dashboard.live import Live
from dashboard.metrics_proxy import MetricsProxy
from dashboard.sources import Sources
from dashboard.store import Store
from engine.messages import CacheReset, Directory, Ready, Stop
from engine.process import BEAT_INTERVAL_S, ControlLine, ProcessContext, inherited_listener
from engine.run_folder import metrics_address
from telemetry.gauges import Gauge, GaugeBoard

GRACE_S = 1
"""How long open answers may take to finish after Stop."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the supervisor decides, by message, who ends when."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


class DashboardProcess:
    """Ties the web server to the supervisor: Ready when listening, Directory in, Stop out."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context
        self._hub = Hub()
        self._commands = Commands()
        self._live = Live(GaugeBoard(context.folder.gauges))
        sources = Sources(
            config=context.config,
            machine=context.run.host,
            run_id=context.run.run_id,
            model=context.config.served_model_name or context.run.model.name,
            model_path=context.run.model.path,
            store=Store(context.config.data_path, context.config.store_url),
            live=self._live,
            metrics=MetricsProxy(context.zmq, metrics_address(context.run.socket_dir)),
            commands=self._commands,
        )
        self._server = Server(
            uvicorn.Config(
                create_app(sources, self._hub),
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    async def run(self) -> None:
        """Serve until told to stop."""
        control = ControlLine(self._context)
        self._commands.connect(control.send)
        listening = inherited_listener()
        serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        watching = asyncio.create_task(self._watch(control))
        try:
            await serving
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    async def _watch(self, control: ControlLine) -> None:
        """Every turn: take messages, beat, and say Ready once the server listens."""
        poller = zmq.asyncio.Poller()
        poller.register(control.socket, zmq.POLLIN)
        announced = False
        while True:
            if self._server.started and not announced:
                self._context.gauges.set(Gauge.READY, 1)
                control.send(Ready({}))
                announced = True
            self._take(control)
            self._context.gauges.set(Gauge.BUSY_NS, time.process_time_ns())
            self._context.gauges.beat()
            await poller.poll(int(BEAT_INTERVAL_S * 1000))

    def _take(self, control: ControlLine) -> None:
        for message in control.take():
            match message:
                case Directory():
                    self._live.directory = message
                case CacheReset():
                    self._commands.on_answer(message)
                case Stop():
                    self._hub.close()
                    self._server.should_exit = True
                case _:
                    self._context.log.warning("unexpected control message", message=type(message).__name__)


def main(context: ProcessContext) -> None:
    """Run the dashboard; returns after Stop."""
    asyncio.run(DashboardProcess(context).run())
