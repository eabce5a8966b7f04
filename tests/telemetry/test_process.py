"""The real process: journals in, everything else out, and kill -9 in between."""

import random
import socket
import sqlite3
import threading
import time

import pytest
import zmq

from telemetry.events import REPLICA_STAGES, ReplicaState, Stage
from telemetry.gauges import Gauge, GaugePage, PageOwner
from telemetry.queries import open_reader
from telemetry.token_search import TokenQuery
from tests.otlp_receiver import OtlpReceiver
from tests.telemetry.factories import Story, make_info
from tests.telemetry.rig import Rig, eventually


@pytest.fixture
def make_rig(tmp_path):
    rigs = []

    def make(**config):
        rigs.append(Rig(tmp_path / "data", **config))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def new_story(**settings):
    return Story(start_ns=time.monotonic_ns(), wall_ns=time.time_ns(), **settings)


def test_a_request_reaches_every_sink_and_nothing_is_left_at_the_end(make_rig):
    with OtlpReceiver() as receiver:
        rig = make_rig(otlp_endpoint=receiver.endpoint)
        rig.start()
        GaugePage(rig.folder.gauges / "r0.1.scheduler.gauges", PageOwner(Stage.SCHEDULER, "r0", 1, 1 << 30))
        story = new_story()
        story.replica_state(ReplicaState.READY, info=make_info())
        story.complete_request("req-1")
        story.received("req-2", at=5)
        rig.write(story)
        eventually(lambda: len(rig.requests()) == 2)
        eventually(lambda: rig.requests()["req-1"]["state"] == "finished")
        assert rig.requests()["req-2"]["state"] == "tokenizing"
        assert rig.metric("vitrine_requests_total", finish_reason="stop") == 1
        assert rig.metric("vitrine_build_info", replica="r0") == 1
        assert rig.metric("vitrine_telemetry_dropped_total") == 0
        (line,) = rig.token_lines()
        reader = open_reader(rig.data)
        (sequence,) = reader.get_sequences("req-1")
        assert reader.token_line(sequence["log_file"], sequence["log_offset"]) == line
        assert [row["step_id"] for row in reader.steps(0, 1e12)] == [1, 2, 3]
        eventually(lambda: reader.samples(0, 1e12, "r0"))
        content_type, body = rig.ask_metrics("application/openmetrics-text; version=1.0.0", zmq.DEALER)
        assert content_type.startswith("application/openmetrics-text")
        assert "trace_id=" in body
        status, _ = rig.stop()
        assert status == 0
        assert rig.requests()["req-2"]["error_type"] == "engine_stopped"
        assert reader.incarnations()[0]["ended_ts"] is not None
        reader.close()
        names = [span.name for span in receiver.spans]
        assert names.count("POST /v1/completions") == 2
        assert {"queue", "prefill", "decode", "detokenize"} <= set(names)


def test_each_request_counts_once_however_often_telemetry_is_killed(make_rig):
    """Requests and steps are journaled all the time while the process is killed at random moments.

    Token log files are so small that they are rotated and compressed all the time too.
    """
    rig = make_rig(token_log_max_bytes="4K")
    chance = random.Random(7)
    done = threading.Event()
    written = []

    def engine():
        story = new_story()
        story.replica_state(ReplicaState.READY, info=make_info())
        while not done.is_set():
            story.start_ns, story.wall_ns = time.monotonic_ns(), time.time_ns()
            request_id = f"req-{len(written):05d}"
            story.complete_request(request_id)
            entries, story.entries = story.entries, []
            cut = chance.randrange(len(entries))
            for part in (entries[:cut], entries[cut:]):
                story.entries = part
                rig.write(story)
                time.sleep(0.005)
            written.append(request_id)

    writer = threading.Thread(target=engine)
    writer.start()
    try:
        for _ in range(6):
            rig.start(wait=chance.random() < 0.7)
            time.sleep(chance.uniform(0.05, 0.8))
            rig.kill()
    finally:
        done.set()
        writer.join()
    rig.start()
    eventually(lambda: sum(row["state"] == "finished" for row in rig.requests().values()) == len(written))
    assert len(written) > 50
    assert set(rig.requests()) == set(written)
    logged = [line["request_id"] for line in rig.token_lines()]
    assert sorted(logged) == written
    assert rig.metric("vitrine_requests_total") == len(written)
    assert rig.metric("vitrine_step_batch_size_count") == 3 * len(written)
    assert rig.metric("vitrine_inter_token_latency_seconds_count") == 2 * len(written)
    reader = open_reader(rig.data)
    for row in reader.list_requests(limit=1000).rows:
        (sequence,) = reader.get_sequences(row["request_id"])
        line = reader.token_line(sequence["log_file"], sequence["log_offset"])
        assert line["request_id"] == row["request_id"]
    reader.close()
    assert len(list((rig.data / "tokens").glob("*.jsonl.gz"))) > 5
    assert rig.stop()[0] == 0


