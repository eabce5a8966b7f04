from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse

from engine.bench.client import Client, RequestError, Target
from engine.bench.load import http_client, measure
from engine.bench.report import summarize
from engine.bench.workload import Workload
from tests.bench.fake_server import DONE, FakeServer, text, usage, well_behaved


async def run(server: FakeServer, workload: Workload, stop: asyncio.Event | None = None, **hooks):
    target = Target(url=server.url, model="fake-1", timeout_s=5.0)
    async with http_client(target, workload.concurrency) as http:
        client = Client(target, http, hooks.pop("on_events", None))
        return await measure(client, workload, 1, stop or asyncio.Event(), **hooks)


def small(**fields) -> Workload:
    return Workload(**{"requests": 6, "concurrency": 3, "prompt_words": 5, "output_tokens": 3, "warmup": 0} | fields)


async def test_every_request_is_sent_once_and_never_more_than_asked_for_at_once():
    async with FakeServer().running() as server:
        measured = await run(server, small(requests=10, output_tokens=5))
    assert len(measured.results) == len({body["prompt"] for body in server.bodies}) == 10
    assert server.most_at_once == 3
    assert (measured.unfinished, measured.interrupted) == (0, False)


async def test_warm_up_requests_are_not_counted():
    async with FakeServer().running() as server:
        measured = await run(server, small(requests=2, warmup=3))
    assert (len(server.bodies), len(measured.results)) == (5, 2)


async def test_a_shared_prefix_is_computed_before_the_clock_starts():
    async with FakeServer().running() as server:
        await run(server, small(requests=2, concurrency=1, shared_prefix_words=50))
    prompts = [body["prompt"].split() for body in server.bodies]
    assert len(prompts) == 3
    assert len({tuple(prompt[:50]) for prompt in prompts}) == 1


async def test_failures_are_counted_by_kind_and_do_not_end_the_run():
    calls = iter(range(100))

    def every_other(body):
        return PlainTextResponse("busy", 503) if next(calls) % 2 else well_behaved(body)

    async with FakeServer(every_other).running() as server:
        measured = await run(server, small())
    summary = summarize(measured)
    assert (summary.succeeded, summary.failed) == (3, 3)
    assert (summary.errors, summary.error_examples) == ({"http_503": 3}, {"http_503": "busy"})
    assert summary.output_tokens == 9


async def test_stopping_keeps_what_was_measured():
    stop = asyncio.Event()

    async def first_two_only(body):
        if len(server.bodies) > 2:
            await asyncio.sleep(60)
        yield text("a", "length") + usage(3, 1) + DONE

    server = FakeServer(first_two_only)
    seen = []

    def stop_after_two(result):
        seen.append(result)
        if len(seen) == 2:
            stop.set()

    async with server.running():
        measured = await run(server, small(requests=10, concurrency=2), stop, on_result=stop_after_two)
    assert measured.interrupted
    assert measured.results == seen
    assert measured.unfinished > 0
    assert measured.duration_s > 0
    assert summarize(measured).failed == 0


async def test_prompt_tokens_are_turned_into_words():
    async with FakeServer().running() as server:
        measured = await run(server, small(prompt_tokens=100))
    assert {result.prompt_tokens for result in measured.results} == {100}
    assert measured.workload.prompt_words == 97


async def test_prompt_tokens_need_a_server_that_counts():
    async def uncounted(body):
        yield text("a", "length") + DONE

    async with FakeServer(uncounted).running() as server:
        with pytest.raises(RequestError, match="--prompt-words"):
            await run(server, small(prompt_tokens=100))


async def test_rates_follow_from_counts_and_duration():
    events = []
    async with FakeServer().running() as server:
        measured = await run(server, small(), on_events=events.append)
    summary = summarize(measured)
    assert sum(events) == summary.output_tokens == 18
    assert summary.prompt_tokens == 6 * 8
    assert summary.output_tokens_per_s == pytest.approx(18 / measured.duration_s)
    assert summary.total_tokens_per_s == pytest.approx((18 + 48) / measured.duration_s)
    assert summary.requests_per_s == pytest.approx(6 / measured.duration_s)
    assert (summary.ttft_s.count, summary.e2e_s.count) == (6, 6)
    assert summary.tokens_counted_by == "usage"
