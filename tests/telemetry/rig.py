"""A run without an engine: its folder, a supervisor's socket, journals written by hand, the real telemetry process."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zmq
from prometheus_client.parser import text_string_to_metric_families

from engine.config import Config
from engine.messages import Hello, Ready, Stop
from engine.run_folder import ModelFiles, RunFolder, RunInfo, control_address, metrics_address, process_name
from engine.transport import decode_control, encode
from telemetry.events import Stage
from telemetry.gauges import Gauge, GaugeReader
from telemetry.journal import JournalWriter
from telemetry.queries import open_reader


def eventually(probe, timeout_s=15.0):
    """What `probe` answers as soon as it is true."""
    end = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def read_token_lines(folder: Path):
    """All lines of a token log, in order; a file that is there both plain and compressed counts once."""
    files = {path.name.removesuffix(".gz"): path for path in folder.glob("*.jsonl.gz")}
    files |= {path.name: path for path in folder.glob("*.jsonl")}
    found = []
    for _, path in sorted(files.items()):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        assert text.endswith("\n") or not text, f"{path} has a torn line"
        found += map(json.loads, text.splitlines())
    return found


class Rig:
    """One data folder; ``start`` and ``kill`` the telemetry process at will."""

    def __init__(self, data: Path, **config) -> None:
        self.data = data
        self.sockets = Path(tempfile.mkdtemp(prefix="vitrine-test-"))
        self.config = Config(data_dir=str(data), **config)
        self.folder = self.new_run("run-2")
        self.child = None
        self.identity = b""
        self.incarnation = 0
        self._writers = {}
        self._zmq = zmq.Context()
        self._control = self._zmq.socket(zmq.ROUTER)
        self._control.bind(control_address(str(self.sockets)))

    def new_run(self, run_id):
        folder = RunFolder(self.data / "run" / run_id)
        folder.create(
            RunInfo(
                run_id=run_id,
                revision="abc",
                host="here",
                config=self.config,
                model=ModelFiles("tiny", "/nowhere", "m", "t"),
                socket_dir=str(self.sockets),
                supervisor_pid=os.getpid(),
            )
        )
        return folder

    # --- journals ---

    def write(self, story, folder=None):
        """Append a story's entries to the journals of their owners."""
        for owner, record in story.entries:
            self.writer(owner, folder or self.folder).append(record)
        story.entries.clear()

    def writer(self, owner, folder):
        key = (folder.path, owner)
        if key not in self._writers:
            name = process_name(owner.stage, owner.replica, owner.incarnation)
            owner = type(owner)(owner.stage, owner.replica, owner.incarnation, os.getpid())
            self._writers[key] = JournalWriter(folder.journals / f"{name}.journal", owner)
        return self._writers[key]

    # --- the process ---

    def start(self, wait=True):
        self.incarnation += 1
        command = [sys.executable, "-m", "telemetry", "--run", str(self.folder.path)]
        command += ["--stage", "telemetry", "--incarnation", str(self.incarnation)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
        self.child = subprocess.Popen(command, cwd=Path.cwd(), env={**env, "OMP_NUM_THREADS": "1"})
        return self.wait_until_ready() if wait else None

    def wait_until_ready(self, timeout_s=20.0):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            assert self.child.poll() is None, f"telemetry ended with {self.child.returncode}"
            if not self._control.poll(50):
                continue
            identity, frame = self._control.recv_multipart()
            message = decode_control(frame)
            if isinstance(message, Hello) and message.pid == self.child.pid:
                self.identity = identity
            if isinstance(message, Ready) and identity == self.identity:
                return
        raise AssertionError("telemetry did not become ready")

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self, timeout_s=10.0):
        """An orderly end; returns the exit status and how long it took."""
        started = time.monotonic()
        self._control.send_multipart([self.identity, encode(Stop())])
        return self.child.wait(timeout_s), time.monotonic() - started

    def gauge(self, gauge):
        page = GaugeReader(self.folder.gauges / f"{process_name(Stage.TELEMETRY, '', self.incarnation)}.gauges")
        try:
            return page.get(gauge)
        finally:
            page.close()

    def heartbeat_age_s(self):
        return (time.monotonic_ns() - self.gauge(Gauge.HEARTBEAT_NS)) / 1e9

    # --- what came of it ---

    def ask_metrics(self, accept="text/plain", kind=zmq.REQ):
        socket = self._zmq.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(metrics_address(str(self.sockets)))
        try:
            socket.send_multipart([accept.encode()] if kind == zmq.REQ else [b"", accept.encode()])
            assert socket.poll(5000), "no answer"
            *_, content_type, body = socket.recv_multipart()
        finally:
            socket.close()
        return content_type.decode(), body.decode()

    def metrics(self):
        families = text_string_to_metric_families(self.ask_metrics()[1])
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def metric(self, name, **having):
        return sum(
            v for (n, labels), v in self.metrics().items() if n == name and having.items() <= dict(labels).items()
        )

    def requests(self):
        """Request rows by id."""
        reader = open_reader(self.data)
        try:
            return {row["request_id"]: row for row in reader.list_requests(limit=1000).rows}
        finally:
            reader.close()

    def token_lines(self):
        return read_token_lines(self.data / "tokens")

    def log_lines(self):
        path = self.data / "logs" / "telemetry.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def close(self):
        if self.child is not None and self.child.poll() is None:
            self.kill()
        self._control.close(0)
        self._zmq.destroy(0)
        shutil.rmtree(self.sockets, ignore_errors=True)
