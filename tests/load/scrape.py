"""How long a scrape takes while many requests run, and what scraping costs them.

``python -m tests.load.scrape [--running 256] [--seconds 20] [--rounds 3]`` starts the whole system with a simulated
device and keeps so many streams running. In turn it leaves the system alone, and asks both ports for ``/metrics``
(every other time in OpenMetrics' format) and the API for ``/health``, each ten times a second.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.e2e.clients import body_of
from tests.e2e.served import Served

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PACE_S = 0.1
_CONTEXT_TOKENS = 8000


class Round(NamedTuple):
    """One stretch of time: steps per second, and how long each answer took, by what was asked (none: left alone)."""

    steps_per_s: float
    waits_s: dict[str, list[float]]


class Streams:
    """So many streams on raw sockets, whose bytes are read and thrown away; one that ends is begun again."""

    def __init__(self, served: Served, count: int) -> None:
        body = json.dumps(
            body_of({"prompt": "Count:", "max_tokens": _CONTEXT_TOKENS, "ignore_eos": True, "stream": True})
        )
        self._request = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self._port = served.port
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        for _ in range(count):
            self._begin()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """All of them leave."""
        self._stopping.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _begin(self) -> None:
        connection = socket.create_connection(("127.0.0.1", self._port))
        connection.sendall(self._request)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.1):
                connection: socket.socket = key.fileobj  # type: ignore[assignment]
                if not connection.recv(1 << 20):
                    self._selector.unregister(connection)
                    connection.close()
                    self._begin()
            time.sleep(0.01)  # so that one reading takes the chunks of many steps: it is not what is measured


@contextmanager
def loaded(folder: Path, running: int, *flags: str) -> Iterator[Served]:
    """A served system in which `running` streams run."""
    limits = ("--device", "simulated", "--max-num-seqs", str(running), "--max-queue", str(2 * running))
    blocks = ("--kv-blocks", str(running * (_CONTEXT_TOKENS // 16 + 2)))
    with Served(folder, *limits, *blocks, *flags) as served:
        streams = Streams(served, running)
        try:
            full = ("a full batch", lambda: served.gauge(Stage.SCHEDULER, Gauge.RUNNING) == running)
            served.eventually(full[1], 60, full[0])
            yield served
        finally:
            streams.close()


def alone(served: Served, seconds: float) -> Round:
    """Nobody asks anything."""
    first, began = served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID), time.monotonic()
    time.sleep(seconds)
    return Round((served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID) - first) / (time.monotonic() - began), {})


def asked(served: Served, seconds: float) -> Round:
    """Everything is asked ten times a second."""
    urls = {
        "API /metrics": f"{served.url}/metrics",
        "dashboard /metrics": f"{served.dashboard_url}/metrics",
        "API /health": f"{served.url}/health",
    }
    waits: dict[str, list[float]] = {}
    end = time.monotonic() + seconds
    askers = [threading.Thread(target=_ask, args=(url, end, waits.setdefault(what, []))) for what, url in urls.items()]
    first, began = served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID), time.monotonic()
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    return Round((served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID) - first) / (time.monotonic() - began), waits)


def _ask(url: str, end: float, waits: list[float]) -> None:
    with httpx.Client(timeout=10) as client:
        while (began := time.monotonic()) < end:
            accept = OPENMETRICS if len(waits) % 2 else "text/plain"
            client.get(url, headers={"accept": accept}).raise_for_status()
            waits.append(time.monotonic() - began)
            time.sleep(max(0.0, PACE_S - waits[-1]))


def percentile(waits: list[float], share: float) -> float:
    """Nearest rank, in seconds."""
    return sorted(waits)[min(len(waits) - 1, int(share * len(waits)))]


def table(running: int, rounds: list[tuple[Round, Round]]) -> Table:
    """For people."""
    table = Table(title=f"Answers with {running} running requests, milliseconds")
    for heading in ("asked for", "answers", "p50", "p99", "longest"):
        table.add_column(heading, justify="right")
    for what in rounds[0][1].waits_s:
        waits = [wait for _, round_ in rounds for wait in round_.waits_s[what]]
        numbers = (percentile(waits, 0.5), percentile(waits, 0.99), max(waits))
        table.add_row(what, str(len(waits)), *(f"{number * 1e3:.1f}" for number in numbers))
    return table


def main() -> None:
    """Measure in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--simulated-step", default="20000,20,120")
    args = parser.parse_args()
    step = ("--simulated-step", args.simulated_step)
    with tempfile.TemporaryDirectory() as folder, loaded(Path(folder), args.running, *step) as served:
        rounds = [(alone(served, args.seconds), asked(served, args.seconds)) for _ in range(args.rounds)]
    Console().print(table(args.running, rounds))
    for quiet, busy in rounds:
        print(f"steps per second: left alone {quiet.steps_per_s:.2f}, asked {busy.steps_per_s:.2f}")


if __name__ == "__main__":
    main()
