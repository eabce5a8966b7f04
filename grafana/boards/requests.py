"""Requests as clients see them: how many, how fast, how large, and how that compares with the objectives."""

from __future__ import annotations

from grafana import colours
from grafana.objectives import OBJECTIVES, burn
from grafana.panels import SCOPED, Dashboard, Panel, Row, Target, quantile_by, quantiles, rates, stat, target

E2E = "gen_ai_server_request_duration_seconds"
TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
ITL = "vitrine_inter_token_latency_seconds"
_OPERATION = ("gen_ai_operation_name",)


def board() -> Dashboard:
    """Made from the metric table."""
    about = "Requests as clients see them: rate, latency, size, and what is left of the error budgets."
    return Dashboard("requests", "Vitrine / Requests", about, (_now(), _objectives(), _latency(), _load()))


def _now() -> Row:
    return Row(
        "Now",
        (
            stat("Requests", "reqps", SCOPED.rate("vitrine_requests_total")),
            stat("TTFT p90", "s", SCOPED.quantile(0.9, TTFT)),
            stat("ITL p90", "s", SCOPED.quantile(0.9, ITL)),
            stat("e2e p90", "s", SCOPED.quantile(0.9, E2E)),
            stat("Prompt tokens", "suffix: tokens/s", SCOPED.rate("vitrine_prompt_tokens_total")),
            stat("Output tokens", "suffix: tokens/s", SCOPED.rate("vitrine_generation_tokens_total")),
        ),
    )


def _objectives() -> Row:
    note = "1 uses up the budget in exactly 30 days; alerts from 14.4 (one hour) and 6 (six hours)."
    burns = tuple(
        Panel(
            f"Burn rate: {objective.title}",
            "short",
            tuple(Target(burn(objective, window), f"{{{{model}}}} {window}") for window in ("5m", "1h", "6h")),
            note=f"{objective.words} {note}",
            limit=1,
        )
        for objective in OBJECTIVES
    )
    return Row("Objectives (of all replicas; needs the recording rules of deploy/prometheus)", burns)


def _latency() -> Row:
    heat = Target(SCOPED.buckets(TTFT), "{{le}}")
    return Row(
        "Latency",
        (
            quantiles("Time to first token (TTFT)", "s", TTFT),
            quantiles("Inter-token latency (ITL)", "s", ITL),
            quantiles("Time per output token (TPOT)", "s", TPOT),
            quantiles("End to end (e2e)", "s", E2E),
            quantile_by(0.9, "TTFT by operation, p90", "s", TTFT, _OPERATION),
            Panel("TTFT, all requests", "s", (heat,), "heatmap"),
        ),
    )


def _load() -> Row:
    ended = "vitrine_requests_total"
    reasons = colours.of_finish_reasons()
    errors = SCOPED.observed(E2E, ("error_type",), {"error_type": '!=""'})
    return Row(
        "Load",
        (
            rates("Requests, by how they ended", "reqps", ended, ("finish_reason",), stacked=True, colours=reasons),
            rates("Requests, by endpoint", "reqps", ended, ("endpoint",), stacked=True),
            Panel(
                "Errors and aborts, by type", "reqps", (target(errors),), note="What went wrong, when something did."
            ),
            quantiles("Prompt tokens of a request", "short", "vitrine_request_prompt_tokens"),
            quantiles("Output tokens of a request", "short", "vitrine_request_generation_tokens"),
            Panel(
                "Tokens",
                "suffix: tokens/s",
                (
                    Target(SCOPED.rate("vitrine_prompt_tokens_total"), "prompt"),
                    Target(SCOPED.rate("vitrine_generation_tokens_total"), "output"),
                ),
            ),
        ),
    )
