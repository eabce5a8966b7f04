from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.waterfall import MAX_SEQUENCES, Waterfall, draw
from tests.dashboard.factories import make_refused, make_request, make_sequence, make_unfinished

seconds = st.floats(1e-6, 100)


def lane(drawing: Waterfall, label: str) -> list[tuple[float, float]]:
    return [(bar.x, bar.x + bar.width) for one in drawing.lanes if one.label == label for bar in one.bars]


@given(tokenize=seconds, queue=seconds, prefill=seconds, decode=seconds)
def test_bars_lie_on_the_time_line_in_the_order_of_stages(
    tokenize: float, queue: float, prefill: float, decode: float
) -> None:
    row = make_request("r", 0, tokenize_s=tokenize, queue_s=queue, prefill_s=prefill, decode_s=decode)
    drawing = draw(row, [make_sequence(row)], 0)
    for one in drawing.lanes:
        for bar in one.bars:
            assert 0 <= bar.x <= 100
            assert 0 < bar.width <= 100.001 - bar.x
    starts = [min(lane(drawing, label))[0] for label in ("request", "tokenize", "queue", "prefill", "decode")]
    assert all(a <= b + 0.001 for a, b in itertools.pairwise(starts))


@given(total=st.floats(1e-4, 1e4))
def test_the_axis_has_a_readable_number_of_marks(total: float) -> None:
    drawing = draw(make_request("r", 0, sent_at=total), [], 0)
    assert 3 <= len(drawing.ticks) <= 9
    assert all(0 <= tick.x <= 93.01 for tick in drawing.ticks)


def test_preemption_splits_decode() -> None:
    row = make_request("r", 0, preempted_s=0.4, decode_s=1.0)
    first = row["first_sampled_at"]
    sequence = make_sequence(row, waits=[[first + 0.3, "preempted"], [first + 0.7, ""]])
    drawing = draw(row, [sequence], 0)
    (a, b), (c, d) = lane(drawing, "decode")
    assert a < b < c < d
    assert (b, c) in [pytest.approx(bar, abs=0.01) for bar in lane(drawing, "queue")]


def test_a_running_request_ends_now() -> None:
    drawing = draw(make_unfinished("r", 0, "running"), [], 3.0)
    assert drawing.total_s == 3.0
    assert lane(drawing, "decode")[0][1] == pytest.approx(100, abs=0.01)
    assert not lane(drawing, "drain")


def test_a_waiting_request_has_only_a_queue() -> None:
    drawing = draw(make_unfinished("r", 0, "waiting"), [], 1.0)
    assert [one.label for one in drawing.lanes] == ["request", "tokenize", "queue"]


def test_a_refused_request_can_be_drawn() -> None:
    assert [one.label for one in draw(make_refused("r", 0), [], 0).lanes] == ["request", "tokenize"]


def test_many_sequences_are_cut_and_counted() -> None:
    row = make_request("r", 0)
    drawing = draw(row, [make_sequence(row, i) for i in range(MAX_SEQUENCES + 3)], 0)
    assert drawing.left_out == 3
    assert f"decode #{MAX_SEQUENCES - 1}" in [one.label for one in drawing.lanes]
