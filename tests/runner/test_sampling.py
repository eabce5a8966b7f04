from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.runner.sampling.filters import keep_most_likely
from engine.runner.sampling.randomness import uniforms
from engine.runner.sampling.sampler import SamplingRows, sample


def rows(n: int = 1, *, temperature=1.0, top_k=0, top_p=1.0, seed=0, positions=0) -> SamplingRows:
    def column(value, dtype):
        return np.broadcast_to(np.array(value, dtype), n).copy()

    return SamplingRows(
        column(temperature, np.float32),
        column(top_k, np.int64),
        column(top_p, np.float64),
        column(seed, np.uint64),
        column(positions, np.int64),
    )


def kept_by_definition(logits: list[float], top_k: int, top_p: float) -> set[int]:
    """top_k, then top_p over what is left, as the definitions say it: sort, cut, sort, cut."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    weights = np.exp(np.array([logits[i] for i in order], np.float64) - max(logits))
    before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
    return {i for i, mass in zip(order, before, strict=True) if mass < top_p or i == order[0]}


def kept(logits: torch.Tensor, top_k: int, top_p: float) -> set[int]:
    n = len(logits)
    masked = keep_most_likely(logits, torch.full((n,), top_k), torch.full((n,), top_p, dtype=torch.float64))
    return set(torch.isfinite(masked[0]).nonzero().flatten().tolist())


def chi_square_per_degree(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    used = expected > 0
    assert counts[~used].sum() == 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    return float(statistic / (used.sum() - 1))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.7, 12, 1.0), (1.0, 0, 0.8), (1.3, 15, 0.7), (1.0, 1000, 0.5)],
)
def test_draws_have_the_probabilities_that_the_parameters_give(temperature, top_k, top_p):
    n = 20_000
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1))
    scaled = (logits / temperature).double().numpy()
    stay = kept_by_definition(scaled.tolist(), top_k, top_p)
    weights = np.exp(scaled) * [i in stay for i in range(40)]
    params = rows(n, temperature=temperature, top_k=top_k, top_p=top_p, seed=7, positions=np.arange(n))
    ids = sample(logits.expand(n, -1).contiguous(), params)
    counts = np.bincount(ids.numpy(), minlength=40)
    # Mean 1, standard deviation sqrt(2 / degrees): 2.2 lies beyond p = 0.001 for each of these.
    assert chi_square_per_degree(counts, weights / weights.sum()) < 2.2


def test_draws_over_neighbouring_seeds_are_as_good_as_over_positions():
    n = 20_000
    logits = torch.zeros(n, 16)
    counts = np.bincount(sample(logits, rows(n, seed=np.arange(n), positions=5)).numpy(), minlength=16)
    assert chi_square_per_degree(counts, np.full(16, 1 / 16)) < 2.2


def test_uniforms_are_in_range_for_extreme_seeds_and_do_not_repeat():
    seeds = np.repeat(np.array([0, 1, 2**63 - 1], np.uint64), 1000)
    numbers = uniforms(seeds, np.tile(np.arange(1000), 3))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == 3000


# Few distinct values, so that ties at every cut are common.
tied_logits = hnp.arrays(np.float32, st.integers(1, 30), elements=st.integers(-6, 6).map(lambda x: x / 2))


@settings(max_examples=200, deadline=None)
@given(logits=tied_logits, top_k=st.integers(0, 35), top_p=st.sampled_from([0.013, 0.211, 0.517, 0.893, 0.9991, 1.0]))
def test_top_k_and_top_p_keep_what_their_definitions_say(logits, top_k, top_p):
    assert kept(torch.from_numpy(logits)[None], top_k, top_p) == kept_by_definition(logits.tolist(), top_k, top_p)


def test_a_nucleus_wider_than_the_sorted_head_is_found():
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 0.1
    assert kept(logits[None], 0, 0.95) == kept_by_definition(logits.double().tolist(), 0, 0.95)


def test_rows_are_filtered_each_by_its_own_parameters():
    logits = torch.randn(5, 2000, generator=torch.Generator().manual_seed(3))
    top_k, top_p = torch.tensor([0, 3, 0, 40, 3000]), torch.tensor([1.0, 1.0, 0.3, 0.6, 1.0], dtype=torch.float64)
    together = keep_most_likely(logits, top_k, top_p)
    for i in range(5):
        assert torch.equal(together[i], keep_most_likely(logits[i : i + 1], top_k[i : i + 1], top_p[i : i + 1])[0])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1e-45},
        {"temperature": 1e-30},
        {"temperature": 1e-4},
        {"temperature": 1.5, "top_k": 1},
        {"temperature": 1.5, "top_p": 1e-9},
        {"temperature": 1.5, "top_p": 0.0},
    ],
)
def test_ties_go_to_the_lowest_id_whenever_the_choice_is_greedy(params):
    logits = torch.zeros(3, 49_152)
    logits[0, [40_000, 70, 71]] = 5.0
    logits[2, [49_151, 1]] = 1.0
    assert sample(logits, rows(3, **params)).tolist() == [70, 0, 1]


def test_a_very_high_temperature_draws_evenly():
    n = 4000
    logits = torch.linspace(-30, 30, 8).expand(n, -1).contiguous()
    counts = np.bincount(sample(logits, rows(n, temperature=1e6, positions=np.arange(n))).numpy(), minlength=8)
    assert chi_square_per_degree(counts, np.full(8, 1 / 8)) < 2.8


def test_a_draw_depends_on_nothing_but_its_own_row():
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 3000, generator=generator)
    params = rows(
        6,
        temperature=[0, 0.7, 1.0, 1.3, 1.0, 2.0],
        top_k=[0, 5, 0, 0, 700, 0],
        top_p=[1, 1, 0.9, 1, 0.5, 0.99],
        seed=[3, 3, 3, 9, 2**63 - 1, 0],
        positions=[1, 1, 1, 2, 3, 4],
    )
    together = sample(logits, params).tolist()
    shuffled = np.array([4, 2, 5, 0, 1, 3])
    assert sample(logits[shuffled], params.take(shuffled)).tolist() == [together[i] for i in shuffled]
    for i in range(6):
        assert sample(logits[i : i + 1], params.take(np.array([i]))).tolist() == [together[i]]
