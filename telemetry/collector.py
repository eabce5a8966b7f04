"""The telemetry process: its loop, and its line to the supervisor."""

from __future__ import annotations

import os
import time

import msgspec
import structlog
import zmq

from engine.config import Config
from engine.messages import Ready, Stop
from engine.process import CannotStartError, ControlLine, ProcessContext
from engine.run_folder import RunFolder, RunInfo, metrics_address
from telemetry.export import ExportThread, make_exporter
from telemetry.exposition import Exposition
from telemetry.gauges import Gauge, GaugeBoard
from telemetry.metrics import Metrics
from telemetry.metrics_server import MetricsServer
from telemetry.retention import DAY_S, Limits
from telemetry.run_reader import Pass, RunReader
from telemetry.sinks import Sinks
from telemetry.store import Store, StoreError

TICK_S = 0.1
COMMIT_S = 0.5
"""Between two transactions of the store: each costs milliseconds, whatever is in it."""

SAMPLE_S = 1.0
TRIM_S = 10.0
FLUSH_TIMEOUT_S = 4.0
NICENESS = 10

log = structlog.get_logger()


class Collector:
    """Tails the journals of its run ten times a second, after those of runs that were left over."""

    def __init__(self, context: ProcessContext) -> None:
        """Open the sinks. Raises CannotStartError."""
        config, run = context.config, context.run
        model = config.served_model_name or run.model.name
        self._context = context
        self._gauges = context.gauges
        self._exporter = _exporter(config.otlp_endpoint)
        self._board = GaugeBoard(context.folder.gauges)
        metrics = Metrics(model)
        exposition = Exposition(metrics, self._board, model, config.price_per_hour)
        self._store = _open_store(config)
        self._sinks = Sinks(config, run.run_id, self._store, exposition, metrics, self._exporter)
        self._run = RunReader(run.run_id, context.folder.journals, self._store.next_seqs(), self._complain)
        self._control = ControlLine(context)
        self._server = MetricsServer(context.zmq, metrics_address(context.run.socket_dir), exposition)
        self._stopping = False
        now = time.monotonic()
        self._due = {"tick": 0.0, "commit": 0.0, "sample": now + SAMPLE_S, "trim": now + TRIM_S}

    def run(self) -> None:
        """Catch up with what was recorded before, say Ready, and go on until told to stop."""
        self._sinks.recover()
        self._read_leftover_runs()
        self._tick()
        self._sinks.close_orphans(self._run.assembly.open_ids())
        self._server.start()
        self._gauges.set(Gauge.READY, 1)
        self._control.send(Ready({}))
        poller = zmq.Poller()
        poller.register(self._control.socket, zmq.POLLIN)
        while not self._stopping:
            poller.poll(int(TICK_S * 1000))
            self._turn()
        self._finish()

    # --- the loop -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        started = time.monotonic_ns()
        for message in self._control.take():
            self._stopping = self._stopping or isinstance(message, Stop)
        if self._is_due("tick", TICK_S):
            self._tick()
        self._gauges.add(Gauge.BUSY_NS, time.monotonic_ns() - started)
        self._gauges.beat()

    def _tick(self) -> None:
        sample = self._is_due("sample", SAMPLE_S)
        result = self._pass(self._run)
        self._sinks.know_replicas(self._run)
        self._sinks.exposition.lag_s = result.lag_ns / 1e9
        self._gauges.set(Gauge.LAG_NS, result.lag_ns)
        if sample:
            self._sinks.take_running(self._run)
            self._sinks.sample()
        if self._is_due("commit", COMMIT_S):
            self._sinks.commit(self._run)
        self._sinks.work()
        if self._is_due("trim", TRIM_S):
            self._run.tail.close_ended()
            self._sinks.trim(self._run.tail.paths())
        self._sinks.degraded.note(Gauge.EXPORT_DEGRADED, self._exporter is not None and self._exporter.degraded)
        self._sinks.degraded.show(self._gauges)

    def _pass(self, run: RunReader) -> Pass:
        result = run.read()
        self._sinks.take_steps(result, run)
        self._sinks.take(run.advance(result), run)
        return result

    def _is_due(self, what: str, interval_s: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = max(self._due[what] + interval_s, now)
        return True

    def _finish(self) -> None:
        """Read everything to its end, close what is open, flush."""
        self._server.stop()
        self._pass(self._run)
        self._sinks.commit(self._run)
        self._sinks.take(self._run.finish("engine_stopped", "the engine was stopped"), self._run)
        self._sinks.commit(self._run, last=True)
        self._run.close()
        self._sinks.close(FLUSH_TIMEOUT_S)
        self._board.close()

    # --- runs that did not end in order -------------------------------------------------------------

    def _read_leftover_runs(self) -> None:
        """Take over what earlier runs recorded. Their folders are the supervisor's to remove.

        All of them are over: our supervisor holds the lock of the data folder.
        """
        for path in sorted(self._context.folder.path.parent.iterdir()):
            info = _read_info(RunFolder(path)) if path != self._context.folder.path else None
            if info is not None:
                self._read_leftover(RunFolder(path), info)

    def _read_leftover(self, folder: RunFolder, info: RunInfo) -> None:
        run = RunReader(info.run_id, folder.journals, self._store.next_seqs(), self._complain, past=True)
        self._pass(run)
        self._sinks.take(run.finish("engine_died", "the engine died"), run)
        self._sinks.commit(run)
        run.close()
        self._gauges.beat()
        log.info("took over a run that did not end in order", run=info.run_id)

    def _complain(self, reason: str) -> None:
        self._sinks.complain("a record could not be interpreted", reason)


def _read_info(folder: RunFolder) -> RunInfo | None:
    try:
        return folder.info()
    except (OSError, msgspec.MsgspecError):
        return None


def _open_store(config: Config) -> Store:
    limits = Limits(config.store_retention * DAY_S, config.store_total_bytes)
    try:
        store = Store(config.data_path, config.store_url, limits)
    except StoreError as e:
        raise CannotStartError(str(e)) from e
    if store.set_aside is not None:
        log.error("the store was damaged: a new one was begun", damaged=str(store.set_aside))
    return store


def _exporter(endpoint: str) -> ExportThread | None:
    try:
        exporter = make_exporter(endpoint)
    except ValueError as e:
        raise CannotStartError(str(e)) from e
    return ExportThread(exporter) if exporter else None


def main(context: ProcessContext) -> None:
    """Body of the process."""
    os.nice(NICENESS)
    Collector(context).run()
