from __future__ import annotations

import pytest

from telemetry.facts import Scope, StepFacts
from telemetry.serving_cost import WINDOW_S, ServingCost
from tests.telemetry.factories import START_NS, make_step

S = 1_000_000_000


def facts(at_ns, output, prompt=0, replica="r0"):
    return StepFacts("run", Scope(replica, 1), make_step(1, at_ns, []), [], prompt, output, [], "")


def make_cost(price_per_hour=3.6, replicas=("r0",)):
    cost = ServingCost(price_per_hour)
    for replica in replicas:
        cost.know(replica, START_NS - 3600 * S)
    return cost


def test_it_is_price_by_time_over_tokens():
    cost = make_cost()  # 0.001 per second, 0.06 per window
    cost.add_step(facts(START_NS, output=1000, prompt=2000))
    cost.add_step(facts(START_NS + S, output=1000))
    assert cost.per_million(START_NS + S) == {"output": pytest.approx(30), "total": pytest.approx(15)}


def test_replicas_without_work_cost_too():
    cost = make_cost(replicas=("r0", "r1"))
    cost.add_step(facts(START_NS, output=1000))
    assert cost.per_million(START_NS)["output"] == pytest.approx(120)
    assert cost.per_million(START_NS, ["r0"])["output"] == pytest.approx(60)
    assert cost.per_million(START_NS, ["r1"]) == {}


def test_tokens_leave_the_window_and_a_young_replica_has_cost_little():
    cost = make_cost(replicas=())
    cost.know("r0", START_NS)
    cost.add_step(facts(START_NS, output=1000))
    assert cost.per_million(START_NS + 2 * S)["output"] == pytest.approx(2)
    assert cost.per_million(START_NS + (WINDOW_S - 1) * S)["output"] == pytest.approx(59)
    assert cost.per_million(START_NS + WINDOW_S * S) == {}


def test_without_a_price_there_is_no_cost():
    cost = make_cost(price_per_hour=0.0)
    cost.add_step(facts(START_NS, output=1000))
    assert cost.per_million(START_NS) == {}


def test_a_stopped_replica_costs_nothing_more():
    cost = make_cost(replicas=("r0", "r1"))
    cost.add_step(facts(START_NS, output=1000))
    cost.forget("r1")
    assert cost.per_million(START_NS)["output"] == pytest.approx(60)
    cost.forget("r0")
    assert cost.per_million(START_NS) == {}
