"""The objectives as Prometheus sees them: what share missed them, over which windows, and when that is too much.

The numbers are those of the operator dashboard (`dashboard.objectives`). Method: multi-window, multi-burn-rate alerts
of "The Site Reliability Workbook" (Google), chapter 5, with its windows and burn rates for a budget of 30 days.
"""

from __future__ import annotations

import msgspec

from dashboard.objectives import ITL_P95_S, MAX_ERROR_RATE, MAY_MISS, TTFT_P95_S
from grafana.promql import Expr, Queries
from grafana.rules import Alert, Condition, Recording
from telemetry.metric_labels import ABORTS, CLIENT_MISTAKES

WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")


class Burn(msgspec.Struct, frozen=True):
    """Too fast when the budget is used up at `rate` times the speed at which it would last, in both windows."""

    rate: float
    long: str
    short: str


PAGE = (Burn(14.4, "1h", "5m"), Burn(6, "6h", "30m"))
TICKET = (Burn(3, "1d", "2h"), Burn(1, "3d", "6h"))


class Objective(msgspec.Struct, frozen=True):
    """What may miss it is the `budget`, a share. ``bound_s`` is the latency to keep; None: it is about errors."""

    key: str
    title: str
    metric: str
    budget: float
    bound_s: float | None
    words: str
    advice: str

    def missed(self, window: str) -> Expr:
        """Share of what was observed in the window that missed it, per model."""
        queries = Queries(window)
        if self.bound_s is None:
            everything = queries.observed(self.metric, ("model",), _NOT_REFUSED)
            kept = queries.observed(self.metric, ("model",), _NO_FAULT) / everything
        else:
            everything = queries.observed(self.metric, ("model",))
            kept = queries.within(self.metric, self.bound_s, ("model",)) / everything
        return msgspec.structs.replace(kept, text=f"1 - {kept.text}")


# What is refused for the client's mistake is no part of it, what a client gave up is no fault, all else is one.
_NOT_REFUSED = {"error_type": f'!~"{"|".join(CLIENT_MISTAKES)}"'}
_NO_FAULT = {"error_type": f'=~"|{"|".join(ABORTS)}"'}

_TTFT = Objective(
    "ttft",
    "first token",
    "gen_ai_server_time_to_first_token_seconds",
    MAY_MISS,
    TTFT_P95_S,
    f"Objective: {1 - MAY_MISS:.0%} of first tokens within {TTFT_P95_S:g} s.",
    "See which part of TTFT grew on the stages dashboard: queue (too much load: add a replica, lower --max-queue or "
    "--prefill-share), prefill (longer prompts, fewer prefix hits) or tokenize.",
)
_ITL = Objective(
    "itl",
    "between tokens",
    "vitrine_inter_token_latency_seconds",
    MAY_MISS,
    ITL_P95_S,
    f"Objective: {1 - MAY_MISS:.0%} of tokens within {ITL_P95_S:g} s of the one before.",
    "Compare step duration and batch size on the engine dashboard. Long mixed steps: lower --prefill-share or "
    "--max-num-batched-tokens. Large batches: lower --max-num-seqs or add a replica.",
)
_ERRORS = Objective(
    "errors",
    "errors",
    "gen_ai_server_request_duration_seconds",
    MAX_ERROR_RATE,
    None,
    f"Objective: at most {MAX_ERROR_RATE:.0%} of requests fail for a reason that is not the client's.",
    "See the errors by type on the requests dashboard. rate_limit_exceeded: too much load, add a replica. "
    "engine_error or no_replica_ready: read crash/ and logs/ in the data folder. deadline_exceeded: see the "
    "latencies.",
)
OBJECTIVES = (_TTFT, _ITL, _ERRORS)


def recorded(objective: Objective, window: str) -> Recording:
    """The rule that keeps `Objective.missed`."""
    return Recording(f"model:vitrine_{objective.key}_missed:ratio_rate{window}", objective.missed(window))


def recordings() -> list[Recording]:
    """All of them, for every window."""
    return [recorded(objective, window) for objective in OBJECTIVES for window in WINDOWS]


def burn(objective: Objective, window: str) -> Expr:
    """How many times too fast the budget is used up, from the recorded series of the chosen models."""
    name = recorded(objective, window).name
    return Expr(f'max by (model) ({name}{{model=~"$model"}}) / {objective.budget:g}', (objective.metric,), ("model",))


def alerts() -> list[Alert]:
    """Two for each objective: a page and a ticket."""
    return [alert for objective in OBJECTIVES for alert in (_alert(objective, "page"), _alert(objective, "ticket"))]


def _alert(objective: Objective, severity: str) -> Alert:
    burns, speed = (PAGE, "Fast") if severity == "page" else (TICKET, "Slow")
    name = {"ttft": "TTFT", "itl": "ITL", "errors": "Error"}[objective.key]
    return Alert(
        f"Vitrine{name}BudgetBurns{speed}",
        tuple(_too_fast(objective, burn) for burn in burns),
        "2m" if severity == "page" else "15m",
        severity,
        f"{{{{ $labels.model }}}}: {{{{ $value | humanizePercentage }}}} missed the objective for {objective.title}",
        f"{objective.words} The budget is being used up {_SPEED[severity]}. {objective.advice}",
        "requests",
    )


_SPEED = {"page": "within days, at this speed", "ticket": "faster than it lasts"}


def _too_fast(objective: Objective, burn: Burn) -> tuple[Condition, ...]:
    def over(window: str) -> Condition:
        rule = recorded(objective, window)
        return Condition(Expr(rule.name, rule.expr.metrics, rule.expr.labels), ">", burn.rate * objective.budget)

    return over(burn.long), over(burn.short)
