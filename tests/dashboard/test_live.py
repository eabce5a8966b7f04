from __future__ import annotations

import time
from pathlib import Path

import pytest

from dashboard.health import health
from dashboard.live import FRESH_S, Live
from telemetry.events import ReplicaState, Stage
from telemetry.gauges import DEGRADED, Gauge, GaugeBoard, GaugePage, PageOwner
from tests.dashboard.factories import World, make_directory


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.add_pages()
    return world


def look(world: World) -> Live:
    """Eyes that have seen nothing before."""
    live = Live(GaugeBoard(world.gauges))
    live.directory = world.live.directory
    return live


def test_a_quiet_system_is_healthy(world: World) -> None:
    assert health(look(world)).level == "good"


def test_before_the_supervisor_speaks_nothing_is_known(world: World) -> None:
    live = look(world)
    live.directory = None
    assert health(live).level == "idle"


def test_a_silent_stage_is_named(world: World) -> None:
    world.pages["r0", Stage.RUNNER].set(Gauge.HEARTBEAT_NS, time.monotonic_ns() - 12_000_000_000)
    found = health(look(world))
    assert (found.level, found.word) == ("bad", "runner silent")
    assert "the runner of r0 last beat 12 s ago" in found.reason


def test_a_stage_that_is_loading_may_be_silent(world: World) -> None:
    page = world.pages["r0", Stage.RUNNER]
    page.set(Gauge.READY, 0)
    page.set(Gauge.HEARTBEAT_NS, time.monotonic_ns() - 60_000_000_000)
    assert health(look(world)).level == "good"


def test_work_without_steps_is_a_stall(world: World) -> None:
    world.pages["r0", Stage.SCHEDULER].set(Gauge.PENDING_SINCE_NS, time.monotonic_ns() - 40_000_000_000)
    assert health(look(world)).word == "r0 stalled"


def test_replicas_that_are_not_ready_are_counted(world: World) -> None:
    live = look(world)
    live.directory = make_directory(state=ReplicaState.UNHEALTHY)
    assert (health(live).level, health(live).word) == ("bad", "0 of 1 replicas ready")


@pytest.mark.parametrize("gauge", list(DEGRADED))
def test_telemetry_trouble_is_a_warning(world: World, gauge: Gauge) -> None:
    world.pages["", Stage.TELEMETRY].set(gauge, time.monotonic_ns() - 12_300_000_000)
    found = health(look(world))
    assert (found.level, found.word) == ("warn", "Telemetry degraded")
    assert f"{DEGRADED[gauge]} (for 12 s)" in found.reason


def test_telemetry_away_is_a_warning(world: World) -> None:
    world.pages["", Stage.TELEMETRY].path.unlink()
    assert health(look(world)).word == "Telemetry away"


def test_queues_are_what_was_sent_and_not_taken(world: World) -> None:
    link = GaugePage(world.gauges / "gateway.1-r0.1.gauges", PageOwner(Stage.GATEWAY, "", 1, 1, "r0.1"))
    link.set(Gauge.SENT_TOKENIZER, 9)
    link.set(Gauge.TAKEN, 2)
    world.pages["r0", Stage.TOKENIZER].set(Gauge.TAKEN, 4)
    world.pages["r0", Stage.DETOKENIZER].set(Gauge.SENT_GATEWAY, 5)
    depths = {process.stage: process.queue_depth for process in look(world).snapshot().processes}
    assert depths[Stage.TOKENIZER] == 5
    assert depths[Stage.GATEWAY] == 3
    assert depths[Stage.TELEMETRY] is None


def test_busy_is_the_share_since_the_last_look(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic_ns()
    monkeypatch.setattr("dashboard.live.time.monotonic_ns", lambda: now)
    live = look(world)
    assert live.snapshot().processes[0].busy is None
    now += int(2 * FRESH_S * 1e9)
    world.pages["r0", Stage.RUNNER].add(Gauge.BUSY_NS, int(FRESH_S * 1e9))
    busy = {process.stage: process.busy for process in live.snapshot().processes}
    assert busy[Stage.RUNNER] == pytest.approx(0.5)


def test_looks_in_quick_succession_share_a_snapshot(world: World) -> None:
    live = look(world)
    assert live.snapshot() is live.snapshot()
