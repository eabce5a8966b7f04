"""The objectives that the overview holds the service to, and how much of their budget is used up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dashboard.formatting import count, duration, number, percent
from dashboard.history import Sample
from engine.config import Config

TTFT_P95_S = Config().objective_ttft
ITL_P95_S = Config().objective_itl
"""By default; the overview holds the service to its own settings."""
MAY_MISS = 0.05
"""Share that may miss it: of requests or tokens (alerts), of the time in which a p95 may lie above (overview)."""
MAX_ERROR_RATE = 0.01


class Tile(msgspec.Struct, frozen=True):
    """One objective. ``burn`` is the share of the budget used: above 1 the objective is missed."""

    name: str
    term: str
    value: float | None
    unit: str  # a formatting filter: duration, percent, count
    level: str  # good, warn, bad; idle when there is nothing to judge
    burn: float | None
    words: str


def tiles(samples: Sequence[Sample], window_words: str, config: Config) -> list[Tile]:
    """The objectives over some samples, whose window is called `window_words` in the text; with a price the cost."""
    kinds = (
        ("First token", "TTFT", "ttft_p95_s", config.objective_ttft, "requests have their first token"),
        ("Between tokens", "ITL", "itl_p95_s", config.objective_itl, "tokens follow the one before"),
    )
    return [
        *(_latency(*kind, samples, window_words) for kind in kinds),
        _errors(samples, window_words),
        _throughput(samples),
        *_cost(samples, config.price_per_hour),
    ]


def _latency(
    name: str, term: str, key: str, limit_s: float, what: str, samples: Sequence[Sample], window_words: str
) -> Tile:
    known = [value for _, values in samples if (value := values.get(key)) is not None]
    if not known:
        words = f"No traffic in the {window_words}. The objective: 95 % within {duration(limit_s)}."
        return Tile(name, term, None, "duration", "idle", None, words)
    missed = sum(value > limit_s for value in known) / len(known)
    burn = missed / MAY_MISS
    words = (
        f"95 % of {what} within this. Objective {duration(limit_s)}, kept {percent(1 - missed)} of the {window_words}."
    )
    return Tile(name, term, known[-1], "duration", _level(burn, known[-1] > limit_s), burn, words)


def _errors(samples: Sequence[Sample], window_words: str) -> Tile:
    refused = sum(values.get("requests_refused") or 0 for _, values in samples)
    finished = sum(values.get("requests_finished") or 0 for _, values in samples) - refused
    errors = sum(values.get("requests_errors") or 0 for _, values in samples)
    if not finished:
        words = f"No request ended in the {window_words}. The objective: at most {percent(MAX_ERROR_RATE)}."
        return Tile("Errors", "error rate", None, "percent", "idle", None, words)
    burn = errors / finished / MAX_ERROR_RATE
    limit = percent(MAX_ERROR_RATE)
    words = f"{count(errors)} of {count(finished)} requests in the {window_words}. Objective: at most {limit}."
    if refused:
        words += f" {count(refused)} more were refused (the client's mistake)."
    return Tile("Errors", "error rate", errors / finished, "percent", _level(burn, False), burn, words)


def _throughput(samples: Sequence[Sample]) -> Tile:
    latest = [values for _, values in samples[-5:]]
    if not latest:
        return Tile("Output", "tokens out", None, "count", "idle", None, "Nothing is being generated.")
    out = sum(values.get("generation_tokens") or 0 for values in latest) / len(latest)
    tokens_in = sum(values.get("prompt_tokens") or 0 for values in latest) / len(latest)
    now = latest[-1]
    running, waiting = number(now.get("running") or 0, "sequence"), count(now.get("waiting") or 0)
    words = f"{count(tokens_in)} tokens/s read; {running} running, {waiting} waiting."
    return Tile("Output", "tokens out", out, "count", "idle", None, words)


def _cost(samples: Sequence[Sample], price_per_hour: float) -> list[Tile]:
    if not price_per_hour:
        return []
    now = samples[-1][1] if samples else {}
    output, total = now.get("cost_output"), now.get("cost_total")
    words = f"Per million output tokens in the last minute, at {price_per_hour:g} per replica and hour."
    if output is None:
        words = "No output token in the last minute; the replicas cost the same."
    elif total is not None:
        words += f" Prompts counted in: {total:,.3g}."
    return [Tile("Cost", "cost", output, "price", "idle", None, words)]


def _level(burn: float, over_now: bool) -> str:
    if burn > 1:
        return "bad"
    return "warn" if over_now or burn > 0.5 else "good"
