"""The stages: which is the bottleneck, where requests spend their time, what the processes use."""

from __future__ import annotations

from grafana import colours
from grafana.panels import WITH_SHARED, Dashboard, Panel, Row, gauges, quantile_by, rates, target
from grafana.promql import Expr

_STAGE = ("stage",)
_TIME = "vitrine_stage_duration_seconds"


def board() -> Dashboard:
    """Made from the metric table."""
    about = "Where the time goes: utilisation and queues of each stage, time of requests in it, CPU and memory."
    return Dashboard("stages", "Vitrine / Stages", about, (_bottleneck(), _times(), _processes()))


def _bottleneck() -> Row:
    stages = colours.of_stages()
    return Row(
        "Bottleneck",
        (
            rates(
                "Utilisation",
                "percentunit",
                "vitrine_stage_busy_seconds_total",
                _STAGE,
                how="max",
                note="Share of the time; of several replicas the busiest. The one nearest to 100 % is the bottleneck.",
                width=12,
                top=1,
                queries=WITH_SHARED,
                colours=stages,
            ),
            gauges(
                "Queue depth",
                "short",
                "vitrine_stage_queue_depth",
                _STAGE,
                width=12,
                queries=WITH_SHARED,
                colours=stages,
            ),
        ),
    )


def _times() -> Row:
    parts = colours.of_parts()
    panels = tuple(
        quantile_by(share, f"Time in each stage, p{share * 100:g}", "s", _TIME, _STAGE, colours=parts)
        for share in (0.5, 0.9, 0.99)
    )
    return Row("Time of a request in each stage", panels)


def _processes() -> Row:
    stages = colours.of_stages()
    uptime = WITH_SHARED.gauge("process_start_time_seconds", _STAGE, "max")
    age = Expr(f"time() - {uptime.text}", uptime.metrics, uptime.labels)
    return Row(
        "Processes",
        (
            rates(
                "CPU",
                "percentunit",
                "process_cpu_seconds_total",
                _STAGE,
                note="100 % is one core.",
                queries=WITH_SHARED,
                colours=stages,
            ),
            gauges(
                "Resident memory",
                "bytes",
                "process_resident_memory_bytes",
                _STAGE,
                stacked=True,
                queries=WITH_SHARED,
                colours=stages,
            ),
            gauges(
                "Virtual memory", "bytes", "process_virtual_memory_bytes", _STAGE, queries=WITH_SHARED, colours=stages
            ),
            gauges(
                "Open file descriptors",
                "short",
                "process_open_fds",
                _STAGE,
                queries=WITH_SHARED,
                colours=stages,
                width=12,
            ),
            Panel("Uptime", "s", (target(age),), note="Shown: time since then.", colours=stages, width=12),
        ),
    )
