"""What a request is answered depends on itself alone."""

from __future__ import annotations

import random
import time
from typing import Any

import httpx
import pytest
import torch

from tests.e2e.clients import answer, assert_same_greedy, at_once, body_of, choice, reference_model
from tests.e2e.served import Served

TOPICS = ("a river", "an old clock", "bread", "the winter", "a letter", "music", "the sea", "a cat", "rain", "gold")


def prompts() -> list[str]:
    return [f"{i}. Tell me something about {TOPICS[i % len(TOPICS)]}" + " and more" * (i % 7) for i in range(20)]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_a_greedy_answer_does_not_depend_on_who_else_is_there(shared, solo, order):
    """BD-01."""
    chooser = random.Random(order)
    jobs = list(range(20))
    if order:
        chooser.shuffle(jobs)

    def ask(i: int) -> dict[str, Any]:
        time.sleep(chooser.uniform(0, 0.3) if order else 0)  # others are somewhere else each time
        return choice(shared, prompt=prompts()[i], max_tokens=40, ignore_eos=True, logprobs=2)

    for i, got in zip(jobs, at_once(ask, jobs, workers=20), strict=True):
        assert_same_greedy(shared, solo[i]["prompt_token_ids"], solo[i]["token_ids"], got["token_ids"])


@pytest.fixture(scope="module")
def solo(shared: Served) -> list[dict[str, Any]]:
    return [choice(shared, prompt=prompt, max_tokens=40, ignore_eos=True, logprobs=2) for prompt in prompts()]


def test_each_row_of_a_batch_has_its_own_rules(shared):
    """BD-03: biases, penalties, bans, limits and log probabilities."""
    base: dict[str, Any] = {"prompt": "Once upon a time there was", "max_tokens": 16, "ignore_eos": True}
    plain = choice(shared, **base)
    forced = 1234
    assert forced not in plain["token_ids"]
    first = plain["token_ids"][0]
    kinds: list[dict[str, Any]] = [
        {},
        {"logit_bias": {str(forced): 100}},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 1.8},
        {"bad_words": [plain["text"].split()[0]]},
        {"temperature": 1.5, "seed": 1},
        {"temperature": 1.5, "seed": 1, "top_k": 1},
        {"temperature": 1.5, "seed": 1, "min_p": 0.5},
        {"temperature": 0.8, "seed": 3, "presence_penalty": 1.0, "logit_bias": {str(first): -100}},
        {"max_tokens": 3},
        {"stop": " "},
        {"ignore_eos": False, "min_tokens": 12},
        {"logprobs": 3},
    ]
    solo = [choice(shared, **base | kind) for kind in kinds]
    assert solo[1]["token_ids"] == [forced] * 16
    assert forced not in [i for k, s in enumerate(solo) if k != 1 for i in s["token_ids"]]
    assert solo[7]["token_ids"] == plain["token_ids"]
    assert first not in solo[9]["token_ids"]
    assert len({tuple(s["token_ids"]) for s in solo[:7]}) >= 6
    jobs = [i for _ in range(3) for i in range(len(kinds))]
    random.Random(5).shuffle(jobs)  # rows move while some end and others join
    together = at_once(lambda i: choice(shared, **base | kinds[i]), jobs, workers=12)
    for i, got in zip(jobs, together, strict=True):
        assert got["finish_reason"] == solo[i]["finish_reason"]
        if kinds[i] == {}:
            assert_same_greedy(shared, plain["prompt_token_ids"], plain["token_ids"], got["token_ids"])
        else:
            assert got["token_ids"] == solo[i]["token_ids"], kinds[i]


def test_unseeded_answers_differ_across_replicas_and_restarts_and_seeded_ones_do_not(serve):
    """BD-04."""
    flags = ("--replicas", "3", "--kv-cache-memory", "64M")
    ask = {"prompt": "Once upon a time", "temperature": 1.0, "max_tokens": 30}
    first: list[str] = []
    seeded: set[str] = set()
    used: set[str] = set()
    for _ in range(2):
        served = serve(*flags)
        served.eventually(served.all_replicas_ready, 60)
        names = [f"{len(first)}-{i}" for i in range(6)]
        answers = at_once(lambda name, to=served: _named(to, name, ask), names, workers=6)
        first += [a["choices"][0]["text"] for a in answers]
        seeded |= {a["choices"][0]["text"] for a in at_once(lambda _, to=served: answer(to, **ask, seed=11), range(3))}
        used |= {served.finished_row(name)["replica"] for name in names}
        assert served.stop()[0] == 0
    assert used == {"r0", "r1", "r2"}
    assert len(set(first)) == len(first)
    assert len(seeded) == 1


def _named(served: Served, name: str, ask: dict[str, Any]) -> dict[str, Any]:
    headers = {"x-request-id": name}
    return httpx.post(f"{served.url}/v1/completions", json=body_of(ask), headers=headers, timeout=120).json()


def test_the_simulated_device_answers_hundreds_at_once_as_one_alone(serve):
    """Everything but the model, at a size at which this machine could not run one."""
    served = serve("--device", "simulated", "--overlap", "on", "--max-num-seqs", "256", "--simulated-step", "500,1,1")
    ask = {"max_tokens": 20, "ignore_eos": True, "temperature": 1.0}

    def ids(i: int) -> list[int]:
        return choice(served, prompt=[7, 8, 9 + i % 3], seed=i, **ask)["token_ids"]

    alone = [ids(i) for i in range(8)]
    together = at_once(ids, [i % 8 for i in range(256)], workers=128)
    assert all(got == alone[i % 8] for i, got in enumerate(together))
    served.eventually(served.idle, 10)


# --- log probabilities --------------------------------------------------------------------------------


def echoed(served: Served, ids: list[int]) -> dict[str, Any]:
    return answer(served, prompt=ids, echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]


def words(seed: int, count: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(1000, 40_000) for _ in range(count)]


@pytest.mark.parametrize("count", [10, 16, 17, 64])
def test_prompt_log_probabilities_do_not_depend_on_the_cache(shared, true_values, count):
    """PC-07."""
    ids = words(count, count)
    expected = true_values(ids)
    for _ in range(2):
        got = echoed(shared, ids)["token_logprobs"]
        assert got[0] is None
        assert None not in got[1:]
        assert got[1:count] == pytest.approx(expected, abs=1e-3)


def test_prompts_that_begin_alike_have_their_own_log_probabilities_in_any_order(shared, true_values):
    """PC-07."""
    common = words(99, 32)
    pair = [common + words(100, 9), common + words(101, 9)]
    for ids in [*pair, *reversed(pair)]:
        got = echoed(shared, ids)["token_logprobs"]
        assert got[1 : len(ids)] == pytest.approx(true_values(ids), abs=1e-3)


@pytest.fixture(scope="module")
def true_values(shared: Served):
    """transformers' log probabilities of every prompt token but the first."""
    model = reference_model(shared.folder.info().model.path)

    @torch.inference_mode()
    def values(ids: list[int]) -> list[float]:
        logprobs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    return values
