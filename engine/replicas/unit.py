"""A unit: processes that start, fail and restart together under one incarnation number.

The gateway, the telemetry process and the dashboard are units of one stage; a replica is a unit of four.
"""

from __future__ import annotations

import time

from engine.messages import Ready
from engine.replicas.launchers.local import LocalLauncher, LocalProcess
from telemetry.events import Compute, ReplicaState, Stage

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 10.0
HEALTHY_AFTER_S = 5.0
"""A unit that was ready for this long starts over with the first backoff when it fails."""


class Unit:
    """State of one unit. It knows how to start and kill its processes; when to do so, the supervisor decides."""

    def __init__(self, name: str, stages: tuple[Stage, ...], replica: str = "", listen_fd: int | None = None) -> None:
        self.name = name
        self.stages = stages
        self.replica = replica
        self.incarnation = 0
        self.state = ReplicaState.STOPPED
        self.reason = "not started yet"
        self.since_ns = time.monotonic_ns()
        self.restarts = 0
        self.processes: dict[Stage, LocalProcess] = {}
        self.ready: set[Stage] = set()
        self.facts: dict[str, str] = {}  # what its stages have said with Ready
        self.compute: Compute | None = None  # what its runner has said
        self.start_at_ns: int | None = None  # when the next incarnation is due; None: not wanted
        self._listen_fd = listen_fd
        self._backoff_s = FIRST_BACKOFF_S

    @property
    def alive(self) -> bool:
        """Whether processes of the unit are running (starting, ready or draining)."""
        return bool(self.processes)

    def start(self, launcher: LocalLauncher) -> None:
        """Start the next incarnation."""
        self.incarnation += 1
        self.start_at_ns = None
        self.ready.clear()
        for stage in self.stages:
            self.processes[stage] = launcher.start(stage, self.replica, self.incarnation, self._listen_fd)
        self.set_state(ReplicaState.STARTING, "first start" if self.incarnation == 1 else "restart")

    def mark_ready(self, stage: Stage, message: Ready) -> bool:
        """A stage said Ready. True when that makes the unit ready."""
        self.ready.add(stage)
        self.facts.update(message.facts)
        self.compute = message.compute or self.compute
        if len(self.ready) < len(self.stages):
            return False
        self.set_state(ReplicaState.READY, f"all {len(self.stages)} stages ready" if self.replica else "ready")
        return True

    def fail(self, reason: str) -> float:
        """Kill what is left and plan a restart; returns the backoff in seconds."""
        if self.state is ReplicaState.READY and self.age_s() >= HEALTHY_AFTER_S:
            self._backoff_s = FIRST_BACKOFF_S
        backoff_s = self._backoff_s
        self._backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
        self.kill()
        self.restarts += 1
        self.start_at_ns = time.monotonic_ns() + int(backoff_s * 1e9)
        self.set_state(ReplicaState.UNHEALTHY, reason)
        return backoff_s

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.processes.values():
            process.kill()
        self.processes.clear()
        self.ready.clear()

    def dead(self) -> list[LocalProcess]:
        """Processes that have ended."""
        return [process for process in self.processes.values() if process.exit_code() is not None]

    def age_s(self) -> float:
        """Seconds in the present state."""
        return (time.monotonic_ns() - self.since_ns) / 1e9

    def set_state(self, state: ReplicaState, reason: str) -> None:
        """Move to `state`."""
        self.state = state
        self.reason = reason
        self.since_ns = time.monotonic_ns()
