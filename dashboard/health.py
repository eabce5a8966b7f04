"""One word about the system, for the header of every page."""

from __future__ import annotations

import msgspec

from dashboard.live import Live, Snapshot
from engine.messages import Directory
from telemetry.events import ReplicaState, Stage

STALL_LIMIT_S = 30.0
"""Work that has been pending for longer without a step's result is a stall (as ``/health`` of the API says)."""


class Health(msgspec.Struct, frozen=True):
    """One word about the system, and why."""

    level: str  # good, warn, bad, idle
    word: str
    reason: str


def health(live: Live) -> Health:
    """What the pill in the header says. The worst thing wins."""
    directory = live.directory
    if directory is None:
        return Health("idle", "Connecting", "waiting for the supervisor")
    snapshot = live.snapshot()
    return (
        _gateway_trouble(directory)
        or _silence(snapshot)
        or _stall(snapshot)
        or _replica_trouble(directory)
        or _telemetry_trouble(snapshot)
        or Health("good", "Healthy", "all processes beat, all replicas are ready")
    )


def _gateway_trouble(directory: Directory) -> Health | None:
    if directory.gateway:
        return None
    return Health("bad", "No gateway", "the API is not answering: its process is restarting")


def _silence(snapshot: Snapshot) -> Health | None:
    silent = [process for process in snapshot.processes if process.silent]
    if not silent:
        return None
    worst = max(silent, key=lambda process: process.heartbeat_age_s)
    whose = f"{worst.stage} of {worst.replica}" if worst.replica else worst.stage
    return Health("bad", f"{worst.stage} silent", f"the {whose} last beat {worst.heartbeat_age_s:.0f} s ago")


def _stall(snapshot: Snapshot) -> Health | None:
    for replica, load in snapshot.loads.items():
        if load.stalled_s > STALL_LIMIT_S:
            reason = f"work is pending, and no step has ended for {load.stalled_s:.0f} s"
            return Health("bad", f"{replica} stalled", reason)
    return None


def _replica_trouble(directory: Directory) -> Health | None:
    total = len(directory.replicas)
    others = [entry for entry in directory.replicas if entry.state is not ReplicaState.READY]
    if total and not others:
        return None
    reason = "; ".join(f"{entry.replica} is {entry.state}: {entry.reason}" for entry in others)
    level = "warn" if len(others) < total else "bad"
    return Health(level, f"{total - len(others)} of {total} replicas ready", reason or "there is no replica")


def _telemetry_trouble(snapshot: Snapshot) -> Health | None:
    if not any(process.stage is Stage.TELEMETRY for process in snapshot.processes):
        return Health("warn", "Telemetry away", "requests are served; what is shown here is not current")
    if snapshot.degraded:
        troubles = [f"{words} (for {age_s:.0f} s)" for words, age_s in snapshot.degraded.items()]
        return Health("warn", "Telemetry degraded", "; ".join((*troubles, "requests are served")))
    return None
