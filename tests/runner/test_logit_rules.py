"""Bias, penalties and bans of a batch against a reference that goes through one row at a time in float64."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import SamplingParams, SlotStart
from engine.runner.sampling.bad_words import BadWords
from engine.runner.sampling.logit_rules import LogitRules, apply_rules
from engine.runner.sampling.next_tokens import choose_tokens
from engine.runner.sampling.penalties import Penalties
from engine.runner.slots import SlotTable
from tests.runner.sampling_reference import adjusted_logits

VOCAB_SIZE = 12

tokens = st.integers(0, VOCAB_SIZE - 1)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.25, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -0.75]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5, 100.0]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 0.0, 3.0, 100.0]), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    min_tokens=st.integers(0, 6),
    bad_word_ids=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=20).map(tuple),
)


@dataclasses.dataclass
class Row:
    params: SamplingParams
    prompt: list[int]
    resumed_with: list[int]
    sampled_since: list[int]
    stop_ids: tuple[int, ...]

    @property
    def sampled(self) -> list[int]:
        return self.resumed_with + self.sampled_since

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.sampled)

    def rules(self) -> LogitRules | None:
        history = self.prompt + self.resumed_with if self.params.needs_history else []
        rules = LogitRules.of(SlotStart(0, 0, len(self.prompt), self.params, history, self.stop_ids))
        for token in self.sampled_since if rules else ():
            rules.append(token)
        return rules

    def expected(self, logits: torch.Tensor) -> np.ndarray:
        return adjusted_logits(logits.double().numpy(), self.params, self.prompt, self.sampled, self.stop_ids)


rows = st.builds(
    Row,
    params=params,
    prompt=st.lists(tokens, min_size=1, max_size=8),
    resumed_with=st.lists(tokens, max_size=5),
    sampled_since=st.lists(tokens, max_size=5),
    stop_ids=st.lists(st.integers(0, VOCAB_SIZE + 3), max_size=3).map(tuple),
)


def apply(batch: list[Row], logits: torch.Tensor) -> torch.Tensor:
    adjusted = logits.clone()
    rules = {i: rules for i, row in enumerate(batch) if (rules := row.rules())}
    apply_rules(adjusted, rules, np.array([row.position for row in batch]))
    return adjusted


@settings(max_examples=300, deadline=None)
@given(batch=st.lists(rows, min_size=1, max_size=5), seed=st.integers(0, 2**32 - 1))
def test_adjusted_logits_are_those_of_the_reference(batch, seed):
    logits = torch.randn(len(batch), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    expected = np.stack([row.expected(logits[i]) for i, row in enumerate(batch)])
    np.testing.assert_allclose(apply(batch, logits).numpy(), expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(batch=st.lists(rows, min_size=2, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_rows_are_adjusted_as_they_are_alone_and_in_any_order(batch, seed):
    logits = torch.randn(len(batch), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    together = apply(batch, logits)
    order = random.Random(seed).sample(range(len(batch)), len(batch))
    assert torch.equal(apply([batch[i] for i in order], logits[order]), together[order])
    for i, row in enumerate(batch):
        assert torch.equal(apply([row], logits[i : i + 1])[0], together[i])


@pytest.mark.parametrize(
    "plain",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, seed=3),
        SamplingParams(stop_token_ids=(3,), logprobs=5, prompt_logprobs=2),
    ],
)
def test_a_sequence_without_rules_has_no_rules(plain):
    table = SlotTable(1, 1, 1)
    table.start(SlotStart(0, 0, 3, SamplingParams(presence_penalty=1.0), [1, 2, 3]))
    assert table.rules
    table.start(SlotStart(0, 0, 3, plain, [1, 2, 3], (3,)))
    assert not table.rules


def test_penalties_grow_with_the_sequence():
    params = SamplingParams(presence_penalty=0.25, frequency_penalty=0.5, repetition_penalty=2.0)
    sequence = [i * 7 % 500 for i in range(800)]
    penalties = Penalties(params, sequence[:300], sequence[300:350])
    for token in sequence[350:]:
        penalties.append(token)
    assert sorted(penalties.ids.tolist()) == list(range(500))
    counts = np.bincount(sequence[300:], minlength=500)[penalties.ids]
    np.testing.assert_array_equal(penalties.deductions, 0.5 * counts + 0.25 * (counts > 0))


def test_only_the_repetition_penalty_looks_at_the_prompt():
    assert Penalties(SamplingParams(presence_penalty=1.0), [1, 2], [3]).ids.tolist() == [3]
    assert Penalties(SamplingParams(repetition_penalty=2.0), [1, 2], [3]).ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("sequence", "forbidden"),
    [([], [9]), ([1], [9, 2]), ([1, 2], [9, 3]), ([5, 1, 2], [9, 3, 7]), ([2, 1], [9, 2]), ([1, 2, 4], [9])],
)
def test_bad_words_forbid_the_token_that_would_complete_them(sequence, forbidden):
    words = ((9,), (1, 2), (1, 2, 3), (5, 1, 2, 7), ())
    assert BadWords(words, sequence).forbidden() == forbidden
    appended = BadWords(words, sequence[:1])
    for token in sequence[1:]:
        appended.append(token)
    assert appended.forbidden() == forbidden


def chosen(params: SamplingParams, logits: list[float], stop_ids=(), prompt=(0,), sampled=()) -> int:
    table = SlotTable(1, 1, 1)
    known = [*prompt, *sampled]
    table.start(SlotStart(0, 5, len(prompt), params, known, stop_ids))
    ids, _ = choose_tokens(torch.tensor([logits]), table, np.array([0]), np.array([len(known)]))
    return int(ids[0])


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 0.01, 1.0, 100.0])
def test_bans_that_leave_nothing_are_ignored(temperature):
    everything = SamplingParams(temperature=temperature, min_tokens=5, logit_bias=((2, 1000.0),))
    assert chosen(everything, [1.0, 9.0, 2.0], stop_ids=(0, 1, 2)) == 2
    assert chosen(everything, [1.0, 9.0, 2.0], stop_ids=(0, 2, 2, 7, -1)) == 1
    assert chosen(SamplingParams(temperature=temperature, bad_word_ids=((0,),)), [3.0]) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.01, 0.5])
def test_an_extreme_bias_decides(temperature):
    logits = [30.0, -40.0, 12.0, 29.0]
    assert chosen(SamplingParams(temperature=temperature, logit_bias=((1, 100.0),)), logits) == 1
    away = SamplingParams(temperature=temperature, logit_bias=((0, -100.0), (3, -100.0)))
    assert chosen(away, logits) == 2
    assert chosen(SamplingParams(temperature=temperature, logit_bias=tuple((i, -100.0) for i in range(4))), logits) == 0


def test_greedy_rows_take_penalties_and_bans():
    logits = [5.0, 4.0, 3.0, -1.0]
    greedy = {"temperature": 0.0}
    assert chosen(SamplingParams(**greedy), logits) == 0
    assert chosen(SamplingParams(**greedy, presence_penalty=1.5), logits, sampled=[0]) == 1
    assert chosen(SamplingParams(**greedy, frequency_penalty=0.6), logits, sampled=[0]) == 0
    assert chosen(SamplingParams(**greedy, frequency_penalty=0.6), logits, sampled=[0, 0]) == 1
    assert chosen(SamplingParams(**greedy, repetition_penalty=1.3), logits, prompt=[0]) == 1
    assert chosen(SamplingParams(**greedy, presence_penalty=2.0), logits, prompt=[0]) == 0
    assert chosen(SamplingParams(**greedy, min_tokens=1), logits, stop_ids=(0, 1)) == 2
    assert chosen(SamplingParams(**greedy, min_tokens=1), logits, stop_ids=(0, 1), sampled=[3]) == 0


def test_a_penalty_on_a_negative_logit_makes_it_less_likely():
    assert chosen(SamplingParams(temperature=0.0, repetition_penalty=1.5), [-1.0, -1.2], prompt=[0]) == 1
