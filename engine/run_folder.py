"""The folder of one run of the system: everything that its processes share, and nothing that outlives it.

::

    run/<run id>/
      run.json         RunInfo: configuration, model, where the sockets are
      journals/        <process>.journal     (see telemetry.journal)
      gauges/          <process>.gauges      (see telemetry.gauges)

Sockets lie in a short temporary folder of their own (mode 0700), since a socket's path may not be longer
than about 100 bytes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.config import Config
from telemetry.events import Stage


class ModelFiles(msgspec.Struct, frozen=True):
    """A model that is ready to be served: a local Hugging Face folder, and what identifies it.

    The folder holds config.json, *.safetensors, tokenizer.json, and where the model has them
    tokenizer_config.json and generation_config.json.
    """

    name: str  # short name, what the API calls it by default
    path: str
    weights_sha256: str
    tokenizer_sha256: str


class RunInfo(msgspec.Struct, frozen=True):
    """What the supervisor tells every child, in a file."""

    run_id: str
    revision: str  # git revision of the source, "" when unknown
    host: str  # this machine's name
    config: Config
    model: ModelFiles
    socket_dir: str
    supervisor_pid: int


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journals = path / "journals"
        self.gauges = path / "gauges"
        self.info_file = path / "run.json"

    def create(self, info: RunInfo) -> None:
        """Make the folder and write ``run.json``. Only its owner may look inside."""
        self.path.mkdir(parents=True, mode=0o700)
        self.journals.mkdir()
        self.gauges.mkdir()
        self.info_file.write_bytes(msgspec.json.encode(info))
        self.info_file.chmod(0o600)

    def info(self) -> RunInfo:
        """Read ``run.json``. Raises OSError or msgspec.MsgspecError."""
        return msgspec.json.decode(self.info_file.read_bytes(), type=RunInfo)


def process_name(stage: Stage, replica: str, incarnation: int, peer: str = "") -> str:
    """A name for files: ``gateway.1``, ``r0.2.runner``, ``gateway.1-r0.2``."""
    own = f"{replica}.{incarnation}.{stage}" if replica else f"{stage}.{incarnation}"
    return f"{own}-{peer}" if peer else own


def inbox_address(socket_dir: str, stage: Stage, replica: str, incarnation: int) -> str:
    """ZeroMQ address of a stage's inbox. A gateway's is the same in every incarnation."""
    return f"ipc://{socket_dir}/{replica + '.' if replica else ''}{incarnation if replica else 0}.{stage}"


def control_address(socket_dir: str) -> str:
    """ZeroMQ address of the supervisor."""
    return f"ipc://{socket_dir}/supervisor"


def metrics_address(socket_dir: str) -> str:
    """ZeroMQ address (REP-like ROUTER) where telemetry answers for ``GET /metrics``.

    Request: one frame, the Accept header. Answer: two frames, content type and body.
    """
    return f"ipc://{socket_dir}/metrics"
