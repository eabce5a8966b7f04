from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.history import History
from dashboard.objectives import Tile, tiles
from dashboard.series import CHARTS, MAX_POINTS, columns
from dashboard.store import Store
from engine.config import Config
from tests.dashboard.factories import World, make_sample


def sample(ts: int, **values: float | None) -> tuple[int, dict[str, float | None]]:
    return ts, values


def tile(name: str, *samples: tuple[int, dict[str, float | None]]) -> Tile:
    return next(one for one in tiles(samples, "last hour", Config()) if one.name == name)


@given(st.lists(st.integers(0, 3599), unique=True), st.sampled_from([300, 900, 3600]))
def test_columns_are_of_one_length_and_in_order(seconds: list[int], window: int) -> None:
    table = columns([(ts, make_sample(ts)["values"]) for ts in sorted(seconds) if ts < window], window)
    assert {len(column) for column in table.values()} == {len(table["ts"])}
    assert len(table["ts"]) <= MAX_POINTS
    assert table["ts"] == sorted(set(table["ts"]))


def test_a_point_keeps_the_worst_latency_and_the_mean_rate() -> None:
    table = columns([sample(i, ttft_p95_s=i, generation_tokens=i) for i in range(12)], 3600)
    assert table["ttft_p95"] == [11]
    assert table["tokens_out"] == [5.5]


def test_no_value_is_none_and_not_zero() -> None:
    table = columns([sample(0, ttft_p50_s=None, prefix_hit_rate=None)], 300)
    assert (table["ttft_p50"], table["hit_rate"]) == ([None], [None])


def test_every_line_reads_a_key_that_samples_have() -> None:
    known = set(make_sample(0)["values"])
    assert {line.sample for chart in CHARTS for line in chart.lines} <= known


@pytest.mark.parametrize(("late", "level"), [(0, "good"), (4, "warn"), (6, "bad")])
def test_burn_is_the_share_of_what_may_be_missed(late: int, level: str) -> None:
    found = tile("First token", *(sample(i, ttft_p95_s=2.0 if i < late else 0.1) for i in range(100)))
    assert found.burn == pytest.approx(late / 5)
    assert found.level == level
    assert found.value == 0.1


def test_over_the_objective_now_is_at_risk() -> None:
    assert tile("Between tokens", *(sample(i, itl_p95_s=0.01 if i < 99 else 0.4) for i in range(100))).level == "warn"


def test_errors_are_counted_over_the_window() -> None:
    found = tile("Errors", sample(0, requests_finished=50, requests_errors=1), sample(1, requests_finished=50))
    assert found.value == 0.01
    assert "1 of 100 requests in the last hour" in found.words


def test_without_traffic_nothing_is_judged() -> None:
    assert {one.level for one in tiles([sample(0, running=0)], "last hour", Config())} == {"idle"}


def test_history_reads_only_what_is_new(tmp_path: Path) -> None:
    world = World(tmp_path)
    now = int(world.now)
    world.add("samples", *(make_sample(now - i) for i in range(10)))
    history = History(Store(world.data))
    assert [ts for ts, _ in history.since(now - 5)] == list(range(now - 5, now + 1))
    world.add("samples", make_sample(now, running=99), make_sample(now + 1))
    again = history.since(now - 100)
    assert [ts for ts, _ in again] == list(range(now - 9, now + 2))
    assert dict(again)[now]["running"] == 99


def test_mistakes_of_clients_do_not_burn_the_error_objective() -> None:
    found = tile("Errors", sample(0, requests_finished=30, requests_errors=0, requests_refused=20))
    assert (found.value, found.burn) == (0, 0)
    assert "0 of 10 requests" in found.words and "20 more were refused" in found.words


def test_what_tokens_cost_is_a_tile_only_where_a_price_is_known() -> None:
    samples = [sample(0, cost_output=1.234, cost_total=0.5)]
    assert len(tiles(samples, "last hour", Config())) == 4
    cost = tiles(samples, "last hour", Config(price_per_hour=2.5))[4]
    assert (cost.name, cost.value, cost.level) == ("Cost", 1.234, "idle")
    assert "2.5 per replica and hour" in cost.words and "0.5." in cost.words
    assert tiles([sample(0)], "last hour", Config(price_per_hour=2.5))[4].value is None
