from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config import Config
from engine.gateway.health import HealthCheck, HealthReport
from engine.messages import Directory, ReplicaEntry
from engine.run_folder import process_name
from telemetry.events import REPLICA_STAGES, ReplicaState, Stage
from telemetry.gauges import DEGRADED, SUFFIX, Gauge, GaugeBoard, GaugePage, PageOwner
from tests.gateway.conftest import MakeRig

S = 1_000_000_000


class World:
    """Pages of a telemetry process and of some replicas, all well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[ReplicaEntry] = []
        self.pages: dict[tuple[str, Stage], GaugePage] = {}
        self.telemetry = self.page("", Stage.TELEMETRY)
        self.add("r0")

    def add(self, name: str, state: ReplicaState = ReplicaState.READY) -> None:
        self.entries.append(ReplicaEntry(name, 1, state, "because", 0, 0, {}))
        for stage in REPLICA_STAGES:
            self.pages[name, stage] = self.page(name, stage)

    def page(self, replica: str, stage: Stage) -> GaugePage:
        page = GaugePage(self.folder / (process_name(stage, replica, 1) + SUFFIX), PageOwner(stage, replica, 1, 1))
        page.beat()
        return page

    def report(self, draining: bool = False, **settings: Any) -> HealthReport:
        engine: Any = SimpleNamespace(directory=Directory(1, "", self.entries))
        return HealthCheck(GaugeBoard(self.folder), engine, Config(**settings)).report(draining)

    def stuck(self, step_age_s: float, predicted_s: float = 0, pending: bool = True) -> None:
        now = time.monotonic_ns()
        self.pages["r0", Stage.RUNNER].set(Gauge.STEP_STARTED_NS, now - int(step_age_s * S))
        self.pages["r0", Stage.RUNNER].set(Gauge.STEP_PREDICTED_NS, int(predicted_s * S))
        self.pages["r0", Stage.SCHEDULER].set(Gauge.PENDING_SINCE_NS, now - int(step_age_s * S) if pending else 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_all_is_well(world: World) -> None:
    assert world.report() == HealthReport("ok", [])


def test_draining_is_said_and_is_not_ill_health(world: World) -> None:
    report = world.report(draining=True)
    assert (report.status, report.http_status) == ("draining", 200)


@pytest.mark.parametrize("stage", REPLICA_STAGES)
def test_a_silent_stage_is_unhealthy_and_named(world: World, stage: Stage) -> None:
    world.pages["r0", stage].set(Gauge.HEARTBEAT_NS, time.monotonic_ns() - 4 * S)
    report = world.report()
    assert (report.status, report.http_status) == ("unhealthy", 503)
    assert f"r0 {stage}" in report.reasons[0]


def test_a_stage_without_a_page_is_unhealthy(world: World) -> None:
    world.pages["r0", Stage.RUNNER].path.unlink()
    assert world.report().status == "unhealthy"


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.UNHEALTHY, ReplicaState.STOPPED])
def test_no_ready_replica_is_unhealthy_with_the_supervisors_reason(world: World, state: ReplicaState) -> None:
    world.entries.clear()
    assert world.report().reasons == ["there is no replica"]
    world.add("r0", state)
    assert world.report() == HealthReport("unhealthy", [f"replica r0 is {state}: because"])


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda w: w.stuck(29), "ok"),
        (lambda w: w.stuck(31), "unhealthy"),
        (lambda w: w.stuck(31, pending=False), "ok"),
        (lambda w: w.stuck(90, predicted_s=10), "ok"),
        (lambda w: w.stuck(101, predicted_s=10), "unhealthy"),
    ],
)
def test_a_step_may_take_long_but_not_for_ever(world: World, change: Callable[[World], None], status: str) -> None:
    change(world)
    assert world.report().status == status


def test_work_without_any_step_is_unhealthy(world: World) -> None:
    world.pages["r0", Stage.SCHEDULER].set(Gauge.PENDING_SINCE_NS, time.monotonic_ns() - 31 * S)
    assert world.report().status == "unhealthy"


def test_one_healthy_replica_is_enough_to_be_only_degraded(world: World) -> None:
    world.add("r1", ReplicaState.UNHEALTHY)
    report = world.report()
    assert (report.status, report.http_status) == ("degraded", 200)
    assert "r1" in report.reasons[0]


@pytest.mark.parametrize("gauge", [*DEGRADED, Gauge.HEARTBEAT_NS])
def test_telemetrys_trouble_is_degraded(world: World, gauge: Gauge) -> None:
    world.telemetry.set(gauge, time.monotonic_ns() - 12 * S)
    report = world.report()
    assert (report.status, report.http_status, len(report.reasons)) == ("degraded", 200, 1)
    assert DEGRADED.get(gauge, "telemetry") in report.reasons[0] and "12" in report.reasons[0]
    assert world.report(telemetry="off").status == "ok"


async def test_health_is_answered_as_json(make_rig: MakeRig) -> None:
    rig = await make_rig()
    response = await rig.client.get("/health")
    assert response.status_code == 503
    assert response.json() == {"status": "unhealthy", "reasons": ["there is no replica"]}
    assert (await rig.client.head("/health")).status_code == 503
