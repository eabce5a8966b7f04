"""What the overview's charts draw: which lines, from which keys of the samples, merged into how many points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from dashboard.history import Sample

MAX_POINTS = 300

Value = float | None


def _max(values: list[float]) -> float:
    return max(values)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _last(values: list[float]) -> float:
    return values[-1]


class Line(msgspec.Struct, frozen=True):
    """One line of a chart. ``sample`` is its key in the samples; of several seconds in a point, ``merge`` decides."""

    key: str
    label: str
    css: str  # a colour class of the style sheet
    term: str  # of `dashboard.definitions`
    sample: str
    merge: Callable[[list[float]], float]


class Chart(msgspec.Struct, frozen=True):
    """One chart. ``unit`` is a formatting filter: duration, count, percent."""

    id: str
    title: str
    term: str
    unit: str
    lines: tuple[Line, ...]
    stacked: bool = False
    note: str = ""


def _latency(chart_id: str, title: str, term: str, note: str) -> Chart:
    shades = (("p50", "s1"), ("p95", "s2"), ("p99", "s3"))
    lines = tuple(Line(f"{chart_id}_{p}", p, css, p, f"{chart_id}_{p}_s", _max) for p, css in shades)
    return Chart(chart_id, title, term, "duration", lines, note=note)


CHARTS = (
    _latency("ttft", "Time to first token", "TTFT", "last 10 s"),
    _latency("itl", "Inter-token latency", "ITL", "last 10 s"),
    Chart(
        "tokens",
        "Tokens per second",
        "tokens out",
        "count",
        (
            Line("tokens_out", "out", "s1", "tokens out", "generation_tokens", _mean),
            Line("tokens_in", "in", "s2", "tokens in", "prompt_tokens", _mean),
        ),
    ),
    Chart(
        "load",
        "Running and waiting",
        "running",
        "count",
        (
            Line("running", "running", "s1", "running", "running", _max),
            Line("waiting_kv_blocks", "KV blocks", "s3", "kv_blocks", "waiting_kv_blocks", _max),
            Line("waiting_token_budget", "token budget", "s4", "token_budget", "waiting_token_budget", _max),
            Line("waiting_max_running", "max running", "s2", "max_running", "waiting_max_running", _max),
            Line("waiting_preempted", "preempted", "s5", "preempted", "waiting_preempted", _max),
        ),
        stacked=True,
    ),
    Chart(
        "kv",
        "KV blocks",
        "KV blocks",
        "count",
        (
            Line("blocks_active", "active", "s1", "active", "blocks_active", _last),
            Line("blocks_cached", "cached", "s2", "cached", "blocks_cached", _last),
            Line("blocks_free", "free", "s0", "free", "blocks_free", _last),
        ),
        stacked=True,
    ),
    Chart(
        "hits",
        "Prefix cache hit rate",
        "prefix hit rate",
        "percent",
        (Line("hit_rate", "hit rate", "s1", "prefix hit rate", "prefix_hit_rate", _mean),),
    ),
)


def point_seconds(window_s: int) -> int:
    """Seconds that one point stands for."""
    return math.ceil(window_s / MAX_POINTS)


def columns(samples: Sequence[Sample], window_s: int) -> dict[str, list[Value]]:
    """The points of all charts as columns: ``ts`` (start of the point) and one column per line; None for no value.

    Points lie on multiples of their length, so that a later reading yields the same ones.
    """
    step = point_seconds(window_s)
    points: dict[int, list[dict[str, Value]]] = {}
    for ts, values in samples:
        points.setdefault(ts - ts % step, []).append(values)
    table: dict[str, list[Value]] = {"ts": [float(ts) for ts in points]}
    for line in (line for chart in CHARTS for line in chart.lines):
        table[line.key] = [_merged(line, seconds) for seconds in points.values()]
    return table


def _merged(line: Line, seconds: list[dict[str, Value]]) -> Value:
    known = [value for second in seconds if (value := second.get(line.sample)) is not None]
    return line.merge(known) if known else None
