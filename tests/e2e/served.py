"""A real `vitrine serve` in a child process, with a data folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import sqlalchemy as sa

from engine.run_folder import RunFolder
from telemetry import schema
from telemetry.events import Stage
from telemetry.gauges import Gauge, GaugeBoard, GaugeReader

START_TIMEOUT_S = 120


def free_ports(count: int) -> list[int]:
    """Different ones: all are held until all are known."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def free_port() -> int:
    return free_ports(1)[0]


def vitrine(*args: str, env: dict[str, str] | None = None, **kwargs) -> subprocess.Popen:
    """`vitrine ARGS` with its output captured as text."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VITRINE_")} | (env or {})
    command = [sys.executable, "-m", "engine.cli", *args]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **kwargs,
    )  # fmt: skip


def is_alive(process: psutil.Process) -> bool:
    """Whether it is still there, and not only waiting to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Served:
    """One running system and what can be asked about it from outside."""

    def __init__(self, data: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.data = data
        self.port, self.dashboard_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.dashboard_url = f"http://127.0.0.1:{self.dashboard_port}"
        self._command = (
            "serve", "--data-dir", str(data), "--port", str(self.port), "--dashboard-port", str(self.dashboard_port),
            *flags,
        )  # fmt: skip
        self._env = env
        self.start()
        self._needed = set(Stage) - {Stage.SUPERVISOR}
        if "off" in flags[-1:] and "--telemetry" in flags:
            self._needed -= {Stage.TELEMETRY}
        self._processes: dict[int, psutil.Process] = {}

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a run; after the end of one, the next with the same data folder and ports."""
        self.process = vitrine(*self._command, env=self._env)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> Served:
        """Until every stage of every unit is ready (the line that `serve` prints last)."""
        self.eventually(self._ready, timeout_s, "everything ready")
        self.folder = self.run_folder()
        self.note_processes()
        return self

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"serve ended with {self.process.returncode}: {self.output()}")
        try:
            pages = GaugeBoard(self.run_folder().gauges).pages()
        except (FileNotFoundError, IndexError):
            return False
        stages = {page.owner.stage for page in pages if page.get(Gauge.READY)}
        return self._needed <= stages and self.status("/ready") == 200

    def run_folder(self) -> RunFolder:
        return RunFolder(sorted((self.data / "run").iterdir())[-1])

    def note_processes(self) -> None:
        """Remember every process there is now, to see at the end that all are gone."""
        for process in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            self._processes[process.pid] = process

    def stop(self, timeout_s: float = 60) -> tuple[int, str]:
        """SIGTERM and wait; returns exit status and output."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_exit(timeout_s)

    def wait_exit(self, timeout_s: float = 60) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out + err

    def output(self) -> str:
        out, err = self.process.communicate(timeout=10)
        return out + err

    def close(self) -> None:
        """End whatever is left, in any case."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)

    def __enter__(self) -> Served:
        return self.wait_ready()

    def __exit__(self, *_: object) -> None:
        self.close()

    def alive(self) -> list[str]:
        """Processes of this system that still live."""
        return [f"process {p.pid}" for p in self._processes.values() if is_alive(p)]

    def gone(self) -> bool:
        """Whether no process of this system lives any more."""
        return not self.alive()

    def leftovers(self) -> list[str]:
        """Processes, sockets and run folders that should be gone by now."""
        alive = self.alive()
        runs = [str(p) for p in (self.data / "run").glob("*")]
        sockets = [] if self.socket_dir is None else [str(self.socket_dir)] * self.socket_dir.exists()
        return alive + runs + sockets

    @property
    def socket_dir(self) -> Path | None:
        return getattr(self, "_socket_dir", None)

    def note_sockets(self) -> None:
        self._socket_dir = Path(self.folder.info().socket_dir)

    # --- asking -------------------------------------------------------------------------------------

    def status(self, path: str) -> int:
        """HTTP status of a GET, 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return 0

    def health(self) -> dict:
        """``GET /health``, whatever its status."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as e:
            return json.loads(e.read())

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def post(self, path: str, body: dict, timeout: float = 120) -> dict:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read())

    def pages(self) -> list[GaugeReader]:
        return GaugeBoard(self.folder.gauges).pages()

    def page(self, stage: Stage, replica: str | None = None) -> GaugeReader | None:
        """The page of the newest process of a stage, of one replica or of any."""
        own = [p for p in self.pages() if p.owner.stage is stage and not p.owner.peer]
        own = [p for p in own if replica in (None, p.owner.replica)]
        return max(own, key=lambda p: p.owner.incarnation, default=None)

    def pid(self, stage: Stage, replica: str | None = None) -> int:
        page = self.page(stage, replica)
        assert page is not None, f"no {stage}"
        return page.owner.pid

    def gauge(self, stage: Stage, gauge: Gauge, replica: str | None = None) -> int:
        page = self.page(stage, replica)
        return page.get(gauge) if page else 0

    def replicas(self) -> list[str]:
        return sorted({p.owner.replica for p in self.pages() if p.owner.stage is Stage.SCHEDULER})

    def all_replicas_ready(self) -> bool:
        """Whether the supervisor has told the others that every replica takes requests."""
        with urllib.request.urlopen(f"{self.dashboard_url}/api/replicas", timeout=10) as answer:
            replicas = json.loads(answer.read())["replicas"]
        return all(replica["state"] == "ready" for replica in replicas)

    def idle(self) -> bool:
        """Gauges say that nothing runs and nothing waits, and the pool of every replica is whole."""
        gateway = self.page(Stage.GATEWAY)
        if gateway is None or gateway.get(Gauge.REQUESTS_IN_FLIGHT) or gateway.get(Gauge.TOKENS_IN_FLIGHT):
            return False
        schedulers = [self.page(Stage.SCHEDULER, replica) for replica in self.replicas()]
        return bool(schedulers) and all(page is not None and self._is_idle(page) for page in schedulers)

    @staticmethod
    def _is_idle(scheduler: GaugeReader) -> bool:
        waiting = [g for g in Gauge if g.name.startswith("WAITING_")]
        blocks = [scheduler.get(g) for g in (Gauge.BLOCKS_FREE, Gauge.BLOCKS_ACTIVE, Gauge.BLOCKS_CACHED)]
        busy = [scheduler.get(g) for g in (Gauge.RUNNING, Gauge.PENDING_SINCE_NS, *waiting)]
        return not any(busy) and not blocks[1] and sum(blocks) == scheduler.get(Gauge.BLOCKS_TOTAL) > 0

    def eventually(self, condition, timeout_s: float = 20, what: str = "") -> None:
        """Ask until `condition()` holds."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"not within {timeout_s} s: {what or condition}"
            time.sleep(0.05)

    # --- what was recorded --------------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """Every series of ``/metrics``, each of them once."""
        series: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line and not line.startswith("#"):
                found = re.fullmatch(r"([A-Za-z_:][\w:]*(?:\{.*\})?) (\S+)", line)
                assert found and found[1] not in series, line
                series[found[1]] = float(found[2])
        return series

    def metric(self, name: str, *having: str) -> float:
        """Sum of the series of a metric whose labels contain each of `having`, e.g. ``'finish_reason="abort"'``."""
        series = self.metrics().items()
        return sum(v for k, v in series if k.partition("{")[0] == name and all(label in k for label in having))

    def finished_row(self, request_id: str, timeout_s: float = 10) -> dict:
        """The row of a request (by our id or the client's), once it has finished."""
        found: list[dict] = []

        def look() -> bool:
            rows = self.rows(schema.requests)
            found[:] = [r for r in rows if request_id in (r["request_id"], r["client_request_id"])]
            return bool(found) and all(r["state"] == "finished" for r in found)

        self.eventually(look, timeout_s, f"{request_id} finished in the store")
        return found[-1]

    def log_lines(self) -> list[dict]:
        """Lines of all processes' logs."""
        files = sorted((self.data / "logs").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def rows(self, table: sa.Table) -> list[dict]:
        engine = sa.create_engine(f"sqlite:///{self.data / 'vitrine.db'}")
        with engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(table))]

    def request_rows(self) -> dict[str, dict]:
        return {row["request_id"]: row for row in self.rows(schema.requests)}

    def token_lines(self) -> list[dict]:
        lines = []
        for path in sorted((self.data / "tokens").glob("*.jsonl")):
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines
