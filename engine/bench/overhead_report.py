"""The cost of telemetry in words and numbers."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table

from engine.bench.overhead import CPU_BUDGET_RATIO, ITL_BUDGET_S, SETTLE_S, Overhead, Round, Side
from engine.bench.statistics import MedianInterval, percentile

OVERHEAD_DEFINITIONS = {
    "on": "Spans of every request exported over OTLP/HTTP, metrics scraped, token log, store and flight recorder.",
    "off": "--telemetry off: health and gauges only.",
    "cpu_s": (
        f"User and system CPU seconds of each process, from the first warm-up request until {SETTLE_S:g} s after the "
        "last answer."
    ),
    "cpu_ratio": "CPU seconds of all processes per output token of the batch workload, on / off within a round.",
    "throughput_ratio": "Output tokens per second of the batch workload, on / off within a round.",
    "itl_difference_s": "Median inter-token latency of the single-stream workload, on - off within a round.",
    "median, low, high": (
        "Median over the rounds, and an interval that holds the true median with the probability 'confidence', "
        "whatever the distribution."
    ),
}


def overhead_table(overhead: Overhead) -> Table:
    """What telemetry costs, against the budget."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for column in ("on", "off", "difference", "interval", "budget"):
        table.add_column(column, justify="right")

    def row(name: str, of: Callable[[Side], float], unit: str, change: list[str]) -> None:
        on, off = (_median(of(getattr(each, side)) for each in overhead.rounds) for side in ("on", "off"))
        table.add_row(name, unit.format(on), unit.format(off), *change)

    row(
        "CPU per output token, ms",
        lambda side: 1e3 * side.cpu_s_per_token(),
        "{:.2f}",
        [*_percent(overhead.cpu_ratio()), f"{CPU_BUDGET_RATIO - 1:+.0%}"],
    )
    row("output tokens/s", lambda side: side.batch.output_tokens_per_s, "{:.1f}", _percent(overhead.throughput_ratio()))
    row(
        "ITL p50 of one stream, ms",
        lambda side: 1e3 * side.itl_p50_s,
        "{:.2f}",
        [*_milliseconds(overhead.itl_difference_s()), f"{1e3 * ITL_BUDGET_S:+.1f} ms"],
    )
    return table


def process_table(overhead: Overhead) -> Table:
    """Where the CPU time goes: milliseconds per output token by process, medians over the rounds."""
    table = Table("CPU ms per token", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("on", "off"):
        table.add_column(column, justify="right")
    names = {name for each in overhead.rounds for side in (each.on, each.off) for name in side.cpu_s}

    def used(name: str, side: Callable[[Round], Side]) -> float:
        return _median(1e3 * side(each).cpu_s_per_token(name) for each in overhead.rounds)

    rows = [(name, used(name, lambda r: r.on), used(name, lambda r: r.off)) for name in names]
    for name, on, off in sorted(rows, key=lambda row: -row[1]):
        table.add_row(name, f"{on:.3f}", f"{off:.3f}")
    return table


def overhead_notes(overhead: Overhead) -> list[str]:
    """How much was measured, and what speaks against it, in lines."""
    rounds = len(overhead.rounds)
    confidence = overhead.cpu_ratio().confidence
    tokens = sum(side.batch.output_tokens for each in overhead.rounds for side in (each.on, each.off))
    lines = [
        f"{rounds} rounds, {tokens:,} output tokens at concurrency {overhead.rounds[0].on.batch.workload.concurrency}; "
        f"medians of the rounds, intervals at {confidence:.1%}; {overhead.span_bytes / 1e6:.1f} MB of spans received"
    ]
    if not overhead.span_bytes:
        lines.append("no spans arrived: their cost is not in these numbers")
    if overhead.dropped:
        lines.append(f"telemetry lost {overhead.dropped:,.0f} items: it did less than it should have")
    return lines


def _median(values: object) -> float:
    return percentile(sorted(values), 0.5)  # type: ignore[call-overload]


def _percent(ratio: MedianInterval) -> list[str]:
    return [f"{ratio.median - 1:+.1%}", f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"]


def _milliseconds(difference: MedianInterval) -> list[str]:
    return [f"{1e3 * difference.median:+.2f} ms", f"{1e3 * difference.low:+.2f} to {1e3 * difference.high:+.2f}"]
