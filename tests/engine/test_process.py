"""The frame of every child: messages in, directory, beats, orderly end — with a real process and a fake supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from engine.config import Config
from engine.messages import Abort, Directory, Failed, Hello, Ready, Stop
from engine.process import EXIT_FAILED
from engine.replicas.control import ControlPlane
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, inbox_address, process_name
from engine.transport import Outbox
from telemetry.events import ProcessStarted, ProcessStopping, Stage, StepStarted
from telemetry.gauges import Gauge, GaugeReader
from telemetry.journal import JournalReader

CHILD = """
import sys
from engine.process import CannotStartError, SyncStage, run_child
from telemetry.events import StepStarted

class Echo(SyncStage):
    def start(self):
        if "cannot" in self.context.run.model.name:
            raise CannotStartError("there is no such model")
        return {"fact": "7"}
    def on_messages(self, messages):
        for message in messages:
            self.journal.append(StepStarted(int(message.request_id), 0, 0, 0))
    def on_directory(self, directory):
        self.journal.append(StepStarted(1000 + directory.gateway, 0, 0, 0))

run_child(lambda context: Echo(context).run())
"""


class FakeSupervisor:
    """Starts one child and speaks the control plane to it."""

    def __init__(self, tmp_path, model="tiny") -> None:
        sockets = tmp_path / "s"
        sockets.mkdir()
        self.folder = RunFolder(tmp_path / "run")
        config = Config(data_dir=str(tmp_path / "data"))
        files = ModelFiles(model, "/nowhere", "0", "0")
        self.folder.create(RunInfo("run", "", "host", config, files, str(sockets), os.getpid()))
        self.zmq = zmq.Context()
        self.control = ControlPlane(self.zmq, control_address(str(sockets)))
        self.inbox = inbox_address(str(sockets), Stage.RUNNER, "r0", 1)
        command = [sys.executable, "-c", CHILD, "--run", str(self.folder.path), "--stage", "runner"]
        self.child = subprocess.Popen([*command, "--replica", "r0", "--incarnation", "1"])
        self.messages: list = []

    def wait_for(self, kind):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            self.control.socket.poll(100)
            self.messages += [message for _, message in self.control.take()]
            for message in self.messages:
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__}; got {self.messages}")

    def send(self, message) -> None:
        self.control.send(Stage.RUNNER, "r0", 1, message)

    def records(self):
        return list(JournalReader(self.folder.journals / "r0.1.runner.journal").read())

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        self.zmq.destroy(linger=0)


@pytest.fixture
def start(tmp_path):
    started = []

    def make(**kwargs):
        started.append(FakeSupervisor(tmp_path, **kwargs))
        return started[-1]

    yield make
    for supervisor in started:
        supervisor.close()


def test_a_child_says_hello_then_ready_takes_messages_and_stops_in_order(start):
    supervisor = start()
    hello = supervisor.wait_for(Hello)
    assert (hello.stage, hello.replica, hello.incarnation, hello.pid) == (Stage.RUNNER, "r0", 1, supervisor.child.pid)
    assert supervisor.wait_for(Ready).facts == {"fact": "7"}
    supervisor.send(Directory(5, "", []))
    outbox = Outbox(supervisor.zmq, supervisor.inbox)
    outbox.send(Abort("1", 1))
    outbox.send_many([Abort("2", 1), Abort("3", 1)])
    page = GaugeReader(supervisor.folder.gauges / (process_name(Stage.RUNNER, "r0", 1) + ".gauges"))
    end = time.monotonic() + 5
    while page.get(Gauge.TAKEN) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert page.get(Gauge.READY) == 1 and page.heartbeat_age_s() < 2
    supervisor.send(Stop())
    assert supervisor.child.wait(timeout=5) == 0
    records = supervisor.records()
    assert isinstance(records[0], ProcessStarted) and isinstance(records[-1], ProcessStopping)
    steps = [record.step_id for record in records if isinstance(record, StepStarted)]
    assert [step for step in steps if step < 1000] == [1, 2, 3] and 1005 in steps


def test_a_child_that_cannot_start_says_why_in_one_line(start):
    supervisor = start(model="cannot")
    assert supervisor.wait_for(Failed).message == "there is no such model"
    assert supervisor.child.wait(timeout=5) == EXIT_FAILED


def test_a_child_ignores_the_signals_that_end_its_group(start):
    supervisor = start()
    supervisor.wait_for(Ready)
    for number in (2, 15):
        os.kill(supervisor.child.pid, number)
    supervisor.send(Stop())
    assert supervisor.child.wait(timeout=5) == 0


def test_a_child_dies_with_its_parent(tmp_path):
    script = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.engine.test_process import FakeSupervisor
from engine.messages import Ready
s = FakeSupervisor(Path({str(tmp_path)!r}))
s.wait_for(Ready)
print(s.child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    pid = int(parent.stdout)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("the child lives on")


def test_a_damaged_control_message_is_dropped(tmp_path):
    context = zmq.Context()
    control = ControlPlane(context, f"ipc://{tmp_path}/control")
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"ipc://{tmp_path}/control")
    dealer.send(b"garbage")
    assert control.socket.poll(2000)
    assert control.take() == []
    context.destroy(linger=0)
