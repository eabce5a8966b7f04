"""What telemetry costs: two servers of ours, one with everything on and one with it off, under the same load in turn.

    round 1    on: batch, single    off: batch, single
    round 2    off: batch, single   on: batch, single
    …

Both stay up all the time, so that neither is favoured by a cold start or by the hour; only what happens within a round
is compared. CPU time is that of all processes of a server, until telemetry is done with the last request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from engine.bench.client import Client, RequestError, Target
from engine.bench.load import http_client, measure
from engine.bench.local_server import LocalServer, cpu_used
from engine.bench.report import Summary, summarize
from engine.bench.results import RequestResult
from engine.bench.span_sink import SpanSink
from engine.bench.statistics import MedianInterval
from engine.bench.workload import Workload

SETTLE_S = 3.0
"""Time after the last answer in which telemetry takes account of it and sends its spans; counted on both sides."""

SCRAPE_INTERVAL_S = 5.0
"""As in deploy/prometheus."""

CPU_BUDGET_RATIO = 1.02
ITL_BUDGET_S = 0.0002


class Side(msgspec.Struct, frozen=True):
    """One server's part of a round. ``cpu_s`` is what each process used in the batch workload, by its name."""

    batch: Summary
    single: Summary
    cpu_s: dict[str, float]

    def cpu_s_per_token(self, process: str | None = None) -> float:
        """CPU seconds per output token of the batch workload, of one process or of all."""
        used = sum(self.cpu_s.values()) if process is None else self.cpu_s.get(process, 0.0)
        return used / self.batch.output_tokens

    @property
    def itl_p50_s(self) -> float:
        """Of the single stream."""
        return self.single.itl_s.p50 if self.single.itl_s else 0.0


class Round(msgspec.Struct, frozen=True):
    """Both sides under the same prompts, one after the other."""

    on: Side
    off: Side


class Overhead(msgspec.Struct, frozen=True):
    """All rounds. ``dropped`` are the items that telemetry lost: with any, it did less than it should have."""

    rounds: list[Round]
    dropped: float
    span_bytes: int

    def cpu_ratio(self) -> MedianInterval:
        """CPU seconds per output token, on / off."""
        return self._interval(lambda r: r.on.cpu_s_per_token() / r.off.cpu_s_per_token())

    def throughput_ratio(self) -> MedianInterval:
        """Output tokens per second of wall-clock time, on / off."""
        return self._interval(lambda r: r.on.batch.output_tokens_per_s / r.off.batch.output_tokens_per_s)

    def itl_difference_s(self) -> MedianInterval:
        """ITL p50 of a single stream, on - off."""
        return self._interval(lambda r: r.on.itl_p50_s - r.off.itl_p50_s)

    def _interval(self, of: Callable[[Round], float]) -> MedianInterval:
        return MedianInterval.of(of(each) for each in self.rounds)


class OverheadRun:
    """Measures. `on_result` hears of each answer, `on_side` of each part of a round as it begins."""

    def __init__(
        self,
        workloads: tuple[Workload, Workload],
        flags: Sequence[str],
        api_key: str = "",
        on_side: Callable[[int, str, Workload], None] | None = None,
        on_result: Callable[[RequestResult], None] | None = None,
    ) -> None:
        self._batch, self._single = workloads
        self._flags = flags
        self._api_key = api_key
        self._on_side = on_side or (lambda number, side, workload: None)
        self._on_result = on_result or (lambda result: None)

    async def run(self, rounds: int, seed: int, stop: asyncio.Event) -> Overhead:
        """Measure `rounds` rounds, fewer when `stop` is set. Raises ServerFailedError, RequestError."""
        async with SpanSink() as sink, contextlib.AsyncExitStack() as stack:
            on = await stack.enter_async_context(
                LocalServer(*self._flags, "--telemetry", "on", "--otlp-endpoint", sink.url)
            )
            off = await stack.enter_async_context(LocalServer(*self._flags, "--telemetry", "off"))
            done = []
            for number in range(rounds):
                measured = await self._round(number, on, off, seed, stop)
                if stop.is_set():
                    break
                done.append(measured)
            return Overhead(done, dropped_items(await on.metrics()), sink.received_bytes)

    async def _round(self, number: int, on: LocalServer, off: LocalServer, seed: int, stop: asyncio.Event) -> Round:
        sides: dict[str, Side] = {}
        for name, server in (("on", on), ("off", off))[:: -1 if number % 2 else 1]:
            scraped = on if name == "on" else None
            sides[name] = await self._side(number, name, server, scraped, seed + number, stop)
        return Round(**sides)

    async def _side(
        self, number: int, name: str, server: LocalServer, scraped: LocalServer | None, seed: int, stop: asyncio.Event
    ) -> Side:
        before = server.cpu_times()
        async with _scraping(scraped):
            self._on_side(number, name, self._batch)
            batch = await self._measure(server, self._batch, seed, stop)
            await asyncio.sleep(SETTLE_S)
            used = cpu_used(before, server.cpu_times())
            self._on_side(number, name, self._single)
            single = await self._measure(server, self._single, seed, stop)
        return Side(batch, single, used)

    async def _measure(self, server: LocalServer, workload: Workload, seed: int, stop: asyncio.Event) -> Summary:
        target = Target(url=server.url)
        async with http_client(target, workload.concurrency, self._api_key) as http:
            target = msgspec.structs.replace(target, model=await Client(target, http).choose_model())
            summary = summarize(await measure(Client(target, http), workload, seed, stop, self._on_result))
        if summary.failed:
            kind, example = next(iter(summary.error_examples.items()))
            raise RequestError(kind, f"{summary.failed} requests failed, for example: {example}")
        return summary


@contextlib.asynccontextmanager
async def _scraping(server: LocalServer | None) -> AsyncIterator[None]:
    """Ask for the metrics now and then, as Prometheus would."""

    async def scrape(server: LocalServer) -> None:
        while True:
            await server.metrics()
            await asyncio.sleep(SCRAPE_INTERVAL_S)

    task = asyncio.create_task(scrape(server)) if server else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def dropped_items(metrics: str) -> float:
    """The sum of ``vitrine_telemetry_dropped_total``."""
    return sum(float(v) for v in re.findall(r"^vitrine_telemetry_dropped_total\{[^}]*\} (\S+)", metrics, re.MULTILINE))
