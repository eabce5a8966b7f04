import msgspec
import pytest

from telemetry.events import FinishReason, Stage
from telemetry.gauges import Gauge, GaugePage, GaugeReader, PageOwner
from telemetry.pages import replica_gauges
from telemetry.samples import WINDOW_S, Samples, percentile
from tests.telemetry.factories import Story
from tests.telemetry.test_assembly import Assembly, assemble


@pytest.fixture
def gauges(tmp_path):
    page = GaugePage(tmp_path / "x.gauges", PageOwner(Stage.SCHEDULER, "r0", 1, 1))
    page.set(Gauge.RUNNING, 3)
    page.set(Gauge.WAITING_PREEMPTED, 2)
    return replica_gauges([GaugeReader(tmp_path / "x.gauges")])


def collected():
    samples = Samples()
    story = Story()
    story.complete_request()
    assembly = Assembly("run")
    for facts in assemble(story, assembly=assembly):
        samples.add_request(facts)
    for step in assembly.take_steps():
        samples.add_step(step)
    return samples


def test_a_second_is_summed_up_for_the_replica_and_the_whole(gauges):
    values = collected().roll(gauges, {}, 1.0)
    assert set(values) == {"", "r0"}
    for series in values.values():
        assert series["ttft_p50_s"] == pytest.approx(0.031)
        assert series["itl_p99_s"] == pytest.approx(0.010)
        assert series["e2e_p95_s"] == pytest.approx(0.061)
        assert series["prompt_tokens"] == 4
        assert series["generation_tokens"] == 3
        assert series["requests_finished"] == 1
        assert series["requests_errors"] == 0
        assert series["steps"] == 3
        assert series["prefill_step_s"] == pytest.approx(0.0042)
        assert series["decode_step_s"] == pytest.approx(0.0084)
        assert series["running"] == 3
        assert series["waiting"] == series["waiting_preempted"] == 2


def test_counts_are_of_one_second_and_percentiles_of_several(gauges):
    samples = collected()
    samples.roll(gauges, {}, 1.0)
    for _ in range(WINDOW_S - 1):
        values = samples.roll(gauges, {}, 1.0)[""]
        assert values["generation_tokens"] == 0
        assert values["ttft_p50_s"] is not None
    assert samples.roll(gauges, {}, 1.0)[""]["ttft_p50_s"] is None


def test_busy_is_a_share_of_the_time_that_has_passed(gauges):
    samples = Samples()
    samples.roll(gauges, {("runner", "r0"): 5.0, ("gateway", ""): 1.0}, 1.0)
    values = samples.roll(gauges, {("runner", "r0"): 5.5, ("gateway", ""): 1.1}, 2.0)
    assert values[""]["busy_runner"] == values["r0"]["busy_runner"] == pytest.approx(0.25)
    assert values[""]["busy_gateway"] == pytest.approx(0.05)
    assert "busy_gateway" not in values["r0"]


def test_a_replica_that_is_gone_has_no_samples():
    samples = collected()
    assert set(samples.roll({}, {}, 1.0)) == {""}


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_percentiles_are_values_that_were_seen(share, expected):
    assert percentile([1, 2, 3, 4], share) == expected
    assert percentile([], share) is None


def test_mistakes_of_clients_are_refusals_and_not_errors(gauges):
    samples, story = Samples(), Story()
    for name, status in (("bad", 400), ("full", 429), ("broken", 503)):
        story.received(name)
        story.finished(name, at=1, reason=FinishReason.ERROR, status=status, error_type="x")
        story.sent(name, at=2)
    for facts in assemble(story):
        samples.add_request(facts)
    values = samples.roll(gauges, {}, 1.0)[""]
    assert (values["requests_refused"], values["requests_errors"]) == (1, 2)


def test_hit_rate_is_that_of_the_last_seconds(gauges):
    samples, story = Samples(), Story()
    story.complete_request()
    assembly = Assembly("run")
    assemble(story, assembly=assembly)
    assert samples.roll(gauges, {}, 1.0)[""]["prefix_hit_rate"] is None
    for step in assembly.take_steps():
        record = msgspec.structs.replace(step.record, queried_tokens=8, hit_tokens=2)
        samples.add_step(msgspec.structs.replace(step, record=record))
    for _ in range(WINDOW_S):
        assert samples.roll(gauges, {}, 1.0)[""]["prefix_hit_rate"] == 0.25
    assert samples.roll(gauges, {}, 1.0)[""]["prefix_hit_rate"] is None
