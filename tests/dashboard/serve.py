"""Serves the dashboard over a made-up world on a free port: for the browser tests, and for looking at it.

``python -m tests.dashboard.serve`` prints the address and keeps the world moving until interrupted.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from dashboard.app import create_app
from dashboard.hub import Hub
from dashboard.process import Server
from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.dashboard.factories import World, full_world, make_sample, make_unfinished


@contextlib.contextmanager
def serving(world: World, hub: Hub | None = None, port: int = 0) -> Iterator[str]:
    """Serve in a thread; yields the base URL."""
    listening = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(
        create_app(world.sources(), hub or Hub(tick_s=0.2)), log_level="warning", timeout_graceful_shutdown=1
    )
    server = Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(5)


def beat(world: World, turn: int) -> None:
    """A second goes by."""
    now = time.time()
    world.add("samples", make_sample(int(now)))
    if turn % 3 == 0:
        world.add("requests", make_unfinished(f"req-live{turn:04d}", now, "running", output_tokens=1))
    for page in world.pages.values():
        page.beat()
    world.pages["r0", Stage.SCHEDULER].set(Gauge.LAST_STEP_NS, time.monotonic_ns())
    world.pages["r0", Stage.SCHEDULER].add(Gauge.LAST_STEP_ID, 17)
    for stage, share in (
        (Stage.RUNNER, 0.86),
        (Stage.SCHEDULER, 0.09),
        (Stage.TOKENIZER, 0.03),
        (Stage.DETOKENIZER, 0.04),
    ):
        world.pages["r0", stage].add(Gauge.BUSY_NS, int(share * 1e9))


def main() -> None:
    """Serve until interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        world = full_world(Path(folder))
        with serving(world, Hub()) as url:
            print(url, flush=True)
            for turn in range(100000):
                beat(world, turn)
                time.sleep(1)


if __name__ == "__main__":
    main()
