"""Starting, failing to start, losing stages, draining, ending."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.error
from pathlib import Path

import httpx
import psutil
import pytest

from telemetry import schema
from telemetry.events import REPLICA_STAGES, Stage
from tests.e2e.served import Served, vitrine

REPLICA_OR_GATEWAY = [Stage.TOKENIZER, Stage.SCHEDULER, Stage.RUNNER, Stage.DETOKENIZER, Stage.GATEWAY]


def long_stream(served: Served, tokens: int = 2000):
    """Start a long stream and return (events so far, thread); the thread ends with the stream."""
    events: list[str] = []

    def read() -> None:
        body = {
            "model": "smollm2-135m-instruct", "prompt": "Count:", "max_tokens": tokens, "ignore_eos": True,
            "stream": True, "temperature": 0,
        }  # fmt: skip
        try:
            with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=120) as answer:
                events.extend(line for line in answer.iter_lines() if line.startswith("data:"))
        except httpx.HTTPError as e:
            events.append(f"broken: {type(e).__name__}")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return events, thread


def test_second_start_is_ready_in_ten_seconds_and_says_where_to_go(serve, shared):
    began = time.monotonic()
    served = serve()
    assert time.monotonic() - began < 10
    served.note_sockets()
    code, text = served.stop()
    assert code == 0
    assert served.url in text and served.dashboard_url in text and "curl" in text
    assert served.leftovers() == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--port", "notaport"], "--port"),
        (["--no-such-flag"], "no-such-flag"),
        (["--host", "0.0.0.0"], "--api-key"),
        (["--dtype", "int1"], "dtype"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
        (["--kv-cache-memory", "900T"], "--kv-cache-memory"),
        (["--chat-template", "/no/such/template"], "/no/such/template"),
    ],
)
def test_what_cannot_work_is_one_clear_line_and_a_failing_exit(tmp_path, flags, says):
    process = vitrine("serve", "--data-dir", str(tmp_path / "data"), "--port", "18431",
                      "--dashboard-port", "18432", *flags)  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert says in err and "Traceback" not in err
    assert len(err.strip().splitlines()) <= 4, err
    assert not list((tmp_path / "data" / "run").glob("*")) if (tmp_path / "data").exists() else True


def test_a_corrupt_weights_file_is_refused_with_its_name(tmp_path, shared):
    """LC-12."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in Path(shared.folder.info().model.path).iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[:100_000] if file.suffix == ".safetensors" else data)
    process = vitrine("serve", "--data-dir", str(tmp_path / "d"), "--model", str(broken), "--port", "18433",
                      "--dashboard-port", "18434")  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0 and "safetensors" in err and "Traceback" not in err


