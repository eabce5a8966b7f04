from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.events import AttentionWork, ModelWork
from telemetry.step_work import experts_read, step_work

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=6)


def make_work(windows=(0,), **changes):
    values = {
        "flops_per_token": 0,
        "flops_per_logits": 0,
        "weight_bytes": 0,
        "logits_bytes": 0,
        "expert_bytes": 0,
        "expert_share": 1.0,
        "attention": [AttentionWork(1, window, 1, 1) for window in windows],
    }
    return ModelWork(**(values | changes))


def seen(position, window):
    """The positions that a token sees, one by one."""
    return range(0 if not window else max(0, position - window + 1), position + 1)


@given(ROWS, st.integers(0, 12))
def test_attention_is_what_each_token_sees(rows, window):
    starts, num_tokens = zip(*rows, strict=True)
    tokens = [[seen(start + i, window) for i in range(n)] for start, n in rows]
    pairs = sum(len(one) for row in tokens for one in row)
    positions = sum(len(set().union(*row)) for row in tokens)
    work = step_work(make_work([window]), starts, num_tokens, 0)
    assert work.flops == pairs
    assert work.bytes == positions + sum(num_tokens)


@given(ROWS)
def test_a_prompt_in_chunks_is_as_much_work_as_in_one_go(rows):
    work = make_work([0, 5], flops_per_token=7, flops_per_logits=3)
    for start, n in rows:
        whole = step_work(work, [start], [n], 1).flops
        chunks = step_work(work, [start], [n // 2], 0).flops + step_work(work, [start + n // 2], [n - n // 2], 1).flops
        assert chunks == whole


def test_products_count_by_token_and_logits_by_row():
    work = make_work([], flops_per_token=10, flops_per_logits=100, weight_bytes=5, logits_bytes=50)
    assert step_work(work, [0, 9], [4, 1], 1) == (150, 55)
    assert step_work(work, [0], [4], 0) == (40, 5)


def test_experts_are_read_when_somebody_uses_them():
    assert experts_read(0.25, 1) == 0.25
    assert experts_read(0.25, 2) == pytest.approx(1 - 0.75**2)
    assert experts_read(1.0, 1) == 1
    work = make_work([], expert_bytes=1000, expert_share=0.25)
    assert step_work(work, [0], [1], 0).bytes == 250
