from __future__ import annotations

import pytest

from engine.bench.workload import SCENARIOS, Prompts, Workload, words, words_for_tokens


def test_the_same_seed_gives_the_same_prompts():
    workload = Workload(prompt_words=20)
    assert Prompts(workload, 7).prompt(3) == Prompts(workload, 7).prompt(3)


def test_prompts_differ_from_the_start_by_request_seed_and_scenario():
    beginnings = {
        Prompts(Workload(name=name, prompt_words=length), seed).prompt(index)[:40]
        for seed in range(3)
        for name, length in (("short", 20), ("long", 30))
        for index in range(10)
    }
    assert len(beginnings) == 60


def test_prompts_have_the_shared_prefix_and_words_of_their_own():
    prompts = Prompts(Workload(prompt_words=5, shared_prefix_words=30), 1)
    assert len(prompts.prompt(0).split()) == 35
    assert prompts.prompt(0).startswith(prompts.prefix + " ")
    assert prompts.prompt(1).startswith(prompts.prefix + " ")


def test_every_scenario_is_named_after_its_key():
    assert {name: workload.name for name, workload in SCENARIOS.items()} == {name: name for name in SCENARIOS}


def test_words_are_as_many_as_asked_for():
    assert len(words(1000, "seed").split()) == 1000
    assert words(0, "seed") == ""


@pytest.mark.parametrize(
    ("tokens", "short", "long", "expected"),
    [
        (100, (10, 10), (110, 110), 100),  # a token per word
        (100, (10, 23), (110, 123), 87),  # a template of 13 tokens
        (300, (10, 20), (110, 220), 150),  # two tokens per word
        (1, (10, 23), (110, 123), 1),  # less than the template: one word is the least
    ],
)
def test_words_for_tokens(tokens, short, long, expected):
    assert words_for_tokens(tokens, short, long) == expected
