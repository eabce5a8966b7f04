"""How many finished requests per second the telemetry process can take account of.

``python -m tests.load.store_path [--requests 20000] [--tokens 3] [--token-log ids|off] [--url postgresql://…]``
feeds the records of short requests through assembly, metrics, token log and store, as fast as they are taken: in
passes of 200 requests, with a transaction every five (at 2,000 requests/s: two a second). No spans: their share is 0.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil

from engine.config import Config
from telemetry.assembly import Assembly
from telemetry.events import Stage
from telemetry.exposition import Exposition
from telemetry.gauges import GaugeBoard
from telemetry.metrics import Metrics
from telemetry.retention import Limits
from telemetry.run_reader import Pass
from telemetry.sinks import Sinks
from telemetry.span_resources import Resources
from telemetry.store import Store
from tests.telemetry.factories import Story

PER_PASS = 200
PASSES_PER_COMMIT = 5


class Result(NamedTuple):
    """Requests per second of wall-clock time, CPU per request, and how the process has grown since the first fifth."""

    requests_per_s: float
    cpu_us_per_request: float
    longest_commit_ms: float
    grown_bytes: int


def measure(folder: Path, requests: int, tokens: int, token_log: str, url: str = "") -> Result:
    """Feed `requests` requests of `tokens` output tokens each."""
    config: Any = Config(data_dir=str(folder), token_log=token_log)  # type: ignore[arg-type]
    store = Store(folder, url, Limits(max_bytes=1 << 30))
    metrics = Metrics("tiny")
    sinks = Sinks(config, "run", store, Exposition(metrics, GaugeBoard(folder), "tiny"), metrics, None)
    sinks.recover()
    assembly = Assembly("run")
    replicas = SimpleNamespace(info=lambda _: None)
    run: Any = SimpleNamespace(
        past=False, wall_offset_ns=0, resources=Resources(), replicas=replicas, assembly=assembly,
        tail=SimpleNamespace(positions=lambda: {"journal": (0, taken)}),
    )  # fmt: skip
    taken = 0
    longest = busy = busy_cpu = 0.0
    grown_from = 0
    process = psutil.Process()
    for number in range(requests // PER_PASS):
        story = _story(number, tokens)  # made outside the clock
        entries = sorted(story.entries, key=lambda entry: entry[0].stage is not Stage.GATEWAY)
        started, cpu = time.perf_counter(), time.process_time()
        for owner, record in entries:
            assembly.feed(owner, record)
        result = Pass(steps=assembly.take_steps(), records=len(story.entries))
        sinks.take_steps(result, run)
        result.finished = assembly.advance(story.ns(1e9))
        taken += len(result.finished)
        sinks.take(result, run)
        if number % PASSES_PER_COMMIT == PASSES_PER_COMMIT - 1:
            begun = time.perf_counter()
            sinks.commit(run)
            longest = max(longest, time.perf_counter() - begun)
        busy += time.perf_counter() - started
        busy_cpu += time.process_time() - cpu
        if number == requests // PER_PASS // 5:
            grown_from = process.memory_info().rss
    sinks.commit(run, last=True)
    assert taken == requests // PER_PASS * PER_PASS
    assert not sinks.exposition.dropped.total()
    grown = process.memory_info().rss - grown_from
    sinks.close(1.0)
    return Result(taken / busy, 1e6 * busy_cpu / taken, 1e3 * longest, grown)


def _story(number: int, tokens: int) -> Story:
    story = Story(start_ns=5_000_000_000_000 + number * 100_000_000)
    first = number * PER_PASS * (tokens + 1)
    story._seq_ids = iter(range(first, first + PER_PASS * 2))  # type: ignore[assignment]
    story._step_ids = iter(range(first, first + PER_PASS * (tokens + 1)))  # type: ignore[assignment]
    for i in range(PER_PASS):
        story.complete_request(f"req-{number:08x}{i:04x}", tokens=tuple(range(100, 100 + tokens)))
    return story


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--token-log", default="ids", choices=("ids", "off"))
    parser.add_argument("--url", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), args.requests, args.tokens, args.token_log, args.url)
    print(json.dumps(result._asdict(), indent=2))


if __name__ == "__main__":
    main()
