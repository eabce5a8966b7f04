"""The real process, under a supervisor that is played by the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import zmq

from engine.config import Config
from engine.messages import CacheReset, ControlMessage, Hello, Ready, ResetCache, Stop
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, metrics_address
from engine.transport import decode_control, encode
from telemetry.events import ReplicaState, Stage
from telemetry.gauges import Gauge, GaugeReader
from tests.dashboard.factories import World, full_world, make_directory

TIMEOUT_MS = 15_000


class Supervisor:
    """A run folder, a bound port, the control plane, and one dashboard process."""

    def __init__(self, root: Path, sockets: str) -> None:
        self.world: World = full_world(root)
        self.context = zmq.Context()
        self.control = self.context.socket(zmq.ROUTER)
        self.control.bind(control_address(sockets))
        self.sockets = sockets
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.folder = RunFolder(root / "run")
        model = ModelFiles("m", str(self.world.model_path), "0" * 64, "0" * 64)
        config = Config(data_dir=str(self.world.data))
        self.folder.create(RunInfo("run-1", "", "bench-1", config, model, sockets, os.getpid()))
        fd = self.listening.fileno()
        command = ("-m", "dashboard", "--run", str(self.folder.path), "--stage", "dashboard", "--incarnation", "1")
        self.process = subprocess.Popen(
            [sys.executable, *command], pass_fds=[fd], env={**os.environ, "VITRINE_LISTEN_FD": str(fd)}
        )
        self.identity = b""

    def take(self) -> ControlMessage:
        assert self.control.poll(TIMEOUT_MS), "the dashboard says nothing"
        self.identity, frame = self.control.recv_multipart()
        return decode_control(frame)

    def send(self, message: ControlMessage) -> None:
        self.control.send_multipart([self.identity, encode(message)])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)
        self.listening.close()
        self.context.destroy(linger=0)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with tempfile.TemporaryDirectory() as sockets:
        supervisor = Supervisor(tmp_path, sockets)
        yield supervisor
        supervisor.close()


def answer_metrics(context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
    """Play telemetry for one question."""
    telemetry = context.socket(zmq.ROUTER)
    telemetry.bind(address)
    identity, empty, accept = telemetry.recv_multipart()
    telemetry.send_multipart([identity, empty, b"text/plain", b"accepted " + accept])
    telemetry.close(linger=1000)


def test_life_of_the_process(supervisor: Supervisor) -> None:
    assert supervisor.take() == Hello(Stage.DASHBOARD, "", 1, supervisor.process.pid)
    supervisor.send(make_directory())
    assert isinstance(supervisor.take(), Ready)
    page = GaugeReader(supervisor.folder.gauges / "dashboard.1.gauges")
    assert page.get(Gauge.READY) == 1

    assert "all 4 stages ready" in httpx.get(f"{supervisor.url}/replicas").text
    assert httpx.get(f"{supervisor.url}/metrics", timeout=5).status_code == 503
    telemetry = threading.Thread(
        target=answer_metrics, args=(supervisor.context, metrics_address(supervisor.sockets)), daemon=True
    )
    telemetry.start()
    response = httpx.get(f"{supervisor.url}/metrics", headers={"accept": "text/x"}, timeout=5)
    assert response.text == "accepted text/x"
    assert page.heartbeat_age_s() < 2
    page.close()

    with httpx.stream("GET", f"{supervisor.url}/api/events?page=overview", timeout=10) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith("event: tiles"))
        supervisor.send(Stop())
        stopped = time.monotonic()
        for _ in lines:
            pass
        assert time.monotonic() - stopped < 2
    assert supervisor.process.wait(5) == 0
    assert time.monotonic() - stopped < 4


def test_a_reset_of_the_prefix_cache_is_answered_when_every_replica_has_done_it(supervisor: Supervisor) -> None:
    """DA-12."""
    supervisor.take()
    assert isinstance(supervisor.take(), Ready)
    directory = make_directory()
    ready = [entry.replica for entry in directory.replicas if entry.state is ReplicaState.READY]
    supervisor.send(directory)
    with ThreadPoolExecutor(1) as pool:
        posting = pool.submit(httpx.post, f"{supervisor.url}/api/kv/reset", timeout=20)
        command = supervisor.take()
        assert isinstance(command, ResetCache)
        for number, replica in enumerate(ready):
            supervisor.send(CacheReset(command.question, replica, number))
        response = posting.result()
    assert response.status_code == 200
    assert response.json() == {"freed_blocks": {replica: number for number, replica in enumerate(ready)}}


def test_a_reset_that_a_replica_does_not_answer_is_no_success(supervisor: Supervisor) -> None:
    supervisor.take()
    assert isinstance(supervisor.take(), Ready)
    supervisor.send(make_directory())
    response = httpx.post(f"{supervisor.url}/api/kv/reset", timeout=20)
    assert response.status_code == 503
    assert "r0" in response.json()["error"]["message"]


def test_signals_of_the_terminal_are_left_to_the_supervisor(supervisor: Supervisor) -> None:
    supervisor.take()
    assert isinstance(supervisor.take(), Ready)
    supervisor.process.terminate()
    assert httpx.get(f"{supervisor.url}/help").status_code == 200
    supervisor.send(Stop())
    assert supervisor.process.wait(5) == 0