def test_counters_do_not_fall_when_telemetry_is_killed(make_rig):
    rig = make_rig()
    rig.start()
    page = GaugePage(rig.folder.gauges / "r0.1.runner.gauges", PageOwner(Stage.RUNNER, "r0", 1, 1 << 30))
    page.set(Gauge.BUSY_NS, 3_000_000_000)
    story = new_story()
    for i in range(5):
        story.complete_request(f"req-{i}")
    story.died(Stage.RUNNER)
    rig.write(story)
    eventually(lambda: rig.metric("vitrine_requests_total") == 5)
    eventually(lambda: rig.metric("vitrine_stage_busy_seconds_total") >= 3)
    before = rig.metrics()
    rig.kill()
    rig.start()
    after = rig.metrics()
    for key, value in before.items():
        if key[0].endswith(("_total", "_count", "_sum", "_bucket")) and not key[0].startswith(
            ("process_", "vitrine_telemetry", "vitrine_stage_busy")
        ):
            assert after.get(key, 0) >= value, key
    assert rig.metric("vitrine_stage_busy_seconds_total", stage="runner") == pytest.approx(3.0)
    assert rig.metric("vitrine_replica_restarts_total", reason="killed") == 1


def test_a_run_that_was_left_over_is_taken_over_before_ready(make_rig):
    rig = make_rig()
    left = rig.new_run("run-1")
    story = Story(start_ns=12_345, wall_ns=1_700_000_000_000_000_000)  # a clock of before the host's last start
    story.replica_state(ReplicaState.READY, info=make_info())
    story.complete_request("done")
    story.received("open")
    story.routed("open")
    rig.write(story, left)
    rig.start()
    rows = rig.requests()
    assert rows["done"]["finish_reason"] == "stop"
    assert rows["done"]["received_ts"] == pytest.approx(1_700_000_000)
    assert rows["open"]["error_type"] == "engine_died"
    assert [line["request_id"] for line in rig.token_lines()] == ["done"]
    assert left.path.exists(), "the folder is the supervisor's to remove"
    reader = open_reader(rig.data)
    (incarnation,) = reader.incarnations()
    assert incarnation["id"] == "run-1/r0.1"
    assert incarnation["ended_ts"] == pytest.approx(1_700_000_000, abs=1)
    assert reader.steps(1_700_000_000, 1_700_000_001)[0]["incarnation_id"] == "run-1/r0.1"
    reader.close()
    rig.kill()
    rig.start()
    assert [line["request_id"] for line in rig.token_lines()] == ["done"]
    assert rig.metric("vitrine_replicas") == 0


def test_a_gateway_that_dies_closes_its_requests(make_rig):
    rig = make_rig()
    rig.start()
    story = new_story()
    story.received()
    story.routed()
    story.tokenized()
    story.died(Stage.GATEWAY, at=40)
    rig.write(story)
    eventually(lambda: rig.requests() and rig.requests()["req-1"]["error_type"] == "gateway_died")
    assert rig.metric("vitrine_requests_total", finish_reason="error") == 1


