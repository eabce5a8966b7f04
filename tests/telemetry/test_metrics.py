import itertools
import os
import subprocess
import sys

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from telemetry.events import FinishReason, ReplicaState, Stage
from telemetry.exposition import Exposition
from telemetry.gauges import Gauge, GaugeBoard, GaugePage, PageOwner
from telemetry.metric_table import BY_NAME
from telemetry.metrics import BoundedLabel, Metrics, restart_reason
from tests.telemetry.factories import Story, make_info
from tests.telemetry.rig import eventually
from tests.telemetry.test_assembly import Assembly, assemble

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture
def metrics():
    return Metrics("tiny")


@pytest.fixture
def exposition(metrics, tmp_path):
    return Exposition(metrics, GaugeBoard(tmp_path), "tiny")


def run_requests(metrics, count=5):
    """Requests with 1, 2, … tokens; returns what was observed."""
    assembly = Assembly("run")
    observed = {"requests": 0, "tokens": 0, "gaps": 0, "steps": 0}
    for i in range(count):
        story = Story(incarnation=i + 1)
        story.complete_request(f"req-{i}", tokens=tuple(range(i + 1)))
        for facts in assemble(story, assembly=assembly):
            metrics.add_request(facts)
            observed["requests"] += 1
            observed["tokens"] += facts.output_tokens
            observed["gaps"] += facts.output_tokens - 1
        for step in assembly.take_steps():
            metrics.add_step(step)
            observed["steps"] += 1
    return observed


def samples(body, parse=parse_text):
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse(body.decode()) for s in f.samples}


def total(values, name, **having):
    return sum(v for (n, labels), v in values.items() if n == name and having.items() <= dict(labels).items())


def test_each_histogram_counts_what_it_observes(metrics, exposition):
    observed = run_requests(metrics)
    values = samples(exposition.render("")[1])
    assert total(values, "gen_ai_server_request_duration_seconds_count") == observed["requests"]
    assert total(values, "gen_ai_server_time_to_first_token_seconds_count") == observed["requests"]
    assert total(values, "gen_ai_server_time_per_output_token_seconds_count") == observed["requests"] - 1
    assert total(values, "vitrine_inter_token_latency_seconds_count") == observed["gaps"]
    assert total(values, "vitrine_step_duration_seconds_count") == observed["steps"]
    assert total(values, "vitrine_step_batch_size_count") == observed["steps"]
    assert total(values, "vitrine_request_generation_tokens_count") == observed["requests"]
    assert total(values, "vitrine_stage_duration_seconds_count", stage="prefill") == observed["requests"]
    assert total(values, "vitrine_generation_tokens_total") == observed["tokens"]
    assert total(values, "vitrine_prompt_tokens_total") == 4 * observed["requests"]
    assert total(values, "vitrine_requests_total", finish_reason="stop") == observed["requests"]


def test_buckets_rise_to_the_count(metrics, exposition):
    run_requests(metrics)
    for family in parse_text(exposition.render("")[1].decode()):
        if family.type != "histogram":
            continue
        buckets = {}
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "le"}
            key = tuple(sorted(labels.items()))
            if sample.name.endswith("_bucket"):
                buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        counts = {tuple(sorted(s.labels.items())): s.value for s in family.samples if s.name.endswith("_count")}
        for key, series in buckets.items():
            bounds, rising = zip(*series, strict=True)
            assert list(bounds) == sorted(bounds)
            assert list(rising) == sorted(rising)
            assert rising[-1] == counts[key]


