"""A Vitrine of our own to be measured: real processes, a passing data folder, and what they use of the CPU."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx
import psutil

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.1

CpuTimes = dict[tuple[int, str], float]
"""User and system seconds by (pid, name): ``(4711, "r0 runner")``."""


class ServerFailedError(Exception):
    """The server did not start, or lost a process; the message says which and why."""


class LocalServer:
    """``vitrine serve`` with `flags`, on ports of its own. Settings from the environment apply to it too."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._folder = tempfile.TemporaryDirectory(prefix="vitrine-bench-", ignore_cleanup_errors=True)
        self._port, dashboard_port = _free_ports(2)
        self._own = (
            "--data-dir",
            self._folder.name,
            "--port",
            str(self._port),
            "--dashboard-port",
            str(dashboard_port),
        )
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> LocalServer:
        """Start it and wait until it takes requests. Raises ServerFailedError."""
        output = (Path(self._folder.name) / "output").open("wb")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine.cli", "serve", *self._flags, *self._own,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        output.close()
        try:
            await self._until_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._stop()

    async def metrics(self) -> str:
        """``GET /metrics``; "" where nobody answers for them."""
        async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
            response = await http.get(self.url + "/metrics")
        return response.text if response.status_code == 200 else ""

    def cpu_times(self) -> CpuTimes:
        """What each process has used since it started, in seconds."""
        supervisor = psutil.Process(self._process.pid)
        times: CpuTimes = {}
        for process in (supervisor, *supervisor.children(recursive=True)):
            used = process.cpu_times()
            title = " ".join(process.cmdline()).strip().removeprefix("vitrine ")  # setproctitle pads it
            name = "supervisor" if process == supervisor else title
            times[process.pid, name] = used.user + used.system
        return times

    async def _until_ready(self) -> None:
        """The line that ``serve`` prints last says that everything is ready, telemetry and dashboard too."""
        end = time.monotonic() + START_TIMEOUT_S
        while "Ctrl-C" not in (said := self._said()):
            if self._process.returncode is not None or time.monotonic() > end:
                raise ServerFailedError(f"vitrine serve {' '.join(self._flags)} did not start: {said.strip()[-500:]}")
            await asyncio.sleep(_POLL_S)

    def _said(self) -> str:
        return (Path(self._folder.name) / "output").read_text(errors="replace")

    async def _stop(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        self._folder.cleanup()


def cpu_used(before: CpuTimes, after: CpuTimes) -> dict[str, float]:
    """Seconds by name of process between two looks. Raises ServerFailedError when a process has been replaced."""
    if before.keys() != after.keys():
        changed = sorted(name for _, name in before.keys() ^ after.keys())
        raise ServerFailedError(f"processes ended or began while they were measured: {', '.join(changed)}")
    return {name: seconds - before[pid, name] for (pid, name), seconds in after.items()}


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
