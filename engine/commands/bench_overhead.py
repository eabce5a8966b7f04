"""``vitrine bench --overhead``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from engine.bench.local_server import ServerFailedError
from engine.bench.overhead import Overhead, OverheadRun
from engine.bench.overhead_report import OVERHEAD_DEFINITIONS, overhead_notes, overhead_table, process_table
from engine.bench.progress import LiveProgress
from engine.bench.workload import SCENARIOS, Workload
from engine.commands.errors import CommandFailedError
from engine.commands.output import show


async def run(
    sizes: dict[str, int], flags: Sequence[str], rounds: int, seed: int, api_key: str, stop: asyncio.Event
) -> Overhead:
    """Measure what telemetry costs. `sizes` override those of the batch. Raises CommandFailedError, RequestError."""
    workloads = (msgspec.structs.replace(SCENARIOS["batch32"], **sizes), SCENARIOS["single"])
    with LiveProgress(Console(stderr=True)) as progress:

        def on_side(number: int, side: str, workload: Workload) -> None:
            progress.begin(workload, f"{number + 1}/{rounds} telemetry {side}, {workload.name}")

        measuring = OverheadRun(workloads, flags, api_key, on_side, progress.on_result)
        try:
            overhead = await measuring.run(rounds, seed, stop)
        except ServerFailedError as e:
            raise CommandFailedError(str(e)) from e
    if not overhead.rounds:
        raise CommandFailedError("interrupted before the first round was done")
    return overhead


def report(overhead: Overhead, console: Console) -> None:
    """Print the numbers."""
    for line in overhead_notes(overhead):
        console.print(Text(line))
    console.print()
    show(overhead_table(overhead), console)
    console.print()
    show(process_table(overhead), console)


def as_json(overhead: Overhead) -> dict[str, Any]:
    """All that was measured, with what it means."""
    results = {
        "cpu_ratio": overhead.cpu_ratio(),
        "throughput_ratio": overhead.throughput_ratio(),
        "itl_difference_s": overhead.itl_difference_s(),
    }
    return {"overhead": overhead, **results, "definitions": OVERHEAD_DEFINITIONS}
