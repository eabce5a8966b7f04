"""From what was measured to numbers, and from numbers to text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from rich import box
from rich.table import Table

from engine.bench.load import Measured
from engine.bench.statistics import Distribution
from engine.bench.workload import Workload

DEFINITIONS = {
    "ttft_s": "Seconds from sending a request to the first event with text.",
    "itl_s": (
        "Seconds between output tokens: one value per token after the first arrival. Events that arrive together "
        "count as one arrival, and an arrival of k tokens gives k values of gap / k."
    ),
    "tpot_s": "Per request: (last arrival - first arrival) / (output tokens - 1).",
    "e2e_s": "Seconds from sending a request to the end of its stream.",
    "requests_per_s": "Requests that succeeded / duration.",
    "output_tokens_per_s": "Output tokens of requests that succeeded / duration.",
    "total_tokens_per_s": "Prompt and output tokens of requests that succeeded / duration.",
    "duration_s": "Seconds from the first request sent to the last one ended, without the warm-up.",
    "tokens_counted_by": (
        "usage: the server's usage block, spread evenly over the events where they name no token ids. "
        "events: one token per event with text, because a usage block was missing."
    ),
}
"""What each number in the JSON report means. Latencies are those of requests that succeeded."""


class Summary(msgspec.Struct, kw_only=True, frozen=True):
    """The numbers of one run. Definitions: `DEFINITIONS`."""

    workload: Workload
    interrupted: bool
    duration_s: float
    succeeded: int
    failed: int
    unfinished: int
    errors: dict[str, int]
    error_examples: dict[str, str]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tokens_counted_by: str
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution | None
    itl_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None


def summarize(measured: Measured) -> Summary:
    """Reduce a run to its numbers."""
    good = [result for result in measured.results if not result.error]
    bad = [result for result in measured.results if result.error]
    prompt, output = (sum(result.prompt_tokens for result in good), sum(result.output_tokens for result in good))
    return Summary(
        workload=measured.workload,
        interrupted=measured.interrupted,
        duration_s=measured.duration_s,
        succeeded=len(good),
        failed=len(bad),
        unfinished=measured.unfinished,
        errors=dict(Counter(result.error for result in bad)),
        error_examples={result.error: result.message for result in reversed(bad)},
        prompt_tokens=prompt,
        cached_tokens=sum(result.cached_tokens for result in good),
        output_tokens=output,
        tokens_counted_by="events" if any(result.usage_tokens is None for result in good) else "usage",
        requests_per_s=_rate(len(good), measured.duration_s),
        output_tokens_per_s=_rate(output, measured.duration_s),
        total_tokens_per_s=_rate(prompt + output, measured.duration_s),
        ttft_s=Distribution.of(_known(result.ttft_s for result in good)),
        itl_s=Distribution.of(value for result in good for value in result.inter_token_latencies_s()),
        tpot_s=Distribution.of(_known(result.tpot_s for result in good)),
        e2e_s=Distribution.of(result.e2e_s for result in good),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def latency_table(summary: Summary) -> Table:
    """Latencies of one run in milliseconds."""
    table = Table("ms", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("p50", "p90", "p99", "mean", "max"):
        table.add_column(column, justify="right")
    table.add_row("TTFT", *_milliseconds(summary.ttft_s))
    table.add_row("ITL", *_milliseconds(summary.itl_s))
    table.add_row("TPOT", *_milliseconds(summary.tpot_s))
    table.add_row("end to end", *_milliseconds(summary.e2e_s))
    return table


def _milliseconds(values: Distribution | None) -> Sequence[str]:
    if values is None:
        return ["–"] * 5
    return [f"{1e3 * v:,.1f}" for v in (values.p50, values.p90, values.p99, values.mean, values.max)]


def headline(summary: Summary) -> str:
    """What was asked for, in a line."""
    load = summary.workload
    return f"{load.name}: {load.requests} requests, {load.concurrency} at once, {load.output_tokens} tokens out"


def totals(summary: Summary) -> list[str]:
    """Rates and counts of one run, and what is to know about them, in lines."""
    lines = [
        f"{summary.output_tokens_per_s:,.1f} output tokens/s, {summary.total_tokens_per_s:,.1f} tokens/s in all, "
        f"{summary.requests_per_s:,.2f} requests/s",
        f"{summary.succeeded} succeeded, {summary.failed} failed in {summary.duration_s:.2f} s; "
        f"{summary.prompt_tokens:,} prompt tokens ({summary.cached_tokens:,} cached), {summary.output_tokens:,} output",
    ]
    if summary.interrupted:
        lines.append(f"interrupted: {summary.unfinished} requests were under way and are not counted")
    if summary.tokens_counted_by == "events":
        lines.append("a usage block was missing: tokens are counted as events with text")
    lines += [f"{n} x {kind}, for example: {summary.error_examples[kind]}" for kind, n in summary.errors.items()]
    return lines