def test_every_metric_of_the_table_is_exported_once(metrics, exposition):
    metrics.add_replica("r0")
    exposition.replicas["r0"] = (ReplicaState.READY, make_info())
    _, body = exposition.render("")
    help_lines = [line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE")]
    assert len(help_lines) == len(set(help_lines))
    assert set(help_lines) == set(BY_NAME)
    values = samples(body)
    assert total(values, "vitrine_build_info", model="tiny", replica="r0", revision="abc") == 1
    assert total(values, "vitrine_replicas", state="ready") == 1
    assert ("vitrine_preemptions_total", (("model", "tiny"), ("replica", "r0"))) in values


def test_openmetrics_is_spoken_when_asked_for_with_exemplars(metrics, exposition):
    run_requests(metrics)
    content_type, body = exposition.render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    with_exemplars = {
        family.name
        for family in parse_openmetrics(body.decode())
        for sample in family.samples
        if sample.exemplar and sample.exemplar.labels["trace_id"]
    }
    assert with_exemplars == {
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "vitrine_inter_token_latency_seconds",
        "vitrine_stage_duration_seconds",
        "vitrine_step_duration_seconds",
    }
    plain = exposition.render("text/plain")
    assert plain[0].startswith("text/plain")
    assert b"trace_id" not in plain[1]


def test_counters_never_fall_and_survive_saving(metrics, tmp_path):
    run_requests(metrics)
    before = samples(Exposition(metrics, GaugeBoard(tmp_path), "tiny").render("")[1])
    again = Metrics("tiny")
    again.load(metrics.save())
    assert again.save() == metrics.save()
    run_requests(again, 2)
    after = samples(Exposition(again, GaugeBoard(tmp_path), "tiny").render("")[1])
    for key, value in before.items():
        if key[0].endswith(("_total", "_count", "_sum", "_bucket")) and not key[0].startswith("process_"):
            assert after[key] >= value


def test_refused_requests_count_as_errors_with_a_bounded_type(metrics, exposition):
    for i in range(100):
        story = Story()
        story.received(f"req-{i}", endpoint=f"/path/{i}", num_sequences=0)
        story.finished(f"req-{i}", at=1, reason=FinishReason.ERROR, status=400, error_type=f'bad "{i}"')
        story.sent(f"req-{i}", at=2)
        for facts in assemble(story):
            metrics.add_request(facts)
    body = exposition.render("")[1]
    values = samples(body)
    assert total(values, "vitrine_requests_total", finish_reason="error") == 100
    assert total(values, "gen_ai_server_request_duration_seconds_count", error_type="other") == 100
    assert len({labels for name, labels in values if name == "vitrine_requests_total"}) <= 41


def test_a_label_becomes_other_when_it_has_too_many_values():
    label = BoundedLabel()
    assert [label(f"value_{i}") for i in range(40)] == [f"value_{i}" for i in range(40)]
    assert label("one_more") == "other"
    assert label("value_3") == "value_3"


def test_gauges_are_read_from_the_pages(exposition, tmp_path):
    page = GaugePage(tmp_path / "s.gauges", PageOwner(Stage.SCHEDULER, "r0", 1, 1 << 30))
    for name, value in {
        "RUNNING": 3,
        "WAITING_KV_BLOCKS": 2,
        "BLOCKS_FREE": 6,
        "BLOCKS_ACTIVE": 4,
        "BLOCKS_TOTAL": 10,
        "BUSY_NS": 1_500_000_000,
    }.items():
        page.set(Gauge[name], value)
    values = samples(exposition.render("")[1])
    assert total(values, "vitrine_requests_running") == 3
    assert total(values, "vitrine_requests_waiting", reason="kv_blocks") == 2
    assert total(values, "vitrine_kv_cache_blocks") == 10
    assert total(values, "vitrine_kv_cache_usage_ratio") == pytest.approx(0.4)
    assert total(values, "vitrine_stage_busy_seconds_total", stage="scheduler") == pytest.approx(1.5)
    page.set(Gauge.RUNNING, 0)
    assert total(samples(exposition.render("")[1]), "vitrine_requests_running") == 0


def test_processes_are_measured(exposition, tmp_path):
    GaugePage(tmp_path / "g.gauges", PageOwner(Stage.GATEWAY, "", 1, os.getpid()))
    GaugePage(tmp_path / "d.gauges", PageOwner(Stage.DASHBOARD, "", 1, 1 << 30))
    values = samples(exposition.render("")[1])
    assert total(values, "process_resident_memory_bytes", stage="gateway") > 1e6
    assert total(values, "process_cpu_seconds_total", stage="gateway") > 0
    assert total(values, "process_resident_memory_bytes", stage="dashboard") == 0


def test_what_telemetry_used_itself_is_shown_as_far_as_it_was_saved(exposition, tmp_path):
    page = GaugePage(tmp_path / "t.gauges", PageOwner(Stage.TELEMETRY, "", 1, os.getpid()))
    page.set(Gauge.BUSY_NS, 2_000_000_000)
    exposition.observe_pages()
    saved = exposition.own_totals()
    assert saved[0] == 2.0
    page.set(Gauge.BUSY_NS, 3_000_000_000)
    exposition.show_own(saved)
    own = {"stage": "telemetry"}
    assert total(samples(exposition.render("")[1]), "vitrine_stage_busy_seconds_total", **own) == 2.0
    exposition.show_own(exposition.own_totals())
    values = samples(exposition.render("")[1])
    assert total(values, "vitrine_stage_busy_seconds_total", **own) == 3.0
    assert total(values, "process_cpu_seconds_total", **own) > 0


def test_cpu_time_of_a_process_that_is_gone_is_not_forgotten(exposition, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE) as child:
        GaugePage(tmp_path / "r.gauges", PageOwner(Stage.RUNNER, "r0", 1, child.pid))
        spent = lambda: total(samples(exposition.render("")[1]), "process_cpu_seconds_total", stage="runner")  # noqa: E731
        eventually(lambda: spent() > 0)
        before = spent()
        child.kill()
    assert spent() >= before
    assert total(samples(exposition.render("")[1]), "process_resident_memory_bytes", stage="runner") == 0


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("killed by SIGKILL", "killed"),
        ("exit code 1", "exit"),
        ("no heartbeat for 12.0 s", "hang"),
        ("not ready after 180 s", "start_timeout"),
        ("struck by lightning", "other"),
    ],
)
def test_restarts_have_few_reasons(status, reason):
    assert restart_reason(status) == reason


@pytest.mark.parametrize("name", [name for name, metric in BY_NAME.items() if metric.buckets and "seconds" in name])
def test_a_quantile_of_a_latency_is_within_thirty_percent(name):
    bounds = BY_NAME[name].buckets
    assert all(1 < b / a <= 1.305 for a, b in itertools.pairwise(bounds))  # bounds are rounded to three digits
    assert bounds[0] <= 0.001 and bounds[-1] >= 10
