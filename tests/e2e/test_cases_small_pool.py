"""A KV pool that is too small for what is asked: refused, or slower, never stuck and never wrong."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from telemetry import schema
from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.e2e.clients import BLOCK, Stream, answer, assert_same_greedy, at_once, choice, send
from tests.e2e.served import Served

BLOCKS = 40
POOL_TOKENS = BLOCKS * BLOCK


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--dtype", "float32", "--kv-blocks", str(BLOCKS), "--max-num-batched-tokens", "128")
    with Served(tmp_path_factory.mktemp("small"), *flags) as served:
        yield served


def words(seed: int, count: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(1000, 40_000) for _ in range(count)]


def test_what_can_never_fit_is_refused_and_holds_up_nobody(engine):
    """LC-06."""
    too_large: list[dict[str, Any]] = [
        {"prompt": words(1, POOL_TOKENS + 200), "max_tokens": 4},
        {"prompt": words(2, POOL_TOKENS), "max_tokens": 1},
        {"prompt": words(3, POOL_TOKENS - 100), "max_tokens": 300},
        {"prompt": "one two three " * 400, "max_tokens": 4},
        {"messages": [{"role": "user", "content": "one two three " * 400}]},
    ]
    for ask in too_large:
        response = send(engine, ask)
        assert response.status_code == 400 and str(POOL_TOKENS) in response.json()["error"]["message"]
        began = time.monotonic()
        assert answer(engine, prompt="Hi", max_tokens=4)["usage"]["completion_tokens"] == 4
        assert time.monotonic() - began < 2
    just_fits = answer(engine, prompt=words(4, POOL_TOKENS - 4), max_tokens=4, ignore_eos=True)
    assert just_fits["usage"]["completion_tokens"] == 4


class Progress:
    """The longest time for which the engine makes no step."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.longest_s = 0.0

    def _watch(self) -> None:
        last, since = -1, time.monotonic()
        while not self._over.wait(0.05):
            step = self._served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID)
            if step != last:
                last, since = step, time.monotonic()
            self.longest_s = max(self.longest_s, time.monotonic() - since)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_full_pool_preempts_and_all_requests_get_on(engine):
    """LC-07."""
    asks = [{"prompt": words(10 + i, 60), "max_tokens": 80, "ignore_eos": True} for i in range(12)]
    began = time.monotonic()
    solo = at_once(lambda ask: choice(engine, **ask), asks[:2])
    two_by_two_s = (time.monotonic() - began) * len(asks) / 2
    log_lines = len(engine.log_lines())
    with Progress(engine) as progress:
        began = time.monotonic()
        answers = at_once(lambda ask: choice(engine, **ask), asks)
        took_s = time.monotonic() - began
    assert [len(a["token_ids"]) for a in answers] == [80] * len(asks)
    for ask, expected, got in zip(asks, solo, answers, strict=False):
        assert_same_greedy(engine, ask["prompt"], expected["token_ids"], got["token_ids"])
    assert took_s < 5 * two_by_two_s and progress.longest_s < 5
    engine.eventually(engine.idle)
    preemptions = sum(row["preemptions"] or 0 for row in engine.rows(schema.requests))
    assert 0 < preemptions < len(asks) * 50
    assert len(engine.log_lines()) - log_lines < max(5, took_s)


def test_equal_long_prompts_at_once_are_each_answered_as_one_alone(engine):
    """PC-04."""
    ids = words(30, 465)
    alone = choice(engine, prompt=ids, max_tokens=40, ignore_eos=True)["token_ids"]
    others = answer(engine, prompt=words(31, 600), max_tokens=1)  # which throws the first out of the cache
    assert others["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    answers = at_once(
        lambda _: answer(engine, prompt=ids, max_tokens=40, ignore_eos=True, return_token_ids=True), range(16)
    )
    for got in answers:
        assert got["usage"]["prompt_tokens"] == 465
        assert_same_greedy(engine, ids, alone, got["choices"][0]["token_ids"])
    assert any(row["preemptions"] for row in engine.rows(schema.requests) if row["prompt_tokens"] == 465)


class Load:
    """Eight clients that ask for whatever, and sometimes leave, until told to stop."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(8)]

    def _ask(self, number: int) -> None:
        chooser = random.Random(number)
        while not self._over.is_set():
            ask = {"prompt": words(40 + chooser.randrange(4), chooser.randint(1, 300)), "ignore_eos": True}
            tokens, temperature = chooser.randint(1, 100), chooser.choice([0, 1])
            stream = Stream(self._served, **ask, max_tokens=tokens, temperature=temperature)
            if chooser.random() < 0.4:
                stream.wait_events(1)
                stream.leave()
            stream.join()
            send(self._served, ask | {"max_tokens": 10**6})

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)


def test_counters_never_fall_and_gauges_stay_in_bounds_under_every_kind_of_load(engine):
    """MT-03."""
    seen: dict[str, float] = {}
    until = time.monotonic() + 10
    with Load(engine):
        while time.monotonic() < until:
            now = engine.metrics()
            check_scrape(now, seen)
            seen = now
            time.sleep(0.2)
    engine.eventually(engine.idle, 20)
    assert "non-negative" not in str(engine.log_lines())
    assert seen_sum(seen, "vitrine_preemptions_total") > 0
    assert seen_sum(seen, "vitrine_prefix_cache_hit_tokens_total") > 0


def seen_sum(series: dict[str, float], name: str) -> float:
    return sum(value for key, value in series.items() if key.partition("{")[0] == name)


def check_scrape(now: dict[str, float], before: dict[str, float]) -> None:
    """Against itself, and against the scrape before."""
    rising = ("_total", "_count", "_sum", "_bucket")
    fallen = [k for k, v in before.items() if k.partition("{")[0].endswith(rising) and now.get(k, 0) < v]
    assert fallen == []
    assert [k for k, v in now.items() if v < 0] == []
    assert all(0 <= v <= 1 for k, v in now.items() if k.partition("{")[0].endswith("_ratio"))
    below: dict[str, float] = {}
    for key, value in now.items():
        name, _, labels = key.partition("{")
        if name.endswith("_bucket"):
            series = name + re.sub(r'le="[^"]*",?', "", labels)
            assert value >= below.get(series, 0), key
            below[series] = value
            if 'le="+Inf"' in labels:
                count = re.sub(r"_bucket$", "_count", name) + "{" + re.sub(r'le="[^"]*",?', "", labels).lstrip(",")
                assert now[count.replace(",}", "}")] == value, key
