"""The engine: steps, batches, KV cache, queue."""

from __future__ import annotations

from grafana import colours
from grafana.panels import SCOPED, Dashboard, Panel, Row, Target, gauges, quantile_by, quantiles, rates, stat
from grafana.panels import target as by_labels

_HIT_RATE = SCOPED.rate("vitrine_prefix_cache_hit_tokens_total") / SCOPED.rate(
    "vitrine_prefix_cache_queried_tokens_total"
)
_STEP = "vitrine_step_duration_seconds"


def board() -> Dashboard:
    """Made from the metric table."""
    about = "What the engine does with its time and its KV cache: steps, batches, waiting and memory."
    return Dashboard("engine", "Vitrine / Engine", about, (_now(), _steps(), _device(), _queue(), _cache()))


def _now() -> Row:
    return Row(
        "Now",
        (
            stat("Output", "suffix: tokens/s", SCOPED.rate("vitrine_generation_tokens_total")),
            stat("Running", "short", SCOPED.gauge("vitrine_requests_running")),
            stat("Waiting", "short", SCOPED.gauge("vitrine_requests_waiting")),
            stat("KV use", "percentunit", SCOPED.gauge("vitrine_kv_cache_usage_ratio", how="max"), limit=0.95),
            stat("Prefix hit rate", "percentunit", _HIT_RATE, note="Tokens found / tokens looked up."),
            stat("Last step", "s", SCOPED.gauge("vitrine_engine_last_step_age_seconds", how="max"), limit=30),
        ),
    )


def _steps() -> Row:
    return Row(
        "Steps",
        (
            quantiles("Step duration", "s", _STEP),
            quantile_by(0.9, "Step duration by kind, p90", "s", _STEP, ("kind",)),
            Panel("Steps", "suffix: steps/s", (by_labels(SCOPED.observed(_STEP, ("kind",))),), stacked=True),
            quantiles("Sequences in a step", "short", "vitrine_step_batch_size"),
            quantiles("Tokens in a step", "short", "vitrine_step_batch_tokens"),
            rates(
                "Runner waiting for the scheduler",
                "percentunit",
                "vitrine_runner_idle_seconds_total",
                ("replica",),
                note="Share of the time. What --overlap on hides.",
            ),
        ),
    )


def _device() -> Row:
    mfu, bandwidth = "vitrine_model_flops_utilization_ratio", "vitrine_memory_bandwidth_utilization_ratio"
    cost = "vitrine_serving_cost_per_million_tokens"
    accepted = SCOPED.rate("vitrine_spec_decode_accepted_tokens_total")
    drafted = SCOPED.rate("vitrine_spec_decode_draft_tokens_total")
    speculation = (
        Target(SCOPED.rate("vitrine_spec_decode_drafts_total"), "drafts"),
        Target(drafted, "drafted tokens"),
        Target(accepted, "accepted tokens"),
    )
    return Row(
        "Device",
        (
            gauges("FLOPs, share of the peak", "percentunit", mfu, ("kind",), "max", top=1),
            gauges("Memory bandwidth, share of the peak", "percentunit", bandwidth, ("kind",), "max", top=1),
            gauges("Cost per million tokens", "short", cost, ("replica", "kind"), "max"),
            Panel("Speculation", "suffix: /s", speculation, width=12),
            rates(
                "Accepted tokens, by position in the draft",
                "suffix: tokens/s",
                "vitrine_spec_decode_accepted_tokens_per_position_total",
                ("position",),
                width=12,
            ),
        ),
    )


def _queue() -> Row:
    return Row(
        "Queue",
        (
            gauges("Running", "short", "vitrine_requests_running", ("replica",)),
            gauges("Waiting, by reason", "short", "vitrine_requests_waiting", ("reason",), stacked=True),
            gauges("Age of the last step", "s", "vitrine_engine_last_step_age_seconds", ("replica",), "max", limit=30),
        ),
    )


def _cache() -> Row:
    usage = "vitrine_kv_cache_usage_ratio"
    return Row(
        "KV cache",
        (
            gauges(
                "KV blocks", "short", "vitrine_kv_cache_blocks", ("state",), stacked=True, colours=colours.of_blocks()
            ),
            gauges("KV use", "percentunit", usage, ("replica",), "max", top=1, limit=0.95),
            Panel("Prefix hit rate", "percentunit", (Target(_HIT_RATE, "hit rate"),), top=1),
            rates("Evicted blocks", "suffix: blocks/s", "vitrine_prefix_cache_evicted_blocks_total", ("replica",)),
            rates("Preemptions", "suffix: preemptions/s", "vitrine_preemptions_total", ("replica",)),
            rates(
                "Tokens computed in vain",
                "suffix: tokens/s",
                "vitrine_wasted_tokens_total",
                ("reason",),
                stacked=True,
            ),
        ),
    )
