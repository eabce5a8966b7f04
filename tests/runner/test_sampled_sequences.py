"""Whole answers: they depend on request and seed alone, whatever is batched beside, repeated, or sent by reference."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import GenerationConfig

from engine.runner.model_runner import ModelRunner
from tests.runner.factories import Driver, make_runner

PROMPT = [5, 9, 200, 31, 17]
CREATIVE = {"temperature": 1.2, "top_p": 0.95, "seed": 11}
FLAT = {"temperature": 6.0, "seed": 3}
"""Hot enough that the tiny model's answers wander, and that a rule makes a difference."""

REQUESTS = {
    "greedy": {},
    "creative": CREATIVE,
    "top_k 1": {**CREATIVE, "top_k": 1},
    "top_k": {"temperature": 0.8, "top_k": 20, "seed": 11},
    "hot": FLAT,
    "min_p": {**FLAT, "min_p": 0.3},
    "presence": {"presence_penalty": -8.0},
    "frequency": {**FLAT, "logit_bias": ((7, 40.0),), "frequency_penalty": 6.0},
    "repetition": {**FLAT, "repetition_penalty": 1.5},
    "bias": {**FLAT, "logit_bias": ((7, 20.0), (8, 21.0), (9, -100.0))},
    "min_tokens": {**FLAT, "logit_bias": ((7, 90.0),), "min_tokens": 9, "stop_ids": (7,)},
    "bad words": {**FLAT, "logit_bias": ((7, 40.0), (8, 40.0)), "bad_word_ids": ((7, 7), (8, 8), (7, 8, 7), (17, 8))},
    "everything": {
        **CREATIVE,
        "temperature": 3.0,
        "top_k": 100,
        "min_p": 0.001,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.1,
        "logit_bias": ((7, 9.0),),
        "bad_word_ids": ((7, 7), (31, 17, 5)),
        "min_tokens": 5,
        "stop_ids": (1, 2, 3),
    },
}
NUM_TOKENS = 15


@pytest.fixture(scope="module")
def runner(llama) -> ModelRunner:
    return make_runner(llama[0], max_num_seqs=16)


@pytest.fixture(scope="module")
def alone(runner) -> dict[str, list[int]]:
    """The answer to each request when it has the runner for itself."""
    return {name: answer(runner, **params) for name, params in REQUESTS.items()}


def driver(runner: ModelRunner) -> Driver:
    return Driver(runner, 4, list(range(128)))


def answer(runner: ModelRunner, prompt=PROMPT, num_tokens=NUM_TOKENS, chunk=64, **params) -> list[int]:
    d = driver(runner)
    return d.generate([d.add(prompt, **params)], num_tokens, chunk)[0]


def test_a_seed_repeats_its_answer_and_another_seed_gives_another(runner, alone):
    assert answer(runner, **CREATIVE) == alone["creative"]
    assert answer(runner, **{**CREATIVE, "seed": 12}) != alone["creative"]


def test_every_rule_makes_a_difference(alone):
    assert len({tuple(ids) for ids in alone.values()}) == len(REQUESTS) - 1
    assert alone["top_k 1"] == alone["greedy"]


@pytest.mark.parametrize("by_reference", [False, True])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_each_row_of_a_batch_answers_as_it_does_alone(runner, alone, order, by_reference):
    names = random.Random(order).sample(list(REQUESTS), len(REQUESTS))
    d = driver(runner)
    sequences = [d.add(PROMPT, **REQUESTS[name]) for name in names]
    together = d.generate(sequences, NUM_TOKENS, 3, by_reference=by_reference)
    assert dict(zip(names, together, strict=True)) == {name: alone[name] for name in names}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_plan_need_not_repeat_what_the_runner_sampled(runner, alone, name):
    d = driver(runner)
    sequence = d.add(PROMPT, **REQUESTS[name])
    assert d.generate([sequence], NUM_TOKENS, 64, by_reference=True) == [alone[name]]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(runner, alone, name):
    for num_sampled in (1, 6, NUM_TOKENS - 1):
        d = driver(runner)
        sequence = d.add(PROMPT, **REQUESTS[name])
        d.generate([sequence], num_sampled, 64, by_reference=True)
        d.preempt(sequence, slot=4)
        assert d.generate([sequence], NUM_TOKENS, 7, by_reference=True) == [alone[name]]


def test_a_slot_can_be_given_away_by_the_very_next_plan(runner, alone):
    """Every request after every other, each in slot 0, none of them at its end."""
    d = driver(runner)
    for before in REQUESTS:
        for after in ("everything", "greedy", "hot"):
            d.free_blocks = list(range(128))
            first, second = d.add(PROMPT, **REQUESTS[before]), d.add(PROMPT, **REQUESTS[after])
            first.slot = second.slot = 0
            d.generate([first], 3, 64, by_reference=True)
            assert d.generate([second], 6, 64, by_reference=True) == [alone[after][:6]]


def test_min_tokens_holds_ends_back_so_long_and_no_longer(alone, runner):
    without = answer(runner, **{**REQUESTS["min_tokens"], "min_tokens": 0})
    assert without[0] == 7
    assert 7 not in alone["min_tokens"][:9]
    assert alone["min_tokens"][9] == 7


def test_bad_words_are_not_written_across_prompt_and_answer_either(runner, alone):
    words = REQUESTS["bad words"]["bad_word_ids"]
    free = PROMPT + answer(runner, **{**REQUESTS["bad words"], "bad_word_ids": ()})
    held = PROMPT + alone["bad words"]

    def written(ids: list[int]) -> int:
        return sum(tuple(ids[i : i + len(word)]) == word for word in words for i in range(len(ids)))

    assert written(free) > 0
    assert written(held) == 0
    assert {7, 8} <= set(held)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
        ({"logit_bias": ((7, 8.0), (44, -30.0))}, {"sequence_bias": [[[7], 8.0], [[44], -30.0]]}),
        (
            {"logit_bias": ((7, 8.0), (44, -30.0)), "repetition_penalty": 1.3},
            {"sequence_bias": [[[7], 8.0], [[44], -30.0]], "repetition_penalty": 1.3},
        ),
    ],
)
def test_greedy_answers_with_rules_are_those_of_transformers(llama, runner, ours, theirs):
    config = GenerationConfig(max_new_tokens=30, do_sample=False, pad_token_id=0, **theirs)
    ids = torch.tensor([PROMPT])
    expected = llama[1].generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    assert answer(runner, num_tokens=30, **ours) == expected[0, len(PROMPT) :].tolist()


def test_greedy_answers_without_bad_words_are_those_of_transformers(llama, runner):
    """Forbidden is what the model would write: its own pairs and triples, again and again."""
    words: list[list[int]] = []
    ids = torch.tensor([PROMPT])
    for length in (1, 2, 3, 2):
        free = answer(runner, num_tokens=8, bad_word_ids=tuple(map(tuple, words)))
        words.append(free[3 : 3 + length])
        config = GenerationConfig(max_new_tokens=20, do_sample=False, pad_token_id=0, bad_words_ids=words)
        expected = llama[1].generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        held = answer(runner, num_tokens=20, bad_word_ids=tuple(map(tuple, words)))
        assert held == expected[0, len(PROMPT) :].tolist() != free
