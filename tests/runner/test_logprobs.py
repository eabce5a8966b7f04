"""Log probabilities of sampled tokens and of prompts, against their definition and against transformers."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.messages import SamplingParams, SlotStart, StepPlan, TokenLogprobs
from engine.runner.sampling import prompt_scores
from engine.runner.sampling.logprobs import token_logprobs
from engine.runner.sampling.prompt_scores import score_prompts
from engine.runner.slots import SlotTable
from engine.runner.step_batch import prepare
from engine.transport import decode_data, encode
from tests.runner.factories import VOCAB_SIZE, Driver, make_runner


def by_definition(logits: np.ndarray, token: int, num_top: int) -> TokenLogprobs:
    exact = logits.astype(np.float64)
    logprobs = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:num_top]
    rank = 1 + sum(x > logits[token] for x in logits.tolist())
    return TokenLogprobs(float(logprobs[token]), rank, order, [float(logprobs[i]) for i in order])


def assert_alike(found: TokenLogprobs, expected: TokenLogprobs, tolerance: float = 1e-5) -> None:
    assert (found.rank, found.top_ids) == (expected.rank, expected.top_ids)
    assert found.logprob == pytest.approx(expected.logprob, abs=tolerance)
    assert found.top_logprobs == pytest.approx(expected.top_logprobs, abs=tolerance)


# Few distinct values: equals are everywhere, and often more than there is room for.
tied_logits = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 30)),
    elements=st.integers(-4, 4).map(lambda x: x * 1.5),
)


@settings(max_examples=200, deadline=None)
@given(logits=tied_logits, data=st.data())
def test_log_probabilities_are_those_of_the_definition(logits, data):
    n, vocab_size = logits.shape
    ids = [data.draw(st.integers(0, vocab_size - 1)) for _ in range(n)]
    num_top = [data.draw(st.integers(0, 35)) for _ in range(n)]
    found = token_logprobs(torch.from_numpy(logits), np.array(ids), np.array(num_top))
    for i in range(n):
        assert_alike(found[i], by_definition(logits[i], ids[i], num_top[i]))


def test_no_log_probability_is_above_zero_or_endless():
    logits = torch.tensor([[900.0, -900.0, 0.0], [-3e4, 3e4, -3e4]])
    for score in token_logprobs(logits, np.array([0, 2]), np.array([3, 3])):
        values = [score.logprob, *score.top_logprobs]
        assert max(values) <= 0
        assert np.isfinite(values).all()


@pytest.fixture(scope="module")
def runner(llama):
    return make_runner(llama[0])


def driver(runner) -> Driver:
    return Driver(runner, 4, list(range(128)))


def reference_logits(model, ids: list[int]) -> np.ndarray:
    """Of every position, ``[len(ids), vocab_size]``."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


def random_prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB_SIZE) for _ in range(length)]


RULES = {
    "temperature": 5.0,
    "top_k": 4,
    "repetition_penalty": 1.5,
    "logit_bias": ((7, 100.0), (9, -100.0)),
    "min_tokens": 3,
    "stop_ids": (7,),
}


@pytest.mark.parametrize("params", [{}, {"temperature": 3.0}, RULES])
@pytest.mark.parametrize("by_reference", [False, True])
def test_log_probabilities_of_an_answer_are_the_models_own(llama, runner, params, by_reference):
    d = driver(runner)
    sequence = d.add(random_prompt(6), **params, logprobs=5)
    found = []
    while len(sequence.output) < 10:
        d.step([(sequence, len(sequence.ids) - sequence.computed)], by_reference=by_reference)
        found.append(d.result.logprobs[0])
    logits = reference_logits(llama[1], sequence.ids)
    for position, score in zip(range(6, 16), found, strict=True):
        assert_alike(score, by_definition(logits[position - 1], sequence.ids[position], 5), 2e-4)


def test_only_rows_that_ask_get_log_probabilities_each_as_many_as_it_wants(runner):
    d = driver(runner)
    sequences = [d.add(random_prompt(5, i), logprobs=k) for i, k in enumerate([None, 0, 3, None, 20])]
    d.step([(sequences[4], 3), *((s, 5) for s in sequences[:4])])
    assert {row: len(score.top_ids) for row, score in d.result.logprobs.items()} == {2: 0, 3: 3}
    d.step([(sequences[4], 2), (sequences[0], 1)])
    assert {row: len(score.top_ids) for row, score in d.result.logprobs.items()} == {0: 20}
    assert d.result.logprobs[0].top_ids[0] == sequences[4].output[0]
    assert d.result.logprobs[0].rank == 1


def test_log_probabilities_survive_the_way_to_the_scheduler(runner):
    d = driver(runner)
    d.step([(d.add(random_prompt(4), prompt_logprobs=2, logprobs=2), 4)])
    assert d.result.logprobs.keys() == d.result.prompt_logprobs.keys() == {0}
    assert decode_data(encode(d.result)) == d.result


def prompt_scores_of(d: Driver, sequence, chunks) -> list[TokenLogprobs]:
    found = []
    for chunk in chunks:
        d.step([(sequence, chunk)])
        items = d.result.prompt_logprobs.get(0, [])
        assert len(items) == min(chunk, sequence.num_prompt - 1 - (sequence.computed - chunk))
        found += items
    return found


