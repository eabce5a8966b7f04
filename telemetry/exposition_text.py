"""Prometheus' text format and OpenMetrics, written from plain numbers.

Written here and not by prometheus_client because that one checks and escapes every label of every sample anew: 50 ms
for the 2,500 samples of three replicas. What does not change of a sample, all but its number, is made once and kept.
The tests hold the result to be what prometheus_client writes, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prometheus_client.utils import floatToGoString

from telemetry.metric import Kind, Metric
from telemetry.metric_table import BY_NAME
from telemetry.metrics import Exemplar, Histogram, Labels

Series = Mapping[Labels, float] | Mapping[Labels, Histogram]

_KEPT_SERIES = 20_000
_number = lru_cache(_KEPT_SERIES)(floatToGoString)


def write_page(families: Iterable[tuple[Metric, Series]], openmetrics: bool) -> bytes:
    """The whole page, families in the order given; `openmetrics`: in that format and with exemplars."""
    lines: list[str] = []
    for metric, series in families:
        lines.append(_head(metric.name, openmetrics))
        for labels, value in series.items():
            lines += _samples(metric.name, labels, value, openmetrics)
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode()


def _samples(name: str, labels: Labels, value: float | Histogram, exemplars: bool) -> Iterable[str]:
    starts = _starts(name, labels)
    if isinstance(value, Histogram):
        return _histogram(starts, value, exemplars)
    return (f"{starts[0]}{_number(value)}\n",)


def _histogram(starts: tuple[str, ...], histogram: Histogram, exemplars: bool) -> Iterator[str]:
    """Cumulative buckets, the last of which is the count, then count and sum."""
    running = 0
    for i, count in enumerate(histogram.counts):
        running += count
        exemplar = histogram.exemplars.get(i) if exemplars else None
        yield f"{starts[i]}{_number(running)}{_exemplar(exemplar) if exemplar else ''}\n"
    yield f"{starts[-2]}{_number(running)}\n"
    yield f"{starts[-1]}{_number(histogram.total)}\n"


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {_number(exemplar.value)} {exemplar.ts}'


@lru_cache
def _head(name: str, openmetrics: bool) -> str:
    metric = BY_NAME[name]
    family = name.removesuffix("_total") if openmetrics else name
    words = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        words = words.replace('"', r"\"")
    return f"# HELP {family} {words}\n# TYPE {family} {metric.kind}\n"


@lru_cache(_KEPT_SERIES)
def _starts(name: str, labels: Labels) -> tuple[str, ...]:
    """What stands in front of the number in each line of a series: of a histogram buckets, count and sum."""
    metric = BY_NAME[name]
    named = dict(zip((*metric.common, *metric.labels), labels, strict=True))
    if metric.kind is not Kind.HISTOGRAM:
        return (f"{name}{_braces(named)} ",)
    bounds = (*map(floatToGoString, metric.buckets), "+Inf")
    buckets = (f"{name}_bucket{_braces({**named, 'le': bound})} " for bound in bounds)
    return (*buckets, f"{name}_count{_braces(named)} ", f"{name}_sum{_braces(named)} ")


def _braces(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
