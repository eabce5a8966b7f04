"""kill -9 of everything under load: what is left on disk says what every request was doing."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from telemetry.events import REPLICA_STAGES, Stage
from tests.e2e.served import Served, vitrine

MODEL = "smollm2-135m-instruct"
REQUESTS, RUNNING = 12, 4


@pytest.fixture
def loaded(serve):
    """A system with a few running and a few waiting requests, and one finished."""
    served = serve("--device", "simulated", "--max-num-seqs", str(RUNNING), "--simulated-step", "20000,1,1")
    served.post("/v1/completions", body(2))
    threads = [threading.Thread(target=ask, args=(served,)) for _ in range(REQUESTS)]
    for thread in threads:
        thread.start()
    served.eventually(lambda: running_with_tokens(served) == RUNNING, 30, "a full batch")
    yield served
    served.close()
    for thread in threads:
        thread.join(20)


@pytest.fixture
def killed(loaded):
    """The same, killed at one stroke."""
    served = loaded
    family = [psutil.Process(served.process.pid), *psutil.Process(served.process.pid).children(recursive=True)]
    for process in family:
        process.suspend()  # so that nobody records another one's death
    for process in family:
        process.kill()
    served.eventually(served.gone, 20, "everything dead")
    return served


def body(max_tokens: int) -> dict:
    return {"model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": max_tokens, "ignore_eos": True}


def ask(served: Served) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(served.url + "/v1/completions", json=body(2000), timeout=60)


def running_with_tokens(served: Served) -> int:
    rows = httpx.get(served.dashboard_url + "/api/requests", params={"state": "running"}).json()["requests"]
    waiting = httpx.get(served.dashboard_url + "/api/requests", params={"state": "waiting"}).json()["requests"]
    enough = len(waiting) == REQUESTS - RUNNING
    return sum((row["output_tokens"] or 0) >= 3 for row in rows) if enough else 0


def export(*arguments: str) -> str:
    process = vitrine("export", *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_after_kill_9_of_everything_the_last_steps_and_all_unfinished_requests_are_there(killed):
    data = str(killed.data)
    rows = [json.loads(line) for line in export("requests", "--from", data).splitlines()]
    assert Counter((row["stage"], row["state"]) for row in rows) == {
        ("runner", "running"): RUNNING,
        ("scheduler", "waiting"): REQUESTS - RUNNING,
    }
    running = [row for row in rows if row["state"] == "running"]
    waiting = [row for row in rows if row["state"] == "waiting"]
    assert all(row["output_tokens"] >= 3 and row["prompt_tokens"] == 4 for row in running)
    assert {row["wait_reason"] for row in waiting} == {"max_running"}
    assert all(row["output_tokens"] == 0 and row["waited_s"] > 0 for row in waiting)
    trace = json.loads(export("steps", "--from", data))
    decodes = [event for event in trace["traceEvents"] if event["name"] == "decode"]
    last = decodes[-1]["args"]
    assert set(last["requests"]) == {row["request_id"] for row in running}
    assert (last["rows"], last["waiting"], last["head_reason"]) == (RUNNING, REQUESTS - RUNNING, "max_running")
    assert last["head"] in {row["request_id"] for row in waiting}
    table = export("steps", "--from", data, "--table", "--last", "3").splitlines()
    assert len(table) == 4 and f" {last['step']} " in table[-1]


def test_the_same_steps_come_from_a_running_system_and_a_crash_dump_of_one_replica(serve):
    served = serve("--device", "simulated", "--simulated-step", "2000,1,1")
    done = served.post("/v1/completions", body(30))
    served.finished_row("req-" + done["id"].removeprefix("cmpl-"))
    from_api = exported_steps("--url", served.dashboard_url)
    from_disk = exported_steps("--from", str(served.folder.path))
    assert len(from_api) == 30
    assert [stripped(row) for row in from_api] == [stripped(row) for row in from_disk]
    psutil.Process(served.pid(Stage.RUNNER)).kill()
    served.eventually(lambda: any((served.data / "crash").glob("*/*.detokenizer.journal")), 20, "a crash dump")
    (dump,) = (served.data / "crash").iterdir()
    dumped = exported_steps("--from", str(dump))
    assert [row["step_id"] for row in dumped] == [row["step_id"] for row in from_api]
    assert export("requests", "--from", str(dump), "--table") == "every recorded request was finished\n"


_SLOW = [Stage.TOKENIZER, Stage.RUNNER, Stage.DETOKENIZER]


@pytest.mark.parametrize("stage", [Stage.SCHEDULER, *(pytest.param(stage, marks=pytest.mark.long) for stage in _SLOW)])
def test_the_dump_of_a_replica_that_died_says_what_each_request_was_doing(loaded, stage):
    before = {row["request_id"]: row["state"] for row in in_flight(loaded)}
    dump = kill_and_find_dump(loaded, stage)
    rows = {row["request_id"]: row for row in map(json.loads, export("requests", "--from", str(dump)).splitlines())}
    assert {request_id: row["state"] for request_id, row in rows.items()} == before
    assert Counter(before.values()) == {"running": RUNNING, "waiting": REQUESTS - RUNNING}
    waiting = [row for row in rows.values() if row["state"] == "waiting"]
    assert {row["wait_reason"] for row in waiting} == {"max_running"}
    assert all(row["output_tokens"] >= 3 for row in rows.values() if row["state"] == "running")
    steps = exported_steps("--from", str(dump))
    assert steps[-1]["num_seqs"] == RUNNING and steps[-1]["head_reason"] == "max_running"
    trace = json.loads(export("steps", "--from", str(dump)))
    assert {"plan", "decode", "forward", "sample", "publish"} <= {event["name"] for event in trace["traceEvents"]}
    said = (dump / "reason.txt").read_text() + (dump / "run.json").read_text()
    assert f"{stage}: killed by SIGKILL" in said and '"max_num_seqs":4' in said and "model" in said


def test_the_dump_of_a_gateway_that_died_has_every_open_request(loaded):
    before = {row["request_id"] for row in in_flight(loaded)}
    dump = kill_and_find_dump(loaded, Stage.GATEWAY)
    rows = [json.loads(line) for line in export("requests", "--from", str(dump)).splitlines()]
    assert {row["request_id"] for row in rows} == before and len(before) == REQUESTS


@pytest.mark.parametrize("stage", [Stage.TELEMETRY, Stage.DASHBOARD])
def test_a_process_beside_the_engine_leaves_its_reason(serve, stage):
    served = serve("--device", "simulated")
    dump = kill_and_find_dump(served, stage)
    assert (dump / "reason.txt").read_text() == f"{stage}: killed by SIGKILL\n"
    assert export("requests", "--from", str(dump), "--table") == "every recorded request was finished\n"


def in_flight(served: Served) -> list[dict]:
    states = ("running", "waiting")
    return [
        row
        for state in states
        for row in httpx.get(served.dashboard_url + "/api/requests", params={"state": state}).json()["requests"]
    ]


def kill_and_find_dump(served: Served, stage: Stage) -> Path:
    incarnation = served.page(stage).owner.incarnation
    psutil.Process(served.pid(stage)).kill()
    whose = "r0.1" if stage in REPLICA_STAGES else f"{stage}.1"
    crashes = served.data / "crash"

    def restarted() -> bool:  # which comes after the dump
        page = served.page(stage)
        return page is not None and page.owner.incarnation > incarnation

    served.eventually(restarted, 30, "the next incarnation")
    (dump,) = crashes.glob(f"*-{whose}")
    return dump


def exported_steps(*where: str) -> list[dict]:
    return [json.loads(line) for line in export("steps", "--format", "jsonl", *where).splitlines()]


def stripped(row: dict) -> dict:
    """Without the one time that depends on where the wall clock's offset was taken."""
    return {name: value for name, value in row.items() if name != "planned_ts"}
