"""Requests of random length, clients that leave, stages that are killed: every request ends exactly once."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import signal

import httpx
import msgspec
import pytest

from telemetry.events import Stage
from tests.e2e.served import Served

REQUESTS, KILLS, CONCURRENCY = 200, 20, 12
VICTIMS = [s for s in Stage if s is not Stage.SUPERVISOR]
MODEL = "smollm2-135m-instruct"


class Outcome(msgspec.Struct):
    """What a client saw of its request."""

    kind: str  # finished, refused, error, broken, aborted
    request_id: str = ""
    token_ids: list[int] = []


async def ask(client: httpx.AsyncClient, url: str, chooser: random.Random, leave: bool) -> Outcome:
    """One request of random length; with `leave`, the client walks away at a random moment."""
    body = {
        "model": MODEL, "prompt": [chooser.randrange(1000, 40_000) for _ in range(chooser.randint(1, 300))],
        "max_tokens": chooser.randint(1, 100), "ignore_eos": True, "return_token_ids": True,
        "stream": chooser.random() < 0.7, "temperature": chooser.choice([0, 0.8]),
    }  # fmt: skip
    patience = chooser.uniform(0.01, 2.0) if leave else 120
    seen = Outcome("broken")
    try:
        async with asyncio.timeout(patience):
            await (read_stream if body["stream"] else read_whole)(client, url, body, seen)
    except TimeoutError:
        seen.kind = "aborted" if leave else "hung"
    except httpx.HTTPError:
        seen.kind = "broken"
    return seen


async def read_whole(client, url, body, seen: Outcome) -> None:
    answer = await client.post(url + "/v1/completions", json=body)
    note_status(answer, seen)
    if answer.status_code == 200:
        seen.token_ids = answer.json()["choices"][0]["token_ids"]
        seen.kind = "finished"


async def read_stream(client, url, body, seen: Outcome) -> None:
    async with client.stream("POST", url + "/v1/completions", json=body) as answer:
        note_status(answer, seen)
        if answer.status_code != 200:
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                note_event(json.loads(line[6:]), seen)
            elif line == "data: [DONE]" and seen.kind == "broken":
                seen.kind = "finished"


def note_status(answer: httpx.Response, seen: Outcome) -> None:
    seen.request_id = answer.headers["x-request-id"]
    if answer.status_code in (429, 503):
        seen.kind = "refused"
    elif answer.status_code != 200:
        seen.kind = "error"


def note_event(event: dict, seen: Outcome) -> None:
    if "error" in event:
        seen.kind = "error"
    for choice in event.get("choices", []):
        seen.token_ids = seen.token_ids + (choice.get("token_ids") or [])


async def kill_stages(served: Served, chooser: random.Random, done: asyncio.Event) -> int:
    """Kill a random stage as soon as all are up again, at random moments."""
    kills = 0
    while kills < KILLS:
        await asyncio.to_thread(served.eventually, lambda: served.status("/ready") == 200, 60, "ready again")
        await asyncio.sleep(chooser.uniform(0.0, 5.0))
        page = served.page(chooser.choice(VICTIMS))
        if page is None:
            continue  # on its way back
        served.note_processes()
        try:
            os.kill(page.owner.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        kills += 1
    done.set()
    return kills


async def load(served: Served, chooser: random.Random, done: asyncio.Event) -> list[Outcome]:
    """At least REQUESTS requests that were let in, and going on until the last kill."""
    outcomes: list[Outcome] = []

    async def worker(client: httpx.AsyncClient) -> None:
        while sum(o.kind != "refused" for o in outcomes) < REQUESTS or not done.is_set():
            outcome = await ask(client, served.url, chooser, leave=chooser.random() < 1 / 3)
            outcomes.append(outcome)
            if outcome.kind in ("refused", "broken"):
                await asyncio.sleep(0.5)

    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(worker(client) for _ in range(CONCURRENCY)))
    return outcomes


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2026, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_every_request_ends_exactly_once_whatever_dies(serve, seed):
    served = serve()
    served.note_sockets()
    chooser = random.Random(seed)

    async def everything():
        done = asyncio.Event()
        outcomes, kills = await asyncio.gather(load(served, chooser, done), kill_stages(served, chooser, done))
        return outcomes, kills

    outcomes, kills = asyncio.run(everything())
    tally = collections.Counter(o.kind for o in outcomes)
    print(f"{len(outcomes)} requests, {kills} kills: {dict(tally)}")
    assert kills == KILLS and len(outcomes) - tally["refused"] >= REQUESTS
    assert tally["finished"] > 50 and tally["error"] and tally["aborted"] > 30 and not tally["hung"]

    served.eventually(served.idle, 30, "gauges idle, pool whole")
    served.eventually(lambda: not open_rows(served), 30, "no request open in the store")
    check_counters(served)
    served.note_processes()
    assert served.stop()[0] == 0
    assert served.leftovers() == []
    check_records(served, outcomes)


def open_rows(served: Served) -> list[dict]:
    return [row for row in served.request_rows().values() if row["state"] != "finished"]


def check_counters(served: Served, before: frozenset[str] = frozenset()) -> None:
    """The counters say what the store says of this run, however often telemetry was killed on the way.

    `before` are requests of earlier runs. One that was in no journal any more when telemetry came back has a row,
    and was never counted.
    """
    rows = [row for row in served.request_rows().values() if row["request_id"] not in before]
    counted = [row for row in rows if row["error_type"] != "records_lost"]
    by_reason = collections.Counter(row["finish_reason"] for row in counted)
    metrics = served.metrics()

    def total(name: str, having: str = "") -> float:
        return sum(v for key, v in metrics.items() if key.partition("{")[0] == name and having in key)

    for reason in ("stop", "length", "abort", "error"):
        assert total("vitrine_requests_total", f'finish_reason="{reason}"') == by_reason[reason]
    assert total("vitrine_generation_tokens_total") == sum(row["output_tokens"] or 0 for row in counted)
    assert total("gen_ai_server_request_duration_seconds_count") == len(counted)


def check_records(served: Served, outcomes: list[Outcome]) -> None:
    """Store and token log agree with what the clients saw; nothing is missing, nothing is doubled."""
    rows = served.request_rows()
    lines = collections.defaultdict(list)
    for line in served.token_lines():
        lines[line["request_id"]].append(line)
    assert all(len(found) == 1 for found in lines.values()), "a request was logged twice"
    assert all(row["state"] == "finished" and row["finish_reason"] for row in rows.values())
    assert all(lines[request_id] for request_id, row in rows.items() if row["finish_reason"] in ("stop", "length"))
    for outcome in outcomes:
        if outcome.kind != "finished":
            continue
        assert rows[outcome.request_id]["finish_reason"] == "length"
        assert lines[outcome.request_id][0]["output_token_ids"] == outcome.token_ids
    for outcome in outcomes:
        if outcome.kind == "error":
            assert rows[outcome.request_id]["finish_reason"] == "error"
