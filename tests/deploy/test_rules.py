"""Prometheus' own checker on the committed configuration and rules; and every alert, firing and not."""

from __future__ import annotations

import json
import re

import pytest

from dashboard.objectives import ITL_P95_S, MAX_ERROR_RATE, MAY_MISS, TTFT_P95_S
from grafana import alerts, objectives
from grafana.generate import ROOT
from telemetry.metric_labels import RESTART_REASONS
from telemetry.metrics import restart_reason
from tests.deploy.alert_cases import CASES, R0, Case

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yml"))
SEVERITIES = {alert.name: alert.severity for alert in [*objectives.alerts(), *alerts.alerts()]}


def unit_test(case: Case) -> dict:
    """In promtool's format, of which JSON is a part."""
    firing = f'alertname="{case.alert}",alertstate="firing"'
    expected = [",".join(filter(None, [firing, f'severity="{SEVERITIES[case.alert]}"', own])) for own in case.fires]
    return {
        "rule_files": [str(rules) for rules in RULES],
        "evaluation_interval": case.step,
        "group_eval_order": ["vitrine-objectives", "vitrine-alerts"],
        "tests": [
            {
                "interval": case.step,
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "promql_expr_test": [
                    {
                        "expr": f"ALERTS{{{firing}}}",
                        "eval_time": case.at,
                        "exp_samples": [{"labels": f"ALERTS{{{labels}}}", "value": 1} for labels in expected],
                    }
                ],
            }
        ],
    }


def test_the_configuration_and_its_rules_are_valid(promtool):
    said = promtool("check", "config", "--lint-fatal", PROMETHEUS / "prometheus.yml")
    assert "2 rule files found" in said and said.count("SUCCESS") == 4
    promtool("check", "rules", "--lint-fatal", *RULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.name}")
def test_an_alert_fires_when_it_must_and_only_then(promtool, tmp_path, case):
    file = tmp_path / "case.yml"
    file.write_text(json.dumps(unit_test(case)))
    promtool("test", "rules", file)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    assert {case.alert for case in CASES if case.fires} == set(SEVERITIES)
    assert {case.alert for case in CASES if not case.fires} == set(SEVERITIES)


def test_what_a_firing_alert_says(promtool, tmp_path):
    stuck = next(alert for alert in alerts.alerts() if alert.name == "VitrineEngineStuck")
    case = next(case for case in CASES if case.alert == stuck.name and case.fires)
    test = unit_test(case)
    del test["tests"][0]["promql_expr_test"]
    expected = {
        "exp_labels": {"severity": "page", **dict(re.findall(r'(\w+)="(\w+)"', R0))},
        "exp_annotations": {
            "summary": "m, replica r0: no step for 2m 40s with work pending",
            "description": stuck.advice,
            "dashboard": "http://127.0.0.1:3000/d/vitrine-engine?var-model=m&var-replica=r0",
        },
    }
    test["tests"][0]["alert_rule_test"] = [
        {"eval_time": case.at, "alertname": stuck.name, "exp_alerts": [expected]},
    ]
    (tmp_path / "said.yml").write_text(json.dumps(test))
    promtool("test", "rules", tmp_path / "said.yml")


@pytest.mark.parametrize("alert", [*objectives.alerts(), *alerts.alerts()], ids=lambda alert: alert.name)
def test_alerts_speak_only_of_labels_that_they_have(alert):
    used = set(re.findall(r"\$labels\.(\w+)", "\n".join(alert.lines("http://grafana"))))
    assert used <= set(alert.labels)
    assert len({condition.expr.labels for condition in alert.conditions}) == 1, "conditions would not match each other"
    assert alert.severity in ("page", "ticket") and alert.summary and alert.advice


def test_objectives_are_those_of_the_dashboard():
    recording = (PROMETHEUS / "rules" / "recording.yml").read_text()
    rules = (PROMETHEUS / "rules" / "alerts.yml").read_text()
    assert f'time_to_first_token_seconds_bucket{{le="{TTFT_P95_S}"}}' in recording
    assert f'inter_token_latency_seconds_bucket{{le="{ITL_P95_S}"}}' in recording
    assert f"ttft_missed:ratio_rate1h > {14.4 * MAY_MISS:g}\n" in rules
    assert f"errors_missed:ratio_rate3d > {MAX_ERROR_RATE:g}\n" in rules


@pytest.mark.parametrize("status", ["killed by SIGKILL", "exit 1", "no heartbeat for 3 s", "not ready in 60 s", "?"])
def test_every_reason_of_a_restart_has_a_series_from_the_start(status):
    assert restart_reason(status) in RESTART_REASONS
