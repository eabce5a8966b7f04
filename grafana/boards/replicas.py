"""The replicas side by side, what they run, and whether telemetry keeps up with them."""

from __future__ import annotations

from grafana.boards.requests import ITL, TTFT
from grafana.panels import SCOPED, Dashboard, Panel, Row, Target, gauges, quantile_by, rates, target

_REPLICA = ("replica",)
_BUILD = ("replica", "model", "version", "revision", "dtype", "device", "model_sha256", "tokenizer_sha256")


def board() -> Dashboard:
    """Made from the metric table."""
    about = "Replicas side by side: state, restarts, load and latency of each; and the telemetry itself."
    return Dashboard("replicas", "Vitrine / Replicas", about, (_states(), _side_by_side(), _telemetry()))


def _states() -> Row:
    build = Target(SCOPED.gauge("vitrine_build_info", _BUILD, "max"))
    restarts = SCOPED.increase("vitrine_replica_restarts_total", ("replica", "reason"))
    scaled = SCOPED.increase("vitrine_scale_decisions_total", ("direction", "trigger"))
    each = "Shown: in each interval."
    return Row(
        "States",
        (
            gauges("Replicas by state", "short", "vitrine_replicas", ("state",), stacked=True),
            Panel("Restarts", "short", (target(restarts),), note=each),
            Panel("Scale decisions", "short", (target(scaled),), note=each),
            Panel("What each replica runs", "short", (build,), "table", width=24, height=6),
        ),
    )


def _side_by_side() -> Row:
    return Row(
        "Side by side",
        (
            rates("Requests", "reqps", "vitrine_requests_total", _REPLICA, stacked=True),
            rates("Output", "suffix: tokens/s", "vitrine_generation_tokens_total", _REPLICA, stacked=True),
            gauges("Running", "short", "vitrine_requests_running", _REPLICA),
            quantile_by(0.9, "TTFT, p90", "s", TTFT, _REPLICA),
            quantile_by(0.9, "ITL, p90", "s", ITL, _REPLICA),
            gauges("KV use", "percentunit", "vitrine_kv_cache_usage_ratio", _REPLICA, "max", top=1, limit=0.95),
        ),
    )


def _telemetry() -> Row:
    return Row(
        "Telemetry",
        (
            rates("Items taken, by sink", "suffix: items/s", "vitrine_telemetry_events_total", ("sink",)),
            rates("Items lost, by sink", "suffix: items/s", "vitrine_telemetry_dropped_total", ("sink",)),
            gauges("Lag", "s", "vitrine_telemetry_lag_seconds", (), "max", limit=5),
        ),
    )
