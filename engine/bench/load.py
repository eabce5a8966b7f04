"""The closed loop: so many requests at once, the next one sent when one has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from engine.bench.client import Client, RequestError, Target
from engine.bench.results import RequestResult
from engine.bench.workload import Prompts, Workload, words, words_for_tokens

_PROBE_WORDS = (16, 272)


@dataclass
class Measured:
    """A run of one workload, perhaps cut short: ``unfinished`` requests were under way when it was stopped."""

    workload: Workload
    results: list[RequestResult] = field(default_factory=list)
    duration_s: float = 0.0
    unfinished: int = 0
    interrupted: bool = False


def http_client(target: Target, concurrency: int, api_key: str = "") -> httpx.AsyncClient:
    """A client with one connection for each request at once, that waits for no proxy and undoes no compression."""
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(target.timeout_s, connect=10.0),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        trust_env=False,
    )


async def measure(
    client: Client,
    workload: Workload,
    seed: int,
    stop: asyncio.Event,
    on_result: Callable[[RequestResult], None] | None = None,
) -> Measured:
    """Warm up, then send the workload's requests. Ends early, with what there is, when `stop` is set.

    Failed requests are results like others. Raises RequestError only when ``prompt_tokens`` is asked for and
    the server does not count tokens.
    """
    measured = Measured(workload)
    measured.interrupted = await _until(stop, _measure(client, measured, seed, on_result or (lambda result: None)))
    return measured


async def _measure(client: Client, measured: Measured, seed: int, on_result: Callable[[RequestResult], None]) -> None:
    if measured.workload.prompt_tokens:
        measured.workload = await _with_words(client, measured.workload, seed)
    workload = measured.workload
    prompts = Prompts(workload, seed)
    await _warm_up(client, workload, prompts)
    started = time.perf_counter()

    async def work(indices: Iterator[int]) -> None:
        for index in indices:
            measured.unfinished += 1
            result = await client.complete(prompts.prompt(index), workload.output_tokens)
            measured.unfinished -= 1
            measured.results.append(result)
            on_result(result)

    try:
        indices = iter(range(workload.requests))
        await _together(work(indices) for _ in range(workload.concurrency))
    finally:
        measured.duration_s = time.perf_counter() - started


async def _warm_up(client: Client, workload: Workload, prompts: Prompts) -> None:
    """Requests that do not count: connections, caches, and the shared prefix, which is computed once."""
    count = max(workload.warmup, 1 if workload.shared_prefix_words else 0)
    await _together(client.complete(prompts.prompt(f"warm-up {i}"), workload.output_tokens) for i in range(count))


async def _with_words(client: Client, workload: Workload, seed: int) -> Workload:
    """The workload with as many words as make its prompt tokens, found with two small requests."""
    counted = []
    for count in _PROBE_WORDS:
        result = await client.complete(words(count, f"{seed} probe"), 1)
        if result.error:
            raise RequestError(result.error, result.message)
        counted.append((count, result.prompt_tokens))
    if counted[0][1] >= counted[1][1]:
        raise RequestError("no_usage", "the server does not count prompt tokens; use --prompt-words")
    return msgspec.structs.replace(workload, prompt_words=words_for_tokens(workload.prompt_tokens, *counted))


async def _together(jobs: Iterable[Coroutine[Any, Any, object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(job)


async def _until(stop: asyncio.Event, job: Coroutine[Any, Any, None]) -> bool:
    """Run `job` to its end or until `stop`; returns whether it was stopped."""
    task = asyncio.create_task(job)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return False
        return True
    finally:
        for pending in (task, stopped):
            pending.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)
