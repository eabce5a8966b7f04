from __future__ import annotations

import pytest

from telemetry.events import Compute, DeviceSpeed, StepKind
from telemetry.facts import Scope, StepFacts
from telemetry.utilization import WINDOW_S, Achieved, Utilization
from tests.telemetry.factories import START_NS, make_info, make_step
from tests.telemetry.test_step_work import make_work

S = 1_000_000_000
PEAK = DeviceSpeed(flops_per_s=1e6, read_bytes_per_s=2e6)
WORK = make_work([], flops_per_token=1000, weight_bytes=3000)


def facts(at_ns, kind=StepKind.DECODE, replica="r0", num_tokens=1):
    record = make_step(1, at_ns, [(1, 5, num_tokens, 7)], kind)  # 3 ms from the start of its execution to its samples
    return StepFacts("run", Scope(replica, 1), record, [], 0, 1, [], "")


KNOWN = Compute(WORK, PEAK)


def make_utilization(compute=KNOWN):
    utilization = Utilization()
    utilization.know("r0", make_info(compute=compute))
    return utilization


def test_shares_are_of_the_peak_while_steps_execute():
    utilization = make_utilization()
    for i in range(4):
        utilization.add_step(facts(START_NS + i * 100_000_000))
    found = utilization.achieved(START_NS + S // 2)["r0", "decode"]
    assert found.flops_per_s == pytest.approx(1000 / 0.003)
    assert found.flops_share == pytest.approx(1 / 3)
    assert found.bytes_share == pytest.approx(0.5)


def test_kinds_and_replicas_are_told_apart_and_all_are_there_from_the_start():
    utilization = make_utilization()
    utilization.know("r1", make_info(compute=Compute(WORK, PEAK)))
    utilization.add_step(facts(START_NS, StepKind.PREFILL, "r1", num_tokens=3))
    found = utilization.achieved(START_NS)
    assert set(found) == {(r, str(k)) for r in ("r0", "r1") for k in StepKind}
    assert found["r1", "prefill"].flops_share == pytest.approx(1.0)
    assert found["r0", "prefill"] == found["r1", "decode"] == Achieved()


def test_nothing_is_left_when_the_load_has_ended():
    utilization = make_utilization()
    for second in range(30):
        utilization.add_step(facts(START_NS + second * S))
    end = START_NS + 29 * S
    assert utilization.achieved(end)["r0", "decode"].flops_share > 0
    assert utilization.achieved(end + (WINDOW_S - 1) * S)["r0", "decode"].flops_share > 0
    assert utilization.achieved(end + WINDOW_S * S)["r0", "decode"] == Achieved()


@pytest.mark.parametrize("compute", [None, Compute(None, PEAK)])
def test_what_is_not_known_is_not_told(compute):
    utilization = make_utilization(compute)
    utilization.add_step(facts(START_NS))
    assert utilization.achieved(START_NS) == {}


def test_a_replica_that_runs_something_else_now_is_forgotten():
    utilization = make_utilization()
    utilization.know("r0", make_info())
    assert utilization.achieved(START_NS) == {}


def test_work_is_not_told_against_the_peak_of_a_later_incarnation():
    utilization = make_utilization()
    utilization.add_step(facts(START_NS))
    utilization.know("r0", make_info(compute=KNOWN))  # a restart on the same device
    assert utilization.achieved(START_NS)["r0", "decode"].flops_share > 0
    utilization.know("r0", make_info(compute=Compute(WORK, DeviceSpeed(1.0, 1.0))))
    assert utilization.achieved(START_NS)["r0", "decode"] == Achieved()
