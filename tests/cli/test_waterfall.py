from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.commands.waterfall import STAGE_STYLES, Lane, draw, lanes
from tests.cli.factories import make_request, make_sequence


def test_a_finished_request_shows_its_stages_in_the_order_of_time():
    bars = lanes(make_request(), [make_sequence()])
    assert [bar.label for bar in bars] == ["tokenize", "queue", "prefill", "decode", "detokenize", "drain"]
    assert [bar.took_s for bar in bars if bar.label == "decode"] == [0.4]
    assert [bar.label for bar in bars if bar.faint] == ["detokenize"]


def test_several_sequences_are_numbered():
    labels = [bar.label for bar in lanes(make_request(), [make_sequence(idx=0), make_sequence(idx=1)])]
    assert labels.count("queue #0") == labels.count("queue #1") == 1


def test_a_request_shows_as_far_as_it_got():
    waiting = make_request(scheduled_at=None, first_sampled_at=None, last_sampled_at=None, sent_at=None)
    assert [bar.label for bar in lanes(waiting, [])] == ["tokenize"]


def test_bars_lie_where_their_time_is():
    lines = draw([Lane("a", "queue", 0.0, 0.5, 0.5), Lane("b", "decode", 0.5, 1.0, 0.5)], 1.0, width=10)
    assert [line.plain for line in lines] == ["a  █████         500 ms", "b       █████    500 ms"]


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), max_size=8), st.floats(0, 2), st.integers(1, 80))
def test_every_bar_is_seen_and_none_leaves_its_line(times, total_s, width):
    part = next(iter(STAGE_STYLES))
    bars = [Lane("x", part, min(pair), max(pair), 0.001) for pair in times]
    for line in draw(bars, total_s, width):
        assert line.plain.count("█") >= 1
        assert len(line.plain) == len("x  ") + width + 10
