"""The supervisor: owns which processes there are.

It binds the ports (so that a port in use is found before anything is loaded, and a gateway that is
restarted keeps its listening socket), starts all units, tells everyone about every change (Directory),
restarts with backoff what dies or hangs, and ends everything in order.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

import structlog
import zmq

from engine import logs
from engine.messages import (
    CacheReset,
    ControlMessage,
    Drained,
    Failed,
    Hello,
    Ready,
    ResetCache,
    SetLogLevel,
)
from engine.model_shape import ModelShape
from engine.process import ProcessContext
from engine.replicas import housekeeping
from engine.replicas.control import ControlPlane
from engine.replicas.directory import DirectoryMaker
from engine.replicas.launchers.local import LocalLauncher
from engine.replicas.shutdown import Shutdown
from engine.replicas.terminal import Terminal
from engine.replicas.unit import Unit
from engine.run_folder import control_address, process_name
from telemetry.events import ProcessDied, ReplicaState, Stage
from telemetry.gauges import SUFFIX as GAUGES_SUFFIX
from telemetry.gauges import GaugeReader

TURN_S = 0.1
"""How often the supervisor looks after its children; a death is noticed within this time."""

HANG_TIMEOUT_S = 15.0
START_TIMEOUT_S = 180.0

log = structlog.get_logger()


class Supervisor:
    """One system: its units, their states, and the loop that keeps them."""

    def __init__(
        self, context: ProcessContext, units: list[Unit], launcher: LocalLauncher, shape: ModelShape, out: Terminal
    ) -> None:
        self._context = context
        self._config = context.config
        self._units = units
        self._launcher = launcher
        self._directory = DirectoryMaker(context.run, shape, units)
        self._out = out
        self._control = ControlPlane(context.zmq, control_address(context.run.socket_dir))
        self._shutdown: Shutdown | None = None
        self._signals = 0
        self._signals_obeyed = 0
        self._served = False  # everything was ready once
        self._log_levels: dict[str, SetLogLevel] = {}  # by stage; "" is every other one
        self._failure = ""  # why the system could not start
        self._began = time.monotonic()

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Start everything and look after it until the end; returns the exit status."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        for unit in self._units:
            self._start(unit)
        while not self._turn():
            pass
        if self._failure:
            return 1
        self._out.stopped(self._config.data_path)
        return 0

    def _turn(self) -> bool:
        """One turn; True when everything is over."""
        self._control.socket.poll(int(TURN_S * 1000), zmq.POLLIN)
        for sender, message in self._control.take():
            self._on_message(sender, message)
        self._watch()
        self._restart_due()
        self._context.gauges.beat()
        return self._advance_shutdown()

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._signals += 1

    # --- children -----------------------------------------------------------------------------------

    def _start(self, unit: Unit) -> None:
        unit.start(self._launcher)
        self._changed(unit)

    def _restart_due(self) -> None:
        if self._shutdown is not None:
            return
        for unit in self._units:
            if unit.start_at_ns is not None and time.monotonic_ns() >= unit.start_at_ns:
                self._start(unit)

    def _watch(self) -> None:
        """Find processes that have ended or hang."""
        for unit in self._units:
            dead = unit.dead()
            if dead and self._ending(unit):
                for process in dead:
                    del unit.processes[process.stage]
            elif dead:
                self._on_death(unit, dead[0].stage, dead[0].pid, dead[0].exit_status() or "")
            elif unit.alive:
                self._watch_heartbeats(unit)

    def _ending(self, unit: Unit) -> bool:
        """Whether the unit's end is what we want."""
        return self._shutdown is not None and self._shutdown.was_told_to_stop(unit)

    def _watch_heartbeats(self, unit: Unit) -> None:
        if unit.state is ReplicaState.STARTING:
            if unit.age_s() > START_TIMEOUT_S:
                late = next(stage for stage in unit.stages if stage not in unit.ready)
                self._on_death(unit, late, unit.processes[late].pid, f"not ready after {START_TIMEOUT_S:.0f} s")
            return
        for stage, process in unit.processes.items():
            age_s = self._heartbeat_age_s(unit, stage)
            if age_s > HANG_TIMEOUT_S:
                self._on_death(unit, stage, process.pid, f"no heartbeat for {age_s:.1f} s")
                return

    def _heartbeat_age_s(self, unit: Unit, stage: Stage) -> float:
        name = process_name(stage, unit.replica, unit.incarnation) + GAUGES_SUFFIX
        try:
            page = GaugeReader(self._context.folder.gauges / name)
        except (OSError, ValueError):
            return 0.0
        try:
            return page.heartbeat_age_s()
        finally:
            page.close()

    def _on_death(self, unit: Unit, stage: Stage, pid: int, how: str) -> None:
        reason = f"{stage}: {how}"
        now = time.monotonic_ns()
        self._context.journal.append(ProcessDied(now, stage, unit.replica, unit.incarnation, pid, how))
        backoff_s = unit.fail(reason)
        self._control.forget(unit.replica, unit.stages, unit.incarnation)
        self._keep_evidence(unit, reason)
        self._changed(unit)
        log.error("unit failed", unit=unit.name, incarnation=unit.incarnation, reason=reason, backoff_s=backoff_s)
        if not self._served:
            self._give_up(f"{unit.name} could not start: {reason}; see {self._config.data_path / 'logs'}")
        elif self._shutdown is None:
            self._out.warn(f"{unit.name}: {reason}; restarting in {backoff_s:.1f} s")

    def _keep_evidence(self, unit: Unit, reason: str) -> None:
        folder, name = self._context.folder, unit.replica
        try:
            crashes = self._config.data_path / "crash"
            housekeeping.dump_crash(crashes, folder, unit.stages, name, unit.incarnation, reason)
        except OSError as e:
            log.warning("no crash dump", unit=unit.name, error=str(e))
        housekeeping.remove_gauges(folder, unit.stages, name, unit.incarnation)

    # --- messages -----------------------------------------------------------------------------------

    def _on_message(self, sender: Hello, message: ControlMessage) -> None:
        unit = self._unit_of(sender)
        if unit is None:
            return  # a child that has been replaced
        match message:
            case Hello():
                self._greet(unit)
            case Ready():
                self._on_ready(unit, sender.stage, message)
            case Failed():
                self._on_failed(unit, message.message)
            case Drained() if self._shutdown is not None:
                self._shutdown.drained = True
            case ResetCache() | CacheReset():
                self._relay(message)
            case SetLogLevel():
                self._set_log_level(message)
            case _:
                log.warning("unexpected control message", message=type(message).__name__, sender=sender.stage)

    def _relay(self, message: ResetCache | CacheReset) -> None:
        """An operator's command to the schedulers, and their answers back."""
        stage = Stage.SCHEDULER if isinstance(message, ResetCache) else Stage.DASHBOARD
        for unit in self._units:
            if stage in unit.processes:
                self._control.send(stage, unit.replica, unit.incarnation, message)

    def _set_log_level(self, message: SetLogLevel) -> None:
        """For those that are there, and for those that will be started."""
        if not message.stage:
            self._log_levels.clear()
        self._log_levels[message.stage] = message
        if message.stage in ("", Stage.SUPERVISOR):
            logs.set_level(message.level)
        for unit in self._units:
            self._tell_log_levels(unit)

    def _tell_log_levels(self, unit: Unit) -> None:
        for stage in unit.processes:
            if message := self._log_levels.get(stage) or self._log_levels.get(""):
                self._control.send(stage, unit.replica, unit.incarnation, message)

    def _greet(self, unit: Unit) -> None:
        self._send(unit, self._directory.message())
        self._tell_log_levels(unit)
        if self._shutdown is not None:
            self._shutdown.tell_latecomer(unit)

    def _unit_of(self, child: Hello) -> Unit | None:
        for unit in self._units:
            if (unit.replica, unit.incarnation) == (child.replica, child.incarnation) and child.stage in unit.processes:
                return unit
        return None

    def _on_ready(self, unit: Unit, stage: Stage, message: Ready) -> None:
        if not unit.mark_ready(stage, message):
            return
        self._changed(unit)
        if not self._served:
            self._out.done(unit.name, f"ready after {time.monotonic() - self._began:.1f} s")
            self._serving_if_complete()
        elif self._shutdown is None:
            self._out.done(unit.name, f"ready again (incarnation {unit.incarnation})")
        if Stage.TELEMETRY in unit.stages:
            self._clear_leftovers()

    def _serving_if_complete(self) -> None:
        if all(unit.state is ReplicaState.READY for unit in self._units):
            self._served = True
            seconds = time.monotonic() - self._began
            model = self._config.served_model_name or self._context.run.model.name
            log.info("serving", seconds=round(seconds, 2), port=self._config.port)
            self._out.serving(self._config, model, seconds)

    def _on_failed(self, unit: Unit, why: str) -> None:
        log.error("stage cannot start", unit=unit.name, reason=why)
        if not self._served:
            self._give_up(why)

    def _clear_leftovers(self) -> None:
        """Telemetry has read what earlier runs left (it says Ready after that)."""
        for run in housekeeping.leftover_runs(self._config.data_path, self._context.folder.path):
            housekeeping.remove_run(run)

    # --- telling everyone ---------------------------------------------------------------------------

    def _changed(self, unit: Unit) -> None:
        """Record a unit's new state and tell everyone."""
        if unit.replica:
            self._context.journal.append(self._directory.state_record(unit))
        self._control.broadcast(self._directory.message())

    def _send(self, unit: Unit, message: ControlMessage) -> None:
        for stage in unit.processes:
            self._control.send(stage, unit.replica, unit.incarnation, message)

    # --- the end ------------------------------------------------------------------------------------

    def _give_up(self, why: str) -> None:
        """The system cannot start: say why, once, and end."""
        if not self._failure:
            self._failure = why
            self._out.error(why)

    def _advance_shutdown(self) -> bool:
        if self._failure or self._signals > 2:
            self._kill_all()
            return True
        if self._signals > self._signals_obeyed:
            self._signals_obeyed = self._signals
            self._begin_shutdown(forced=self._signals > 1 or not self._served)
        return self._shutdown is not None and self._shutdown.step()

    def _begin_shutdown(self, forced: bool) -> None:
        drain_s = self._config.drain_timeout
        log.info("stopping at once" if forced else "draining", deadline_s=drain_s)
        if forced:
            self._out.step("stopping at once")
            self._shutdown = Shutdown.forced(self._units, self._send)
        else:
            self._out.step(f"draining (at most {drain_s:.0f} s); once more to stop at once")
            self._shutdown = Shutdown.orderly(self._units, drain_s, self._send)
        for unit in self._units:
            if unit.replica:
                self._changed(unit)

    def _kill_all(self) -> None:
        for unit in self._units:
            unit.kill()
