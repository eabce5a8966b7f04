"""Frequencies of draws against the float64 reference, through everything between raw logits and ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.messages import SamplingParams, SlotStart
from engine.runner.sampling.next_tokens import choose_tokens
from engine.runner.slots import SlotTable
from tests.runner.sampling_reference import distribution, surprise

VOCAB_SIZE = 40
DRAWS = 20_000
PROMPT, SAMPLED = [3, 4, 5, 5, 9], [9, 11, 11, 12, 11, 7]
"""Distinct counts, and tokens that are only in one, only in the other, and in both."""

CASES = {
    "temperature 1": {},
    "temperature below 1": {"temperature": 0.5},
    "temperature above 1": {"temperature": 1.7},
    "top_k": {"top_k": 12},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "top_k, top_p": {"temperature": 1.3, "top_k": 15, "top_p": 0.7},
    "top_k, top_p, min_p": {"temperature": 1.8, "top_k": 25, "top_p": 0.95, "min_p": 0.03},
    "top_k beyond the vocabulary": {"top_k": 1000, "top_p": 0.5},
    "presence penalty": {"presence_penalty": 1.5},
    "negative presence penalty": {"presence_penalty": -1.0},
    "frequency penalty": {"frequency_penalty": 0.7},
    "repetition penalty": {"repetition_penalty": 1.4},
    "repetition penalty below 1": {"repetition_penalty": 0.7},
    "all penalties": {"presence_penalty": 0.4, "frequency_penalty": -0.3, "repetition_penalty": 1.2},
    "bias": {"logit_bias": ((5, 2.5), (6, -3.0), (11, 1.0))},
    "min_tokens": {"min_tokens": 7},
    "min_tokens reached": {"min_tokens": 6},
    "bad words": {"bad_word_ids": ((2,), (11, 7, 8), (7, 9), (12, 7, 10), (5, 5, 1))},
    "everything": {
        "temperature": 0.9,
        "top_k": 20,
        "top_p": 0.93,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": ((9, 1.5), (0, -1.0)),
        "min_tokens": 30,
        "bad_word_ids": ((1,), (7, 13)),
    },
}
STOP_IDS = (0, 14)


@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_probabilities_that_the_parameters_give(case):
    params = SamplingParams(**CASES[case])
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(1))
    tokens = PROMPT + SAMPLED
    table = SlotTable(DRAWS, 1, 1)
    for slot in range(DRAWS):
        table.start(SlotStart(slot, slot, len(PROMPT), params, tokens, STOP_IDS))
    slots = np.arange(DRAWS)
    ids, _ = choose_tokens(logits.repeat(DRAWS, 1), table, slots, np.full(DRAWS, len(tokens)))
    counts = np.bincount(ids, minlength=VOCAB_SIZE)
    expected = distribution(logits.double().numpy(), params, prompt=PROMPT, sampled=SAMPLED, stop_ids=STOP_IDS)
    assert surprise(counts, expected) < 3.1
