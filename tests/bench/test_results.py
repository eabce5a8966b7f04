from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.results import Arrival, RequestResult, spread


def make_result(*arrivals: tuple[float, int, int], tokens: int | None = None, ended_s: float = 10.0) -> RequestResult:
    return RequestResult(
        sent_s=0.0, ended_s=ended_s, arrivals=[Arrival(*arrival) for arrival in arrivals], usage_tokens=tokens
    )


def test_one_token_per_event():
    result = make_result((1.0, 1, 0), (1.5, 1, 0), (2.5, 1, 0), tokens=3)
    assert result.ttft_s == 1.0
    assert result.inter_token_latencies_s() == [0.5, 1.0]
    assert result.tpot_s == 0.75
    assert result.e2e_s == 10.0


def test_an_event_of_several_tokens_spreads_its_gap():
    result = make_result((1.0, 1, 2), (2.0, 1, 4), tokens=6)
    assert result.inter_token_latencies_s() == [0.25] * 4
    assert result.tpot_s == 0.2


def test_without_ids_the_usage_total_is_spread_evenly():
    assert make_result((1.0, 1, 0), (2.0, 1, 0), (3.0, 1, 0), tokens=9).tokens_per_arrival() == [3, 3, 3]


def test_events_that_came_in_one_read_count_as_one_arrival():
    assert make_result((1.0, 1, 0), (2.0, 2, 0), tokens=3).inter_token_latencies_s() == [0.5, 0.5]


def test_an_arrival_without_a_token_of_its_own_waits_for_the_next():
    result = make_result((1.0, 1, 1), (2.0, 1, 0), (4.0, 1, 1), tokens=2)
    assert result.inter_token_latencies_s() == [3.0]


def test_without_a_usage_block_events_are_tokens():
    assert make_result((1.0, 1, 0), (2.0, 2, 0)).output_tokens == 3


@pytest.mark.parametrize(
    "result", [make_result(), make_result((1.0, 1, 0), tokens=1), make_result((1.0, 1, 0), tokens=5)]
)
def test_no_tpot_where_there_is_no_gap(result):
    assert result.tpot_s is None
    assert result.inter_token_latencies_s() == []


def test_no_ttft_without_an_arrival():
    assert make_result().ttft_s is None


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), min_size=1))
def test_shares_add_up_and_are_fair(total, weights):
    shares = spread(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) <= 1


@given(st.lists(st.integers(1, 50), min_size=1))
def test_a_total_equal_to_the_weights_gives_the_weights(weights):
    assert spread(sum(weights), weights) == weights


@given(st.lists(st.tuples(st.floats(0.001, 1), st.integers(1, 4)), min_size=2), st.data())
def test_inter_token_latencies_add_up_to_the_time_of_the_tokens(steps, data):
    at, arrivals = 0.0, []
    for gap, events in steps:
        at += gap
        arrivals.append((at, events, 0))
    events = sum(events for _, events, _ in arrivals)
    result = make_result(*arrivals, tokens=data.draw(st.integers(events, 4 * events)))
    latencies = result.inter_token_latencies_s()
    assert len(latencies) == result.output_tokens - result.tokens_per_arrival()[0]
    assert sum(latencies) == pytest.approx(arrivals[-1][0] - arrivals[0][0])