def test_a_busy_port_is_said_before_anything_is_loaded(tmp_path):
    """LC-15."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        began = time.monotonic()
        process = vitrine("serve", "--data-dir", str(tmp_path), "--port", str(port))
        _, err = process.communicate(timeout=30)
    assert process.returncode != 0 and f"port {port} is already in use" in err
    assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("life"), "--drain-timeout", "20") as served:
        yield served


@pytest.mark.parametrize("stage", REPLICA_OR_GATEWAY)
def test_death_of_a_stage_ends_running_requests_within_two_seconds_and_it_comes_back(engine, stage):
    """LC-12."""
    events, thread = long_stream(engine)
    engine.eventually(lambda: len(events) >= 3, what="the stream runs")
    os.kill(engine.pid(stage), signal.SIGKILL)
    thread.join(timeout=2)
    assert not thread.is_alive(), "the stream was not ended"
    if stage is Stage.GATEWAY:
        assert events[-1].startswith("broken")
    else:
        assert events[-1] == "data: [DONE]" and "error" in json.loads(events[-2][5:])
    engine.eventually(lambda: engine.status("/ready") == 200, 20, "ready again")
    engine.note_processes()
    answer = engine.post("/v1/completions", {"model": "smollm2-135m-instruct", "prompt": "Hi", "max_tokens": 4})
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    engine.eventually(engine.idle, what="idle")


def test_telemetry_and_dashboard_can_die_without_harm_to_a_running_stream(engine):
    events, thread = long_stream(engine, tokens=150)
    engine.eventually(lambda: len(events) >= 3)
    for stage in (Stage.TELEMETRY, Stage.DASHBOARD):
        os.kill(engine.pid(stage), signal.SIGKILL)
    thread.join(timeout=60)
    assert events[-1] == "data: [DONE]" and not any('"error"' in e for e in events)
    engine.eventually(lambda: engine.status("/metrics") == 200, 20, "metrics are back")


@pytest.mark.parametrize("stage", REPLICA_STAGES)
def test_a_stopped_stage_is_unhealthy_within_five_seconds(engine, stage):
    incarnation = engine.page(stage).owner.incarnation
    os.kill(engine.pid(stage), signal.SIGSTOP)
    try:
        engine.eventually(lambda: engine.status("/health") == 503, 5, "unhealthy")
        assert f"r0 {stage}" in engine.health()["reasons"][0]
    finally:
        os.kill(engine.pid(stage), signal.SIGCONT)
    engine.eventually(lambda: engine.status("/health") == 200, 20, "healthy again")
    assert engine.page(stage).owner.incarnation == incarnation  # it went on: nobody restarted it


def test_stopped_telemetry_is_degraded_and_requests_are_served(engine):
    os.kill(engine.pid(Stage.TELEMETRY), signal.SIGSTOP)
    try:
        engine.eventually(lambda: engine.health()["status"] == "degraded", 5, "degraded")
        assert engine.health()["reasons"][0].startswith("telemetry has not given a sign of life")
        assert engine.status("/health") == 200
        engine.post("/v1/completions", {"model": "smollm2-135m-instruct", "prompt": "Hi", "max_tokens": 2})
    finally:
        os.kill(engine.pid(Stage.TELEMETRY), signal.SIGCONT)
    engine.eventually(lambda: engine.health()["status"] == "ok", 20, "ok again")


def test_sigterm_lets_a_running_stream_finish_and_refuses_new_requests(serve):
    served = serve("--drain-timeout", "60")
    served.note_sockets()
    events, thread = long_stream(served, tokens=120)
    served.eventually(lambda: len(events) >= 3)
    served.process.send_signal(signal.SIGTERM)
    served.eventually(lambda: served.status("/ready") == 503, 5, "draining")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        served.post("/v1/completions", {"model": "smollm2-135m-instruct", "prompt": "Hi", "max_tokens": 1})
    thread.join(timeout=60)
    assert events[-1] == "data: [DONE]" and not any('"error"' in e for e in events)
    assert served.wait_exit()[0] == 0
    assert served.leftovers() == []
    assert {r["finish_reason"] for r in served.request_rows().values()} == {"length", "error"}


def test_the_drain_deadline_ends_what_still_runs(serve):
    served = serve("--drain-timeout", "1")
    events, thread = long_stream(served, tokens=4000)
    served.eventually(lambda: len(events) >= 3)
    code, _ = served.stop(timeout_s=30)
    thread.join(timeout=5)
    assert code == 0 and events[-1] == "data: [DONE]" and "error" in json.loads(events[-2][5:])
    assert served.leftovers() == []


def test_a_second_sigterm_ends_everything_at_once_and_says_so(serve):
    served = serve("--drain-timeout", "60")
    served.note_sockets()
    events, thread = long_stream(served, tokens=4000)
    served.eventually(lambda: len(events) >= 3)
    served.process.send_signal(signal.SIGTERM)
    served.eventually(lambda: served.status("/ready") == 503, 5)
    began = time.monotonic()
    served.process.send_signal(signal.SIGTERM)
    served.wait_exit(timeout_s=10)
    assert time.monotonic() - began < 3
    assert served.leftovers() == []
    thread.join(timeout=5)
    assert events[-1] == "data: [DONE]" and "error" in json.loads(events[-2][5:])
    (row,) = served.request_rows().values()
    assert (row["state"], row["finish_reason"]) == ("finished", "error") and row["e2e_s"] > 0


@pytest.mark.parametrize("delay_s", [0.3, 1.0, 2.0])
def test_sigterm_while_starting_ends_it_soon_with_nothing_left(serve, delay_s):
    served = serve(wait=False)
    time.sleep(delay_s)  # anywhere between the first import and ready
    with contextlib.suppress(psutil.NoSuchProcess):
        served.note_processes()
    served.process.send_signal(signal.SIGTERM)
    code, text = served.wait_exit(timeout_s=10)
    assert code in (0, -signal.SIGTERM) and "Traceback" not in text
    assert [x for x in served.leftovers() if x.startswith("process")] == []
    assert not list((served.data / "run").glob("*"))


def test_kill_of_the_supervisor_leaves_no_process_and_the_next_start_clears_up(serve, tmp_path):
    """LC-15."""
    served = serve()
    served.note_sockets()
    events, _ = long_stream(served, tokens=4000)
    served.eventually(lambda: len(events) >= 3)
    served.process.kill()
    served.eventually(lambda: not [x for x in served.leftovers() if x.startswith("process")], 10, "no process left")
    again = Served(served.data)
    try:
        again.wait_ready()
        assert served.socket_dir is not None and not served.socket_dir.exists()
        assert len(list((served.data / "run").iterdir())) == 1
        rows = again.request_rows()
        assert [r["finish_reason"] for r in rows.values()] == ["error"]
        again.note_sockets()
        assert again.stop()[0] == 0 and again.leftovers() == []
    finally:
        again.close()


def test_the_log_level_changes_at_run_time_and_scrapes_are_not_logged(serve):
    served = serve("--device", "simulated")
    body = {"model": "smollm2-135m-instruct", "prompt": [5], "max_tokens": 1}
    served.post("/v1/completions", body)
    said, _ = vitrine("log-level", "debug", "--stage", "gateway", "--url", served.dashboard_url).communicate(timeout=30)
    assert said == "gateway: debug\n"

    def debug_lines() -> list[dict]:
        return [line for line in served.log_lines() if line["level"] == "debug"]

    def asked() -> bool:
        served.post("/v1/completions", body)
        return len(debug_lines()) > 0

    served.eventually(asked, 10, "a line of level debug")
    os.kill(served.pid(Stage.GATEWAY), signal.SIGKILL)
    served.eventually(lambda: served.status("/ready") == 200, 30, "the gateway is back")
    before = len(debug_lines())
    served.post("/v1/completions", body)
    served.eventually(lambda: len(debug_lines()) > before, 10, "it still logs so")
    for line in debug_lines():
        assert line["stage"] == "gateway" and line["request_id"].startswith("req-") and len(line["trace_id"]) == 32
    lines = len(served.log_lines())
    for path in ("/health", "/ready", "/metrics"):
        served.status(path)
        urllib.request.urlopen(served.dashboard_url + "/metrics", timeout=10).close()
    assert len(served.log_lines()) == lines
    assert [row["action"] for row in served.rows(schema.audit)] == ["set log level"]
    said, wrong = vitrine("log-level", "loud", "--url", served.dashboard_url).communicate(timeout=30)
    assert said == "" and "'loud' is not one of" in wrong
