"""The orderly end, one phase after another.

::

    drain the gateway ─▶ stop gateway, dashboard ─▶ stop replicas ─▶ stop telemetry ─▶ over
    (running requests     (they have nothing         (nobody asks       (reads every journal
     get their time)       left to serve)             them any more)     to its end, flushes)

A second signal leaves out the draining and kills the replicas; a third kills everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.messages import ControlMessage, Drain, Stop
from engine.replicas.unit import Unit
from telemetry.events import ReplicaState, Stage

DRAIN_GRACE_S = 2.0
STOP_TIMEOUT_S = 5.0
TELEMETRY_TIMEOUT_S = 10.0
FORCED_STOP_TIMEOUT_S = 1.2


class Phase:
    """Some units get a message; the phase is over when they say or do what is expected, or its time is up."""

    def __init__(self, units: list[Unit], message: ControlMessage, timeout_s: float) -> None:
        self.units = units
        self.message = message
        self.deadline_ns = 0
        self._timeout_s = timeout_s

    def enter(self, send: Callable[[Unit, ControlMessage], None]) -> None:
        """Send the message and start the clock."""
        self.deadline_ns = time.monotonic_ns() + int(self._timeout_s * 1e9)
        for unit in self.units:
            unit.start_at_ns = None  # nothing is restarted from now on
            send(unit, self.message)

    def over(self, drained: bool) -> bool:
        """Whether the next phase may begin."""
        if time.monotonic_ns() >= self.deadline_ns:
            return True
        if isinstance(self.message, Drain):
            return drained or not any(unit.alive for unit in self.units)
        return not any(unit.alive for unit in self.units)


class Shutdown:
    """Walks through the phases. `step` is called on every turn of the supervisor's loop."""

    def __init__(self, phases: list[Phase], send: Callable[[Unit, ControlMessage], None]) -> None:
        self.drained = False
        self._phases = phases
        self._send = send
        self._phases[0].enter(send)

    @classmethod
    def orderly(cls, units: list[Unit], drain_s: float, send: Callable[[Unit, ControlMessage], None]) -> Shutdown:
        """Running requests get `drain_s` seconds to finish."""
        gateway = [unit for unit in units if Stage.GATEWAY in unit.stages]
        fronts, replicas, telemetry = _by_part(units)
        for replica in replicas:
            if replica.state is ReplicaState.READY:
                replica.set_state(ReplicaState.DRAINING, "shutting down")
        deadline_ns = time.monotonic_ns() + int(drain_s * 1e9)
        phases = [
            Phase(gateway, Drain(deadline_ns), drain_s + DRAIN_GRACE_S),
            Phase(fronts, Stop(), STOP_TIMEOUT_S),
            Phase(replicas, Stop(), STOP_TIMEOUT_S),
            Phase(telemetry, Stop(), TELEMETRY_TIMEOUT_S),
        ]
        return cls(phases, send)

    @classmethod
    def forced(cls, units: list[Unit], send: Callable[[Unit, ControlMessage], None]) -> Shutdown:
        """Nothing is waited for but the words "it ended": to the clients, and into the store."""
        fronts, replicas, telemetry = _by_part(units)
        for replica in replicas:
            replica.kill()
            replica.set_state(ReplicaState.STOPPED, "stopped at once")
        phases = [Phase(fronts, Stop(), FORCED_STOP_TIMEOUT_S), Phase(telemetry, Stop(), FORCED_STOP_TIMEOUT_S)]
        return cls(phases, send)

    def was_told_to_stop(self, unit: Unit) -> bool:
        """Whether the unit's end is expected by now."""
        return bool(self._phases) and isinstance(self._phases[0].message, Stop) and unit in self._phases[0].units

    def tell_latecomer(self, unit: Unit) -> None:
        """A process has only dialled in now: it has not heard the phase's message."""
        if self._phases and unit in self._phases[0].units:
            self._send(unit, self._phases[0].message)

    def step(self) -> bool:
        """Go on as far as possible; True when everything is over."""
        while self._phases and self._phases[0].over(self.drained):
            for unit in self._phases[0].units:
                if isinstance(self._phases[0].message, Stop):
                    unit.kill()
            del self._phases[0]
            if self._phases:
                self._phases[0].enter(self._send)
        return not self._phases


def _by_part(units: list[Unit]) -> tuple[list[Unit], list[Unit], list[Unit]]:
    """(gateway and dashboard, replicas, telemetry)."""
    replicas = [unit for unit in units if unit.replica]
    telemetry = [unit for unit in units if Stage.TELEMETRY in unit.stages]
    return [unit for unit in units if unit not in replicas + telemetry], replicas, telemetry
