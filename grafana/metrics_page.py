"""``deploy/prometheus/METRICS.md``: the metric table for people."""

from __future__ import annotations

from prometheus_client.utils import floatToGoString

from telemetry.metric import Metric
from telemetry.metric_table import FACTS, LIVE

_INTRODUCTION = """\
# Metrics

Made by `python -m grafana.generate` from `telemetry/metric_table.py`.

`GET /metrics` on both ports answers with all of these: in OpenMetrics' format with exemplars (the `trace_id` of one
request per bucket of the latency histograms) when `Accept` asks for it, else in Prometheus' text format. Nothing that a
client can choose becomes a label's value. `model` is the name that the API serves, `replica` is empty for what belongs
to none (a request refused before one was chosen; the gateway's own process).

Counters and histograms go on where they were after the telemetry process, a replica or any other process was restarted;
with the whole system they begin at 0.
"""
_HEAD = "| name | type | labels | meaning |\n| --- | --- | --- | --- |"


def text() -> str:
    """The whole page."""
    parts = [
        _INTRODUCTION,
        "## Counted from what happened\n",
        _table(FACTS),
        "\n## Read at the moment of the question\n",
        _table(LIVE),
        "\n## Values of labels\n",
        *(_values(metric) for metric in (*FACTS, *LIVE) if metric.values),
        "## Buckets\n",
        "Upper bounds; each histogram has a last bucket for everything above.\n",
        "| histogram | bounds |\n| --- | --- |",
        *(f"| `{metric.name}` | {_bounds(metric)} |" for metric in FACTS if metric.buckets),
    ]
    return "\n".join(parts) + "\n"


def _table(metrics: tuple[Metric, ...]) -> str:
    return "\n".join([_HEAD, *map(_row, metrics)])


def _row(metric: Metric) -> str:
    names = ", ".join(f"`{label}`" for label in (*metric.common, *metric.labels))
    return f"| `{metric.name}` | {metric.kind} | {names} | {metric.help} |"


def _values(metric: Metric) -> str:
    lines = [
        f"- `{label}` `{value}`: {meaning}"
        for label, values in metric.values.items()
        for value, meaning in values.items()
    ]
    return "\n".join([f"`{metric.name}`\n", *lines, ""])


def _bounds(metric: Metric) -> str:
    return ", ".join(map(floatToGoString, metric.buckets))
