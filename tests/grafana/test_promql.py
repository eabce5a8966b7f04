from __future__ import annotations

import pytest

from grafana.promql import Queries

SCOPED = Queries("5m", {"model": '=~"$model"', "replica": '=~"$replica"'})


def test_a_rate_asks_for_the_scope_and_keeps_labels():
    expr = SCOPED.rate("vitrine_requests_total", ("finish_reason",))
    wanted = 'sum by (finish_reason) (rate(vitrine_requests_total{model=~"$model",replica=~"$replica"}[5m]))'
    assert expr.text == wanted
    assert expr.metrics == ("vitrine_requests_total",) and expr.labels == ("finish_reason",)


def test_the_scope_leaves_out_labels_that_a_metric_does_not_have():
    assert SCOPED.gauge("vitrine_telemetry_lag_seconds").text == "sum(vitrine_telemetry_lag_seconds)"
    assert "model=~" not in SCOPED.gauge("process_open_fds", ("stage",)).text


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda q: q.rate("vitrine_no_such_total"), "no metric vitrine_no_such_total"),
        (lambda q: q.rate("vitrine_requests_running"), "is a gauge, not a counter"),
        (lambda q: q.gauge("vitrine_requests_total"), "is a counter, not a gauge"),
        (lambda q: q.quantile(0.9, "vitrine_requests_total"), "is a counter, not a histogram"),
        (lambda q: q.rate("vitrine_requests_total", ("stage",)), "has no label stage"),
        (lambda q: q.gauge("vitrine_replicas", where={"reason": '="x"'}), "has no label reason"),
        (lambda q: q.within("vitrine_no_such_seconds", 1.0), "no metric vitrine_no_such_seconds"),
        (lambda q: q.within("vitrine_inter_token_latency_seconds", 0.123), "no bucket that ends at 0.123"),
    ],
)
def test_what_the_table_does_not_have_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(SCOPED)