def test_a_locked_store_holds_nothing_up_and_nothing_is_lost(make_rig):
    rig = make_rig()
    rig.start()
    lock = sqlite3.connect(rig.data / "vitrine.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    story = new_story()
    story.complete_request()
    rig.write(story)
    eventually(lambda: rig.gauge(Gauge.STORE_DEGRADED) > 0)
    assert rig.heartbeat_age_s() < 2
    eventually(lambda: rig.metric("vitrine_requests_total") == 1)
    assert rig.requests() == {}
    lock.execute("ROLLBACK")
    lock.close()
    eventually(lambda: rig.requests())
    assert rig.gauge(Gauge.STORE_DEGRADED) == 0
    assert len(rig.token_lines()) == 1


@pytest.mark.parametrize("trouble", ["closed", "hanging", "error"])
def test_a_receiver_in_trouble_does_not_hold_up_the_loop_or_the_end(make_rig, trouble):
    with OtlpReceiver() as receiver, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        if trouble == "hanging":
            receiver.hang.set()
        receiver.status = 500
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}" if trouble == "closed" else receiver.endpoint
        rig = make_rig(otlp_endpoint=endpoint)
        rig.start()
        story = new_story()
        for i in range(100):
            story.complete_request(f"req-{i}")
        rig.write(story)
        eventually(lambda: rig.metric("vitrine_requests_total") == 100)
        assert rig.heartbeat_age_s() < 1
        status, took_s = rig.stop()
        assert status == 0
        assert took_s < 7
        warnings = [line for line in rig.log_lines() if line["event"] == "spans cannot be delivered"]
        assert len(warnings) <= 1
        assert all("Traceback" not in str(line) for line in rig.log_lines())


def test_spans_flow_when_the_receiver_comes_back(make_rig):
    with OtlpReceiver() as receiver:
        receiver.status = 503
        rig = make_rig(otlp_endpoint=receiver.endpoint)
        rig.start()
        story = new_story()
        story.complete_request()
        rig.write(story)
        eventually(lambda: rig.gauge(Gauge.EXPORT_DEGRADED) > 0)
        receiver.status = 200
        receiver.wait_for_spans(7, 20)
        eventually(lambda: rig.gauge(Gauge.EXPORT_DEGRADED) == 0)
        eventually(lambda: rig.metric("vitrine_telemetry_events_total", sink="spans") == 8)


def test_an_endpoint_that_makes_no_sense_is_a_failed_start(make_rig):
    rig = make_rig(otlp_endpoint="localhost:4318")
    rig.start(wait=False)
    assert rig.child.wait(20) == 3


def test_the_token_log_can_be_switched_off(make_rig):
    rig = make_rig(token_log="off")
    rig.start()
    story = new_story()
    story.complete_request()
    rig.write(story)
    eventually(lambda: rig.requests())
    assert not (rig.data / "tokens").exists()


def test_the_token_log_keeps_to_its_limits(make_rig):
    rig = make_rig(token_log_max_bytes="4K", token_log_retention_bytes="16K")
    rig.start()
    story = new_story()
    for first in range(0, 80, 8):
        for i in range(first, first + 8):
            story.complete_request(f"req-{i:02d}")
        rig.write(story)
        eventually(lambda done=first + 8: len(rig.requests()) == done)
    eventually(lambda: list((rig.data / "tokens").glob("*.jsonl.gz")), 20)
    kept = [line["request_id"] for line in rig.token_lines()]
    assert kept == [f"req-{i:02d}" for i in range(80 - len(kept), 80)]
    assert 8 <= len(kept) < 80
    assert sum(path.stat().st_size for path in (rig.data / "tokens").iterdir()) < 24 << 10  # and the current file
    reader = open_reader(rig.data)
    found = reader.search_tokens(TokenQuery(token_ids=(11, 12)), None, lambda reached: False)
    assert [one.line["request_id"] for one in found] == kept[::-1]
    reader.close()


def test_the_queues_of_a_replica_are_measured(make_rig):
    rig = make_rig()
    rig.start()
    for stage in REPLICA_STAGES:
        GaugePage(rig.folder.gauges / f"r0.1.{stage}.gauges", PageOwner(stage, "r0", 1, 1 << 30))
    link = GaugePage(rig.folder.gauges / "gateway.1-r0.1.gauges", PageOwner(Stage.GATEWAY, "", 1, 1 << 30, "r0.1"))
    eventually(lambda: ("vitrine_stage_queue_depth", _labels("runner")) in rig.metrics())
    link.set(Gauge.SENT_TOKENIZER, 4)
    assert rig.metric("vitrine_stage_queue_depth", stage="tokenizer") == 4
    assert rig.metric("vitrine_stage_queue_depth", stage="gateway") == 0


def _labels(stage):
    return (("model", "tiny"), ("replica", "r0"), ("stage", stage))
