"""Every expression of the dashboards and rules, asked of a real Prometheus that scrapes a real engine under load."""

from __future__ import annotations

import time

import pytest

from grafana import alerts, objectives
from grafana.generate import boards
from telemetry.metric_labels import CLIENT_MISTAKES
from tests.e2e.clients import MODEL, Stream, at_once, send, send_raw, user
from tests.e2e.prometheus import Prometheus
from tests.e2e.served import Served

GRAFANAS = {"$__rate_interval": "30s", "$model": ".*", "$replica": ".*"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("scraped"), "--device", "simulated") as served:
        yield served


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory, engine):
    """It has seen the engine before the load and after."""
    prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), f"127.0.0.1:{engine.port}")
    try:
        engine.eventually(prometheus.up, 20, "the first scrape")
        load(engine)
        ended = engine.metric("vitrine_requests_total")
        seen = "sum(vitrine_requests_total)"
        engine.eventually(lambda: prometheus.values(seen) == [ended], 20, "a scrape after the load")
        yield prometheus
    finally:
        prometheus.close()


def load(engine: Served) -> None:
    """Answers of both endpoints, shared prompts, mistakes, and a client that leaves."""
    asks = [{"messages": user(f"Question {i % 5}"), "max_tokens": 20} for i in range(20)]
    asks += [{"prompt": list(range(5, 100)), "max_tokens": 30, "ignore_eos": True} for _ in range(20)]
    assert {answer.status_code for answer in at_once(lambda ask: send(engine, ask), asks, workers=16)} == {200}
    make_mistakes(engine)
    leaver = Stream(engine, prompt=[7, 8, 9], max_tokens=4000, ignore_eos=True).wait_events(1)
    leaver.leave()
    gone = ("vitrine_requests_total", 'finish_reason="abort"')
    engine.eventually(lambda: engine.metric(*gone) == 1 and engine.idle(), 20, "the end of the one who left")


def make_mistakes(engine: Served) -> None:
    """Requests that are refused for what the client sent."""
    mistakes = [
        {"prompt": "x", "no_such_field": 1},
        {"prompt": "x", "max_tokens": -1},
        {"prompt": "x", "model": "another"},
        {"prompt": [5] * 100_000},
        {"max_tokens": 1},
        {"prompt": []},
    ]
    assert all(400 <= send(engine, mistake).status_code < 500 for mistake in mistakes)
    assert send_raw(engine, b"{").status_code == 400


def without_variables(expression: str) -> str:
    """As Grafana sends it, with everything chosen."""
    for variable, value in GRAFANAS.items():
        expression = expression.replace(variable, value)
    return expression


def panel_expressions() -> dict[str, str]:
    return {
        f"{board.title}, {panel.title}: {target.expr.text}": without_variables(target.expr.text)
        for board in boards()
        for row in board.rows
        for panel in row.panels
        for target in panel.targets
    }


def rule_expressions() -> dict[str, str]:
    """Recorded series, and what alerts compare with a number (with the comparison they are empty when all is well)."""
    rules = [*objectives.alerts(), *alerts.alerts()]
    compared = {f"{a.name}: {c.expr.text}": c.expr.text for a in rules for c in a.conditions}
    return compared | {rule.name: rule.name for rule in objectives.recordings()}


@pytest.mark.parametrize("expressions", [panel_expressions, rule_expressions], ids=["panels", "rules"])
def test_no_expression_is_in_error_or_empty(engine, prometheus, expressions):
    empty = dict(expressions())
    assert len(empty) > 30

    def all_have_values() -> bool:
        for name in [name for name, expression in empty.items() if prometheus.values(expression)]:
            del empty[name]
        return not empty

    engine.eventually(all_have_values, 20, empty)  # said as it is at the end


def test_every_rule_is_evaluated_and_nothing_is_wrong_with_a_healthy_engine(engine, prometheus):
    def rules() -> list[dict]:
        return [rule for group in prometheus.ask("/rules")["groups"] for rule in group["rules"]]

    engine.eventually(lambda: all(rule["health"] != "unknown" for rule in rules()), 20, "all rules evaluated")
    assert len(rules()) == len(objectives.recordings()) + len([*objectives.alerts(), *alerts.alerts()])
    assert {rule["health"] for rule in rules()} == {"ok"}, [rule.get("lastError") for rule in rules()]
    assert [rule["name"] for rule in rules() if rule.get("state") == "firing"] == []


def test_mistakes_of_clients_and_clients_that_leave_use_up_no_error_budget(engine, prometheus):
    refused = f'gen_ai_server_request_duration_seconds_count{{error_type=~"{"|".join(CLIENT_MISTAKES)}"}}'
    assert sum(prometheus.values(refused)) == 7, "a mistake has an error_type that is not among CLIENT_MISTAKES"
    recorded = "model:vitrine_errors_missed:ratio_rate5m"
    engine.eventually(lambda: prometheus.values(recorded), 20, recorded)
    assert prometheus.values(recorded) == [pytest.approx(0, abs=1e-9)]


def test_the_variables_of_the_dashboards_find_model_and_replica(prometheus):
    assert prometheus.ask("/label/model/values", **{"match[]": "vitrine_replicas"}) == [MODEL]
    assert prometheus.ask("/label/replica/values", **{"match[]": "vitrine_requests_running"}) == ["r0"]


def test_exemplars_lead_to_traces(engine, prometheus):
    def exemplars() -> list[dict]:
        name, now = "gen_ai_server_time_to_first_token_seconds_bucket", time.time()
        found = prometheus.ask("/query_exemplars", query=name, start=now - 600, end=now + 600)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    engine.eventually(exemplars, 10, "exemplars")
    assert all(len(exemplar["labels"]["trace_id"]) == 32 for exemplar in exemplars())
