"""Starts stages as child processes of the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from engine.process import LISTEN_FD_VARIABLE
from telemetry.events import Stage

_MODULES = {
    Stage.GATEWAY: "engine.gateway",
    Stage.TOKENIZER: "engine.tokenizer",
    Stage.SCHEDULER: "engine.scheduler",
    Stage.RUNNER: "engine.runner",
    Stage.DETOKENIZER: "engine.detokenizer",
    Stage.TELEMETRY: "telemetry",
    Stage.DASHBOARD: "dashboard",
}
# OpenMP busy-waits by default, which ruins latency where processes share cores. The runner sets its own number.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class LocalProcess:
    """One child process."""

    def __init__(self, stage: Stage, process: subprocess.Popen[bytes]) -> None:
        self.stage = stage
        self.pid = process.pid
        self._process = process

    def exit_status(self) -> str | None:
        """None while it runs, else how it ended, in words."""
        code = self._process.poll()
        if code is None:
            return None
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.poll()

    def kill(self) -> None:
        """End it at once (SIGKILL) and reap it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class LocalLauncher:
    """Starts stages on this host, in the supervisor's process group, dying with the supervisor."""

    def __init__(self, run_folder: Path, stderr_folder: Path) -> None:
        self._run_folder = run_folder
        self._stderr_folder = stderr_folder
        stderr_folder.mkdir(parents=True, exist_ok=True)

    def start(self, stage: Stage, replica: str, incarnation: int, listen_fd: int | None = None) -> LocalProcess:
        """Start one stage. `listen_fd` is a bound socket to inherit."""
        environment = {**os.environ, **_ENVIRONMENT}
        if listen_fd is not None:
            environment[LISTEN_FD_VARIABLE] = str(listen_fd)
        name = f"{replica + '.' if replica else ''}{stage}"
        with (self._stderr_folder / f"{name}.stderr").open("ab") as stderr:
            process = subprocess.Popen(
                self._command(stage, replica, incarnation),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment,
                pass_fds=[] if listen_fd is None else [listen_fd],
            )
        return LocalProcess(stage, process)

    def _command(self, stage: Stage, replica: str, incarnation: int) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", _MODULES[stage]),
            *("--run", str(self._run_folder), "--stage", str(stage)),
            *("--replica", replica, "--incarnation", str(incarnation)),
        ]
