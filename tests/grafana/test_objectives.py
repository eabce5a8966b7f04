from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from engine.gateway import errors
from grafana import objectives
from grafana.generate import ROOT
from telemetry.metric_labels import ABORTS, CLIENT_MISTAKES
from telemetry.metric_table import BY_NAME


def calls() -> Iterator[tuple[str, ast.Call]]:
    """(name, call) of all calls in the engine."""
    for file in (ROOT / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield getattr(node.func, "id", getattr(node.func, "attr", "")), node


def is_client_error(name: str, call: ast.Call) -> bool:
    if name == "ApiError" and call.args and isinstance(call.args[0], ast.Constant):
        return 400 <= call.args[0].value < 500 and call.args[0].value != 429
    return name in ("bad_request", "RequestRefusedError")


def code_of(call: ast.Call) -> str | None:
    """The error code that a call gives as a literal."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"] + call.args[2:3]
    return next((node.value for node in given if isinstance(node, ast.Constant)), None)


def test_every_code_of_a_4xx_in_the_engine_counts_as_the_clients_mistake():
    codes = {code_of(call) for name, call in calls() if is_client_error(name, call)} - {None}
    assert len(codes) >= 10
    assert codes | {errors.INVALID_REQUEST, "method_not_allowed"} == set(CLIENT_MISTAKES)


@pytest.mark.parametrize(
    "error",
    [
        errors.overloaded("full"),
        errors.unavailable("no replica", "no_replica_ready"),
        errors.deadline_exceeded(1),
        errors.internal_error(),
    ],
    ids=lambda error: error.error_type,
)
def test_what_is_the_servers_fault_counts(error):
    assert error.error_type not in (*CLIENT_MISTAKES, *ABORTS)


@pytest.mark.parametrize("objective", objectives.OBJECTIVES, ids=lambda objective: objective.key)
def test_the_fastest_burn_can_be_reached(objective):
    """An alert whose threshold is more than everything could never fire."""
    assert max(burn.rate for burn in objectives.PAGE) * objective.budget < 1
    assert objective.bound_s is None or objective.bound_s in BY_NAME[objective.metric].buckets


def test_every_window_of_an_alert_is_recorded():
    recorded = {rule.name for rule in objectives.recordings()}
    assert {c.expr.text for alert in objectives.alerts() for c in alert.conditions} <= recorded
    used = {window for burn in (*objectives.PAGE, *objectives.TICKET) for window in (burn.long, burn.short)}
    assert used == set(objectives.WINDOWS)
