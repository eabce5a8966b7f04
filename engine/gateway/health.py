"""``/health``: does the engine make progress? Told from the gauge pages, without asking anyone.

A replica is healthy when its stages beat and its running step is not far older than it was expected to
become. Long prefills are progress: what counts is the step, not its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from engine.config import Config
from engine.gateway.engine_client import EngineClient
from engine.messages import ReplicaEntry
from telemetry.events import REPLICA_STAGES, ReplicaState, Stage
from telemetry.gauges import DEGRADED, Gauge, GaugeBoard, GaugeReader

OLDEST_BEAT_S = 3.0
SLOWEST_STEP_S = 30.0
STEP_FACTOR = 10
"""A step is stuck when it is older than ``SLOWEST_STEP_S`` and than this many times its predicted time."""


class HealthReport(msgspec.Struct, frozen=True):
    """``status`` is one of four.

    "ok", "draining" (running requests are finished, new ones refused), "degraded" (all requests can be served,
    something else is wrong), "unhealthy" (no replica makes progress).
    """

    status: str
    reasons: list[str]

    @property
    def http_status(self) -> int:
        """503 when unhealthy, else 200."""
        return 503 if self.status == "unhealthy" else 200


class HealthCheck:
    """Looks at all processes of the run."""

    def __init__(self, board: GaugeBoard, engine: EngineClient, config: Config) -> None:
        self._board = board
        self._engine = engine
        self._config = config

    def report(self, draining: bool) -> HealthReport:
        """The state of things now."""
        pages = self._board.pages()
        complaints = {entry.replica: self._replica(entry, pages) for entry in self._engine.directory.replicas}
        reasons = [reason for found in complaints.values() for reason in found]
        if all(complaints.values()):  # also when there is no replica at all
            return HealthReport("unhealthy", reasons or ["there is no replica"])
        if draining:
            return HealthReport("draining", ["the server is shutting down", *reasons])
        reasons += self._telemetry(pages)
        return HealthReport("degraded" if reasons else "ok", reasons)

    def _replica(self, entry: ReplicaEntry, pages: list[GaugeReader]) -> list[str]:
        if entry.state not in (ReplicaState.READY, ReplicaState.DRAINING):
            return [f"replica {entry.replica} is {entry.state}: {entry.reason}"]
        own = {
            page.owner.stage: page
            for page in pages
            if (page.owner.replica, page.owner.incarnation, page.owner.peer) == (entry.replica, entry.incarnation, "")
        }
        beats = [_silence(f"{entry.replica} {stage}", own.get(stage)) for stage in REPLICA_STAGES]
        return [reason for reason in (*beats, _stuck(entry.replica, own)) if reason]

    def _telemetry(self, pages: list[GaugeReader]) -> Iterator[str]:
        if self._config.telemetry == "off":
            return
        own = [page for page in pages if page.owner.stage is Stage.TELEMETRY]
        latest = max(own, key=lambda page: page.owner.incarnation, default=None)
        if reason := _silence("telemetry", latest):
            yield reason
        elif latest is not None:
            for gauge, words in DEGRADED.items():
                if since_ns := latest.get(gauge):
                    yield f"{words} (for {(time.monotonic_ns() - since_ns) / 1e9:.0f} s)"


def _silence(name: str, page: GaugeReader | None) -> str:
    if page is None:
        return f"{name} is not running"
    age_s = page.heartbeat_age_s()
    return f"{name} has not given a sign of life for {age_s:.1f} s" if age_s > OLDEST_BEAT_S else ""


def _stuck(replica: str, pages: dict[Stage, GaugeReader]) -> str:
    """Whether the running step, or work without any step, is older than can be."""
    runner, scheduler = pages.get(Stage.RUNNER), pages.get(Stage.SCHEDULER)
    if runner is None or scheduler is None:
        return ""
    pending_since_ns = scheduler.get(Gauge.PENDING_SINCE_NS)
    if not pending_since_ns:
        return ""
    started_ns = runner.get(Gauge.STEP_STARTED_NS) or pending_since_ns
    age_s = (time.monotonic_ns() - max(started_ns, pending_since_ns)) / 1e9
    limit_s = max(SLOWEST_STEP_S, STEP_FACTOR * runner.get(Gauge.STEP_PREDICTED_NS) / 1e9)
    return f"{replica} runner has been in one step for {age_s:.0f} s" if age_s > limit_s else ""
