"""The runner as a real process, with the test in the place of supervisor and scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
import zmq

from engine.messages import Failed, Hello, SamplingParams, SlotStart, StepPlan, Stop
from engine.process import EXIT_FAILED
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, inbox_address, process_name
from engine.runner.heartbeat import Heartbeat
from engine.transport import Inbox, Outbox, decode_control, encode
from telemetry.events import ProcessStarted, ProcessStopping, Stage, StepStarted
from telemetry.gauges import Gauge, GaugePage, GaugeReader, PageOwner
from telemetry.journal import JournalReader
from tests.runner.factories import Driver, make_config, make_runner

TIMEOUT_MS = 60_000


class RunnerProcess:
    def __init__(self, tmp_path, model_folder) -> None:
        sockets = tmp_path / "s"
        sockets.mkdir()
        self.folder = RunFolder(tmp_path / "run")
        config = make_config(data_dir=str(tmp_path / "data"), threads=1)
        files = ModelFiles("tiny", str(model_folder), "", "")
        self.folder.create(RunInfo("run", "", "host", config, files, str(sockets), os.getpid()))
        self.zmq = zmq.Context()
        self.control = self.zmq.socket(zmq.ROUTER)
        self.control.bind(control_address(str(sockets)))
        self.scheduler = Inbox(self.zmq, inbox_address(str(sockets), Stage.SCHEDULER, "r0", 1))
        self.plans = Outbox(self.zmq, inbox_address(str(sockets), Stage.RUNNER, "r0", 1))
        command = [sys.executable, "-m", "engine.runner", "--run", str(self.folder.path), "--stage", "runner"]
        self.child = subprocess.Popen([*command, "--replica", "r0", "--incarnation", "1"])

    def take_control(self):
        assert self.control.poll(TIMEOUT_MS), "no word from the runner"
        self.identity, frame = self.control.recv_multipart()
        return decode_control(frame)

    def execute(self, plan: StepPlan):
        self.plans.send(plan)
        assert self.scheduler.socket.poll(TIMEOUT_MS), "no result"
        (result,) = self.scheduler.take()
        return result

    def stop(self) -> int:
        self.control.send_multipart([self.identity, encode(Stop())])
        return self.child.wait(timeout=30)

    def gauges(self) -> GaugeReader:
        return GaugeReader(self.folder.gauges / (process_name(Stage.RUNNER, "r0", 1) + ".gauges"))

    def records(self) -> list:
        return list(JournalReader(self.folder.journals / "r0.1.runner.journal").read())

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        self.zmq.destroy(linger=0)


@pytest.fixture
def start(tmp_path):
    processes = []

    def start(model_folder) -> RunnerProcess:
        processes.append(RunnerProcess(tmp_path, model_folder))
        assert isinstance(processes[-1].take_control(), Hello)
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def plan(step_id: int, at: int, ids: list[int], starting: bool) -> StepPlan:
    return StepPlan(
        step_id=step_id,
        predicted_ns=5_000_000,
        starting=[SlotStart(3, seed=0, num_prompt=1, params=SamplingParams(temperature=0.0))] if starting else [],
        slots=[3],
        starts=[at],
        num_tokens=[len(ids)],
        samples=[True],
        new_blocks=[[9, 2] if starting else []],
        token_ids=ids,
    )


def test_plans_are_executed_journaled_and_shown_in_the_gauges(start, llama):
    prompt = [1, 2, 3, 4, 5]
    driver = Driver(make_runner(llama[0]), 4, list(range(128)))
    expected = driver.generate([driver.add(prompt)], 2, 64)[0]

    process = start(llama[0])
    ready = process.take_control()
    assert ready.facts == {"num_blocks": "128", "device": "cpu", "dtype": "float32"}
    assert ready.compute.work.weight_bytes > 0 and ready.compute.speed.read_bytes_per_s > 0
    first = process.execute(plan(7, 0, prompt, starting=True))
    second = process.execute(plan(8, 5, first.sampled, starting=False))
    assert first.sampled + second.sampled == expected
    assert (first.step_id, second.step_id, first.idle_ns) == (7, 8, 0)
    assert second.idle_ns == second.exec_start_ns - first.sampled_ns

    assert process.stop() == 0
    gauges = process.gauges()
    assert gauges.get(Gauge.TAKEN) == gauges.get(Gauge.SENT_SCHEDULER) == 2
    assert gauges.get(Gauge.STEP_PREDICTED_NS) == 5_000_000
    assert gauges.get(Gauge.STEP_STARTED_NS) == 0
    assert gauges.get(Gauge.BUSY_NS) >= second.sampled_ns - second.exec_start_ns
    records = process.records()
    assert [type(r) for r in records] == [ProcessStarted, StepStarted, StepStarted, ProcessStopping]
    assert [(r.step_id, r.num_rows, r.num_tokens) for r in records[1:3]] == [(7, 1, 5), (8, 1, 1)]
    assert records[1].at_ns <= first.exec_start_ns


def test_a_runner_that_cannot_start_says_why(start, tmp_path):
    process = start(tmp_path / "nowhere")
    word = process.take_control()
    while isinstance(word, Hello):  # the failure may be told on a line of its own
        word = process.take_control()
    assert word == Failed(f"cannot read the model's configuration in {tmp_path}/nowhere: No such file or directory")
    assert process.child.wait(timeout=30) == EXIT_FAILED


def test_the_heartbeat_goes_on_while_the_main_thread_is_inside_torch(tmp_path):
    page = GaugePage(tmp_path / "page", PageOwner(Stage.RUNNER, "r0", 1, os.getpid()))
    heartbeat = Heartbeat(page, interval_s=0.01)
    matrix = torch.rand(600, 600)
    beats = set()
    end = time.monotonic() + 20
    with heartbeat:
        while len(beats) < 3 and time.monotonic() < end:
            matrix @ matrix
            beats.add(page.get(Gauge.HEARTBEAT_NS))
    heartbeat.close()
    assert len(beats) >= 3


def test_the_heartbeat_is_silent_between_steps(tmp_path):
    page = GaugePage(tmp_path / "page", PageOwner(Stage.RUNNER, "r0", 1, os.getpid()))
    heartbeat = Heartbeat(page, interval_s=0.001)
    time.sleep(0.05)
    heartbeat.close()
    assert page.get(Gauge.HEARTBEAT_NS) == 0
