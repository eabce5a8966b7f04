from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.runner.sampling.draw import draw
from engine.runner.sampling.filters import Filters, drop_unlikely
from engine.runner.sampling.randomness import uniforms
from engine.runner.sampling.sampler import SamplingRows, sample
from tests.runner.sampling_reference import kept_tokens, surprise


def column(value, dtype, n: int) -> np.ndarray:
    return np.broadcast_to(np.array(value, dtype), n).copy()


def filters(n: int = 1, *, top_k=0, top_p=1.0, min_p=0.0) -> Filters:
    return Filters(column(top_k, np.int64, n), column(top_p, np.float64, n), column(min_p, np.float64, n))


def rows(n: int = 1, *, temperature=1.0, seed=0, positions=0, **filter_params) -> SamplingRows:
    return SamplingRows(
        column(temperature, np.float32, n),
        filters(n, **filter_params),
        column(seed, np.uint64, n),
        column(positions, np.int64, n),
    )


def filtered(logits: torch.Tensor, params: Filters) -> torch.Tensor:
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    drop_unlikely(weights, logits, params)
    return weights


def kept(logits: torch.Tensor, **filter_params) -> set[int]:
    return set(filtered(logits, filters(len(logits), **filter_params))[0].nonzero().flatten().tolist())


def test_draws_over_neighbouring_seeds_are_as_good_as_over_positions():
    n = 20_000
    logits = torch.zeros(n, 16)
    counts = np.bincount(sample(logits, rows(n, seed=np.arange(n), positions=5)).numpy(), minlength=16)
    assert surprise(counts, np.full(16, 1 / 16)) < 3.1


def test_uniforms_are_in_range_for_extreme_seeds_and_do_not_repeat():
    seeds = np.repeat(np.array([0, 1, 2**63 - 1], np.uint64), 1000)
    numbers = uniforms(seeds, np.tile(np.arange(1000), 3))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == 3000


# Few distinct values, so that ties at every cut are common. Shares and masses that no such logits give exactly.
tied_logits = hnp.arrays(np.float32, st.integers(1, 30), elements=st.integers(-6, 6).map(lambda x: x / 2))


