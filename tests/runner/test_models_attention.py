"""Paged attention with windows, softcap and scale against a few lines that anybody can check."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import SamplingParams, SlotStart, StepPlan
from engine.model_shape import ModelShape
from engine.runner.attention.paged import PagedAttention
from engine.runner.attention.spec import FULL_ATTENTION, AttentionSpec
from engine.runner.kv_cache import KVCache
from engine.runner.slots import SlotTable
from engine.runner.step_batch import prepare

HEADS, KV_HEADS, HEAD_DIM, LONGEST = 4, 2, 8, 40
SHAPE = ModelShape("X", 1, HEADS * HEAD_DIM, 1, HEADS, KV_HEADS, HEAD_DIM, 1, LONGEST, ())


def by_definition(query, keys, values, spec: AttentionSpec) -> torch.Tensor:
    """One row, one head at a time: ``[n, heads, head_dim]`` in, ``[n, num_heads · head_dim]`` out."""
    n = len(query)
    out = torch.empty_like(query)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        for i in range(n):
            first = 0 if spec.window is None else max(0, i - spec.window + 1)
            scores = keys[first : i + 1, kv] @ query[i, head] * (spec.scale or 1 / math.sqrt(HEAD_DIM))
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            out[i, head] = scores.softmax(0) @ values[first : i + 1, kv]
    return out.flatten(1)


def random_rows(lengths: list[int], seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(3 * torch.randn(n, heads, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))
        for n in lengths
    ]


def run(rows, steps: list[list[int]], specs: list[AttentionSpec], block_size: int) -> list[list[torch.Tensor]]:
    """Outputs per spec and row, everything else in the cache being not a number."""
    per_row = -(-LONGEST // block_size)
    table = SlotTable(len(rows), per_row, block_size)
    caches = [KVCache(SHAPE, len(rows) * per_row, block_size, torch.float32, torch.device("cpu")) for _ in specs]
    for cache in caches:
        cache.layers[0].fill_(float("nan"))
    done = [0] * len(rows)
    found = [[[] for _ in rows] for _ in specs]
    for counts in steps:
        here = [i for i, count in enumerate(counts) if count]
        plan = StepPlan(
            step_id=0,
            predicted_ns=0,
            starting=[SlotStart(i, 0, 1, SamplingParams()) for i in here if not done[i]],
            slots=here,
            starts=[done[i] for i in here],
            num_tokens=[counts[i] for i in here],
            samples=[False] * len(here),
            new_blocks=[[] if done[i] else list(range(i * per_row, (i + 1) * per_row))[::-1] for i in here],
            token_ids=[0] * sum(counts),
        )
        batch = prepare(plan, table)
        flat = [torch.cat([rows[i][part][done[i] : done[i] + counts[i]] for i in here]) for part in range(3)]
        for spec, cache, outputs in zip(specs, caches, found, strict=True):
            out = PagedAttention(cache, batch, table)(0, *flat, spec)
            for i, part in zip(here, out.split(plan.num_tokens), strict=True):
                outputs[i].append(part)
        done = [at + count for at, count in zip(done, counts, strict=True)]
    return [[torch.cat(parts) for parts in outputs] for outputs in found]


SPECS = [
    FULL_ATTENTION,
    AttentionSpec(window=1),
    AttentionSpec(window=5),
    AttentionSpec(window=LONGEST),
    AttentionSpec(scale=0.1),
    AttentionSpec(softcap=2.0),
    AttentionSpec(window=3, softcap=2.0, scale=0.7),
]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), block_size=st.sampled_from([1, 4, 7]), seed=st.integers(0, 1000))
def test_any_split_into_steps_sees_exactly_its_window(data, block_size, seed):
    lengths = data.draw(st.lists(st.integers(1, LONGEST), min_size=1, max_size=3))
    rows = random_rows(lengths, seed)
    left, steps = list(lengths), []
    while any(left):
        steps.append([data.draw(st.integers(0, n)) for n in left])
        if not any(steps[-1]):
            steps[-1] = list(left)
        left = [n - count for n, count in zip(left, steps[-1], strict=True)]
    for spec, found in zip(SPECS, run(rows, steps, SPECS, block_size), strict=True):
        for row, out in zip(rows, found, strict=True):
            # Scores reach a hundred, where float32 is exact to 1e-5; a wrong position makes a difference of 0.1.
            torch.testing.assert_close(out, by_definition(*row, spec), atol=1e-4, rtol=0)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_tokens_outside_the_window_make_no_difference_and_the_last_inside_does(spec):
    (row,) = random_rows([20])
    steps = [[12]] + [[1]] * 8
    visible = 20 if spec.window is None else min(20, spec.window)
    for changed, differs in ((20 - visible, True), (20 - visible - 1, False)):
        if changed < 0:
            continue
        other = tuple(t.clone() for t in row)
        other[1][changed] += 1
        other[2][changed] += 1
        a, b = (run([r], steps, [spec], 4)[0][0][-1] for r in (row, other))
        assert torch.equal(a, b) is not differs


def test_layers_with_equal_windows_share_a_plan():
    table = SlotTable(1, 2, 4)
    plan = StepPlan(0, 0, [SlotStart(0, 0, 1, SamplingParams())], [0], [0], [3], [False], [[0]], [0, 0, 0])
    cache = KVCache(SHAPE, 2, 4, torch.float32, torch.device("cpu"))
    attention = PagedAttention(cache, prepare(plan, table), table)
    (row,) = random_rows([3])
    for spec in (AttentionSpec(2), AttentionSpec(2, softcap=1.0), FULL_ATTENTION, AttentionSpec(scale=2.0)):
        attention(0, *row, spec)
    assert list(attention._plans) == [2, None]
