"""The prefix cache changes what is computed, never what is answered."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from telemetry import schema
from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.e2e.clients import BLOCK, Stream, answer, assert_same_greedy, at_once, streamed
from tests.e2e.served import Served


@pytest.fixture(scope="module")
def uncached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same engine without the cache: what the answers should be."""
    flags = ("--dtype", "float32", "--prefix-cache", "off")
    with Served(tmp_path_factory.mktemp("uncached"), *flags) as served:
        yield served


def ask(served: Served, ids: list[int], tokens: int = 6) -> tuple[list[int], int]:
    """The ids of the answer, and how many tokens of the prompt were found in the cache."""
    got = answer(served, prompt=ids, max_tokens=tokens, ignore_eos=True, return_token_ids=True)
    assert got["usage"]["prompt_tokens"] == len(ids)
    return got["choices"][0]["token_ids"], got["usage"]["prompt_tokens_details"]["cached_tokens"]


def check(shared: Served, uncached: Served, ids: list[int], cached: int, tokens: int = 6) -> None:
    """The answer is that without cache, and `cached` tokens were not computed."""
    got, found = ask(shared, ids, tokens)
    assert found == cached
    assert_same_greedy(shared, ids, ask(uncached, ids, tokens)[0], got)


def words(seed: int, count: int) -> list[int]:
    """Ids of ordinary tokens that no other test uses in this order."""
    chooser = random.Random(seed)
    return [chooser.randrange(1000, 40_000) for _ in range(count)]


def test_blocks_that_differ_a_little_are_different(shared, uncached):
    """PC-01."""
    block = [100] * BLOCK
    ask(shared, [*block, 5])
    changed = []
    for j in range(0, BLOCK - 1, 3):
        changed.append(block.copy())
        changed[-1][j] += 31
        changed[-1][j + 1] -= 1
    changed += [[*words(1, BLOCK - 2), 7, 8], [*words(1, BLOCK - 2), 8, 7]]
    for ids in changed:
        check(shared, uncached, [*ids, 5], cached=0)
    assert ask(shared, [*block, 5])[1] == BLOCK


def test_equal_blocks_behind_different_ones_are_different(shared, uncached):
    """PC-01."""
    first, second, then = words(2, BLOCK), words(3, BLOCK), words(4, BLOCK)
    ask(shared, [*first, *then, 5])
    check(shared, uncached, [*second, *then, 5], cached=0)
    check(shared, uncached, [*then, *first, 5], cached=0)
    check(shared, uncached, [*first, *then, 5], cached=2 * BLOCK)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])
def test_a_prompt_that_is_known_to_its_end_still_computes_its_last_token(shared, uncached, length):
    """PC-03."""
    ids = words(100 + length, length)
    check(shared, uncached, ids, cached=0)
    for _ in range(2):
        check(shared, uncached, ids, cached=BLOCK * ((length - 1) // BLOCK))
    check(shared, uncached, [*ids, 5], cached=BLOCK * (length // BLOCK))


def test_a_shared_beginning_is_not_altered_by_those_who_go_on_from_it(shared, uncached):
    """PC-06."""
    beginning = words(5, 3 * BLOCK + BLOCK // 2)
    one, other = beginning, beginning + words(6, 20)
    for ids, cached in ((one, 0), (other, 3 * BLOCK), (one, 3 * BLOCK), (other, BLOCK * ((len(other) - 1) // BLOCK))):
        check(shared, uncached, ids, cached, tokens=24)
    expected = [ask(uncached, ids, 24)[0] for ids in (one, other)]
    together = at_once(lambda ids: ask(shared, ids, 24)[0], [one, other] * 3)
    for ids, right, got in zip([one, other] * 3, expected * 3, together, strict=True):
        assert_same_greedy(shared, ids, right, got)


def test_of_a_prompt_whose_client_left_only_what_was_computed_is_cached(shared, uncached):
    """PC-06."""
    ids = words(7, 3000)
    before = shared.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID)
    stream = Stream(shared, {"x-request-id": "half"}, prompt=ids, max_tokens=4)
    shared.eventually(lambda: shared.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID) >= before + 2, what="two chunks")
    stream.leave()
    shared.eventually(shared.idle, 5, "the engine has let go")
    assert stream.join().events == []
    row = shared.finished_row("half")
    computed = sum(chunk[2] for chunk in sequence_of(shared, row["request_id"])["chunks"])
    assert 0 < computed < len(ids)
    got, cached = ask(shared, ids, 8)
    assert 0 < cached <= computed
    assert_same_greedy(shared, ids, ask(uncached, ids, 8)[0], got)


def sequence_of(served: Served, request_id: str) -> dict[str, Any]:
    (row,) = [r for r in served.rows(schema.sequences) if r["request_id"] == request_id]
    return row


def test_a_stream_says_how_much_was_cached_too(shared):
    ids = words(8, 2 * BLOCK + 1)
    for cached in (0, 2 * BLOCK):
        stream = streamed(shared, prompt=ids, max_tokens=2, stream_options={"include_usage": True})
        assert stream.events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