@pytest.mark.parametrize("chunks", [[23], [1] * 23, [7, 7, 7, 2], [22, 1], [1, 22], [4, 16, 3]])
def test_log_probabilities_of_a_prompt_do_not_depend_on_its_chunks(llama, runner, chunks):
    prompt = random_prompt(23)
    d = driver(runner)
    found = prompt_scores_of(d, d.add(prompt, prompt_logprobs=3), chunks)
    logits = reference_logits(llama[1], prompt)
    assert len(found) == 22
    for position, score in enumerate(found, start=1):
        assert_alike(score, by_definition(logits[position - 1], prompt[position], 3), 2e-4)


def test_a_prompt_of_one_token_has_nothing_to_score(runner):
    d = driver(runner)
    sequence = d.add([5], prompt_logprobs=3)
    d.step([(sequence, 1)])
    d.step([(sequence, 1)])
    assert d.result.prompt_logprobs == {}


def test_rows_score_their_prompts_beside_others_that_prefill_and_decode(llama, runner):
    d = driver(runner)
    decoding = d.add(random_prompt(4, 1), logprobs=1)
    d.step([(decoding, 4)])
    first, second = (d.add(random_prompt(9, i), prompt_logprobs=k) for i, k in ((2, 0), (3, 4)))
    silent = d.add(random_prompt(6, 4))
    d.step([(decoding, 1), (first, 9), (silent, 6), (second, 5)], by_reference=True)
    result = d.result
    assert {row: [len(i.top_ids) for i in items] for row, items in result.prompt_logprobs.items()} == {
        1: [0] * 8,
        3: [4] * 5,
    }
    assert result.logprobs.keys() == {0}
    assert result.sampled[3] == -1
    logits = reference_logits(llama[1], second.ids)
    for position, score in enumerate(result.prompt_logprobs[3], start=1):
        assert_alike(score, by_definition(logits[position - 1], second.ids[position], 4), 2e-4)


def test_a_preempted_sequence_scores_its_prompt_again_and_nothing_beyond(runner):
    d = driver(runner)
    sequence = d.add(random_prompt(10), prompt_logprobs=2, temperature=1.0)
    before = prompt_scores_of(d, sequence, [4, 6])
    d.step([(sequence, 1)])
    assert d.result.prompt_logprobs == {}
    d.preempt(sequence, slot=3)
    d.step([(sequence, len(sequence.ids))])
    again = d.result.prompt_logprobs[0]
    assert len(again) == 9
    for one, other in zip(before, again, strict=True):
        assert_alike(one, other, 1e-4)


def test_a_slot_given_to_another_sequence_scores_nothing_for_it(runner):
    d = driver(runner)
    scored, plain = d.add(random_prompt(12), prompt_logprobs=2, logprobs=2), d.add(random_prompt(8, 1))
    plain.slot = scored.slot
    d.step([(scored, 5)])
    d.step([(plain, 8)])
    assert d.result.prompt_logprobs == d.result.logprobs == {}


def test_logits_of_a_long_prompt_are_never_held_all_at_once():
    vocab_size, length = 49_152, 1500
    prompt = np.random.default_rng(0).integers(0, vocab_size, length).tolist()
    start = SlotStart(0, 0, length, SamplingParams(prompt_logprobs=1), prompt)
    plan = StepPlan(0, 0, [start], [0], [0], [length], [False], [list(range(length))], prompt)
    table = SlotTable(1, length, 1)
    batch = prepare(plan, table)
    hidden = torch.randn(length, 4, generator=torch.Generator().manual_seed(0))
    head = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(1))
    slices: list[np.ndarray] = []

    def logits_after(tokens: np.ndarray) -> torch.Tensor:
        slices.append(tokens)
        return hidden[torch.from_numpy(tokens)] @ head

    scores = score_prompts(batch, table, logits_after, vocab_size)[0]
    assert max(map(len, slices)) * vocab_size * 4 <= prompt_scores.MAX_LOGITS_BYTES <= 64 * 2**20
    assert np.concatenate(slices).tolist() == list(range(length - 1))
    for position in (1, 169, 170, 171, length - 1):
        logits = (hidden[position - 1] @ head).numpy()
        assert scores[position - 1].logprob == pytest.approx(
            by_definition(logits, prompt[position], 1).logprob, abs=1e-4
        )


def test_slices_leave_no_seam(runner, monkeypatch):
    """As many positions at once as fit: 1, 2, 3 or all give the same scores, over the borders of rows too."""
    answers = []
    for positions in (1, 2, 3, 1000):
        monkeypatch.setattr(prompt_scores, "MAX_LOGITS_BYTES", 4 * VOCAB_SIZE * positions)
        d = driver(runner)
        rows = [(d.add(random_prompt(n, n), prompt_logprobs=2), n) for n in (5, 1, 8)]
        d.step(rows)
        answers.append(d.result.prompt_logprobs)
    for one, other in itertools.pairwise(answers):
        assert one.keys() == other.keys() == {0, 2}
        for row in one:
            for a, b in zip(one[row], other[row], strict=True):
                assert_alike(a, b, 1e-4)


def test_logits_that_are_no_numbers_stay_a_row_of_their_own() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [float("nan")] * 3, [5.0, 4.0, 6.0]])
    first, broken, last = token_logprobs(logits, np.array([1, 0, 2]), np.array([2, 2, 2]))
    assert (first.top_ids, last.top_ids) == ([1, 2], [2, 0])
    assert set(broken.top_ids) <= {0, 1, 2}