@settings(max_examples=300, deadline=None)
@given(
    logits=tied_logits,
    top_k=st.integers(0, 35),
    top_p=st.sampled_from([0.013, 0.211, 0.517, 0.893, 0.9991, 1.0]),
    min_p=st.sampled_from([0.0, 0.003, 0.07, 0.34, 0.71, 1.0]),
)
def test_filters_keep_what_their_definitions_say(logits, top_k, top_p, min_p):
    found = kept(torch.from_numpy(logits)[None], top_k=top_k, top_p=top_p, min_p=min_p)
    assert found == kept_tokens(logits, top_k, top_p, min_p)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.05, 0.5, 2.0, 6.0]),
    top_k=st.sampled_from([0, 1, 63, 64, 65, 1000, 1024, 1025, 2999, 3000, 10**6]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.1]),
)
def test_cuts_are_found_wherever_they_lie(seed, spread, top_k, top_p, min_p):
    """Bfloat16 logits of a vocabulary larger than any head: ties everywhere, some of them across the heads' ends."""
    logits = torch.randn(2, 3000, generator=torch.Generator().manual_seed(seed)).mul(spread).bfloat16().float()
    found = kept(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = kept_tokens(logits[0].numpy(), top_k, top_p, min_p)
    # Where float32 rounding decides whether the mass is reached, one token more or less is right.
    assert len(found ^ expected) <= (1 if top_p < 1 else 0)


def test_all_tokens_alike_are_cut_at_the_count():
    level = torch.zeros(1, 5000)
    assert kept(level, top_k=3) == {0, 1, 2}
    assert kept(level, top_k=2000) == set(range(2000))
    assert kept(level, top_p=0.2501) == set(range(1251))


def test_rows_are_filtered_each_by_its_own_parameters():
    logits = torch.randn(7, 2000, generator=torch.Generator().manual_seed(3))
    params = filters(7, top_k=[0, 3, 0, 40, 3000, 0, 1500], top_p=[1, 1, 0.3, 0.6, 1, 0.999, 0.9])
    params.min_p[5:] = 0.01
    together = filtered(logits, params)
    for i in range(7):
        assert torch.equal(together[i], filtered(logits[i : i + 1], params.take(np.array([i])))[0])


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
def test_a_draw_is_the_first_token_whose_running_sum_passes_the_point(vocab_size):
    weights = torch.rand(400, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    weights *= torch.rand(400, vocab_size, generator=torch.Generator().manual_seed(9)) < 0.5
    weights[:, vocab_size // 2] += 0.1
    points = torch.linspace(0, 1 - 2**-53, 400, dtype=torch.float64)
    sums = weights.double().cumsum(-1)
    expected = torch.searchsorted(sums, points[:, None] * sums[:, -1:], right=True).squeeze(-1)
    found = draw(weights, points)
    assert (weights.gather(-1, found[:, None]) > 0).all()
    # Sums of blocks are float32: a point within their rounding of a boundary may fall to the other side.
    distance = (sums.gather(-1, torch.minimum(found, expected)[:, None]) / sums[:, -1:]).squeeze(-1) - points
    assert ((found == expected) | (distance.abs() < 1e-6)).all()
    assert (found == expected).float().mean() > 0.99


def test_weights_of_zero_at_the_ends_are_never_drawn():
    weights = torch.zeros(2, 600)
    weights[:, [300, 301]] = torch.tensor([1e-30, 1e-30])
    assert draw(weights, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [300, 301]


def test_logits_that_are_not_numbers_still_give_ids_of_the_vocabulary():
    logits = torch.full((3, 300), torch.nan)
    ids = sample(logits, rows(3, temperature=[0, 1, 1], top_p=[1, 1, 0.5], seed=[0, 1, 2]))
    assert ((ids >= 0) & (ids < 300)).all()


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
        {"temperature": 1.5, "top_k": 1, "top_p": 0.5, "min_p": 0.5},
    ],
)
def test_ties_go_to_the_lowest_id_whenever_the_choice_is_greedy(params):
    logits = torch.zeros(3, 49_152)
    logits[0, [40_000, 70, 71]] = 5.0
    logits[2, [49_151, 1]] = 1.0
    assert sample(logits, rows(3, **params)).tolist() == [70, 0, 1]


def test_one_token_and_a_limit_beyond_the_vocabulary():
    params = rows(3, temperature=[0, 1, 1], top_k=[5, 5, 0], top_p=[1, 0.5, 0.5], min_p=[0, 0.5, 1])
    assert sample(torch.tensor([[3.0], [-2.0], [0.0]]), params).tolist() == [0, 0, 0]


def test_a_very_low_temperature_does_not_overflow():
    logits = torch.tensor([[-900.0, 100.0, 99.0]]).expand(3, -1).contiguous()
    assert sample(logits, rows(3, temperature=[1.001e-4, 1e-3, 1e-2], seed=[1, 2, 3])).tolist() == [1, 1, 1]


def test_a_very_high_temperature_draws_evenly():
    n = 4000
    logits = torch.linspace(-30, 30, 8).expand(n, -1).contiguous()
    counts = np.bincount(sample(logits, rows(n, temperature=1e6, positions=np.arange(n))).numpy(), minlength=8)
    assert surprise(counts, np.full(8, 1 / 8)) < 3.1


@pytest.fixture(params=[1, 2])
def threads(request):
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("vocab_size", [3000, 49_152])
@pytest.mark.usefixtures("threads")
def test_a_draw_depends_on_nothing_but_its_own_row(vocab_size):
    logits = torch.randn(8, vocab_size, generator=torch.Generator().manual_seed(5))
    params = rows(
        8,
        temperature=[0, 0.7, 1.0, 1.3, 1.0, 2.0, 0.2, 0.1],
        top_k=[0, 5, 0, 0, 700, 0, 2000, 0],
        top_p=[1, 1, 0.9, 1, 0.5, 0.99, 0.7, 0.8],
        min_p=[0.1, 0, 0, 0.05, 0, 1e-4, 0, 0],
        seed=[3, 3, 3, 9, 2**63 - 1, 0, 4, 5],
        positions=[1, 1, 1, 2, 3, 4, 5, 6],
    )
    together = sample(logits.clone(), params).tolist()
    shuffled = np.random.default_rng(0).permutation(8)
    assert sample(logits[shuffled], params.take(shuffled)).tolist() == [together[i] for i in shuffled]
    for i in range(8):
        assert sample(logits[i : i + 1].clone(), params.take(np.array([i]))).tolist() == [together[i]]
