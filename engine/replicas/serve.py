"""``vitrine serve``: check what can be checked, prepare the run, supervise it, clear up."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from engine import logs
from engine.config import Config
from engine.model_shape import ModelShape
from engine.model_store import ModelError, progress_on_stderr, resolve_model
from engine.process import ProcessContext
from engine.replicas import housekeeping
from engine.replicas.housekeeping import StartError
from engine.replicas.launchers.local import LocalLauncher
from engine.replicas.supervisor import Supervisor
from engine.replicas.terminal import Terminal
from engine.replicas.unit import Unit
from engine.run_folder import ModelFiles, RunFolder, RunInfo
from telemetry.events import REPLICA_STAGES, Stage


def serve(config: Config) -> int:
    """Run the whole system until a signal ends it; returns the exit status."""
    out = Terminal()
    with ExitStack() as cleanup:
        try:
            return _serve(config, out, cleanup)
        except (StartError, ModelError) as e:
            out.error(str(e))
            return 1
        except KeyboardInterrupt:
            out.error("interrupted before it was ready")
            return 130


def _serve(config: Config, out: Terminal, cleanup: ExitStack) -> int:
    api = cleanup.enter_context(housekeeping.listen(config.host, config.port, "--port"))
    pages = cleanup.enter_context(housekeeping.listen(config.host, config.dashboard_port, "--dashboard-port"))
    data = config.data_path
    os.umask(0o077)  # prompts and answers are in these files: nobody else may read them
    cleanup.enter_context(housekeeping.lock_data_folder(data))
    logs.configure(data / "logs", config.log_level, Stage.SUPERVISOR, "", 1)
    model = resolve_model(config.model, config.dtype, config.cache_path, progress_on_stderr())
    shape = _shape(model, config)
    out.headline(config.served_model_name or model.name, config)
    housekeeping.remove_leftover_sockets(data)
    folder = _run_folder(config, model, cleanup)
    context = ProcessContext(folder, Stage.SUPERVISOR, "", 1)
    cleanup.callback(context.close)
    units = _units(config, api, pages)
    return Supervisor(context, units, LocalLauncher(folder.path, data / "logs"), shape, out).run()


def _shape(model: ModelFiles, config: Config) -> ModelShape:
    try:
        shape = ModelShape.from_folder(Path(model.path))
    except (OSError, KeyError, ValueError) as e:
        raise StartError(f"cannot read the model's configuration in {model.path}: {e!r}") from e
    if config.max_model_len > shape.max_positions:
        raise StartError(f"--max-model-len {config.max_model_len}: {model.name} allows {shape.max_positions} at most")
    return shape


def _run_folder(config: Config, model: ModelFiles, cleanup: ExitStack) -> RunFolder:
    """Make the run's folders; they go when `cleanup` does."""
    run_id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    sockets = housekeeping.new_socket_folder()
    cleanup.callback(shutil.rmtree, sockets, ignore_errors=True)
    folder = RunFolder(config.data_path / "run" / run_id)
    cleanup.callback(housekeeping.remove_run, folder)
    folder.create(
        RunInfo(
            run_id=run_id,
            revision=_git_revision(),
            host=socket.gethostname(),
            config=config,
            model=model,
            socket_dir=str(sockets),
            supervisor_pid=os.getpid(),
        )
    )
    return folder


def _units(config: Config, api: socket.socket, pages: socket.socket) -> list[Unit]:
    """Replicas first: loading a model takes longest."""
    units = [Unit(f"r{i}", REPLICA_STAGES, replica=f"r{i}") for i in range(config.replicas)]
    units.append(Unit("gateway", (Stage.GATEWAY,), listen_fd=api.fileno()))
    if config.telemetry == "on":
        units.append(Unit("telemetry", (Stage.TELEMETRY,)))
    units.append(Unit("dashboard", (Stage.DASHBOARD,), listen_fd=pages.fileno()))
    return units


def _git_revision() -> str:
    """The revision of the source tree that we run from, "" where there is none."""
    here = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=2
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
