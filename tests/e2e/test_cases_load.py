"""Many requests at once, and clients that leave: answers stay their own, and everything comes back to rest."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.e2e.clients import Stream, answer, assert_same_greedy, at_once, choice, decoded
from tests.e2e.served import Served

STREAMS = 32


def prompt(i: int) -> str:
    topics = ["a river", "the number five", "an old clock", "bread", "the winter", "a letter", "music", "the sea"]
    return f"Request {i}: write about {topics[i % len(topics)]}."


def asked(i: int) -> dict[str, Any]:
    """The i-th request: lengths from 1 to 16 tokens."""
    return {"prompt": prompt(i), "max_tokens": 1 + (i * 7) % 16, "return_token_ids": True}


@pytest.fixture(scope="module")
def alone(shared: Served) -> list[dict[str, Any]]:
    """What each is answered when nothing else runs."""
    return [choice(shared, **asked(i)) for i in range(STREAMS)]


@pytest.mark.parametrize("seed", [1, 2])
def test_streams_at_once_get_their_own_tokens_and_end(shared, alone, seed):
    """LC-16."""
    chooser = random.Random(seed)
    order = list(range(STREAMS))
    chooser.shuffle(order)
    streams: dict[int, Stream] = {}
    for i in order:
        streams[i] = Stream(shared, **asked(i))
        time.sleep(chooser.uniform(0, 0.02))  # so that batches begin and end in ever other ways
    for i, stream in streams.items():
        got = stream.finish().token_ids()
        assert_same_greedy(shared, alone[i]["prompt_token_ids"], alone[i]["token_ids"], got)
        assert stream.text() == decoded(shared, got)
        assert len({event["id"] for event in stream.events}) == 1
        assert stream.ended_at - stream.times[-1] < 1
    assert len({stream.events[0]["id"] for stream in streams.values()}) == STREAMS


def test_each_request_of_a_batch_is_sampled_by_its_own_settings(shared):
    """BD-03."""
    base: dict[str, Any] = {"prompt": "Once upon a time there was", "max_tokens": 24, "ignore_eos": True}
    hot = {"temperature": 1.5, "seed": 1}
    kinds: list[dict[str, Any]] = [{}, hot, hot | {"top_k": 1}, hot | {"top_p": 1e-6}]
    kinds += [hot | {"top_k": 5}, hot | {"seed": 2}]
    kinds += [{"max_tokens": 3}, {"stop": " "}, {"stop": [","]}, {"temperature": 0.7, "seed": 3, "top_p": 0.9}]
    solo = [choice(shared, **base | kind) for kind in kinds]
    assert solo[2]["token_ids"] == solo[3]["token_ids"] == solo[0]["token_ids"] != solo[1]["token_ids"]
    jobs = [i for _ in range(3) for i in range(len(kinds))]
    random.Random(5).shuffle(jobs)  # rows move while some end and others join
    together = at_once(lambda i: choice(shared, **base | kinds[i]), jobs, workers=8)
    for i, got in zip(jobs, together, strict=True):
        assert (got["finish_reason"], got["stop_reason"]) == (solo[i]["finish_reason"], solo[i]["stop_reason"])
        if kinds[i].get("temperature"):
            assert got["token_ids"] == solo[i]["token_ids"]
        else:
            assert_same_greedy(shared, solo[i]["prompt_token_ids"], solo[i]["token_ids"], got["token_ids"])


# --- clients that leave -------------------------------------------------------------------------------


def test_a_client_that_leaves_ends_its_request_at_once(shared):
    """LC-01."""
    shared.eventually(shared.idle, what="idle")
    aborted = shared.metric("vitrine_requests_total", 'finish_reason="abort"')
    ask = {"prompt": "Count:", "max_tokens": 4000, "ignore_eos": True}
    stream = Stream(shared, {"x-request-id": "leaver"}, **ask).wait_events(5)
    stream.leave()
    shared.eventually(shared.idle, 2, "the engine has let go")
    row = shared.finished_row("leaver")
    assert row["finish_reason"] == "abort" and row["output_tokens"] < 100
    shared.eventually(
        lambda: shared.metric("vitrine_requests_total", 'finish_reason="abort"') == aborted + 1, 5, "one abort more"
    )
    about_it = [line for line in shared.log_lines() if row["request_id"] in str(line)]
    assert len(about_it) <= 1
    assert choice(shared, prompt="Count:", max_tokens=5)["text"].startswith(stream.join().text()[:5])


def test_unseeded_answers_differ_and_the_prompt_count_is_right(shared):
    """BD-04, RV-10."""
    ask = {"prompt": "Once upon a time", "temperature": 1.0, "max_tokens": 30}
    answers = at_once(lambda _: answer(shared, **ask), range(10))
    assert len({a["choices"][0]["text"] for a in answers}) > 1
    assert len({a["usage"]["prompt_tokens"] for a in answers}) == 1
