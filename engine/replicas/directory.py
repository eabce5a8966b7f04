"""What the supervisor tells about its units: the directory for the children, state records for the journal."""

from __future__ import annotations

import platform
import time

from engine import __version__
from engine.config import SECRETS
from engine.messages import Directory, ReplicaEntry
from engine.model_shape import ModelShape
from engine.replicas.unit import Unit
from engine.run_folder import RunInfo, inbox_address
from telemetry.events import ReplicaInfo, ReplicaState, ReplicaStateChanged, Stage

_SERVING = (ReplicaState.READY, ReplicaState.DRAINING)


class DirectoryMaker:
    """Reads the units as they are now."""

    def __init__(self, run: RunInfo, shape: ModelShape, units: list[Unit]) -> None:
        self._run = run
        self._shape = shape
        self._units = units

    def message(self) -> Directory:
        """The directory, for everyone."""
        gateway = next(unit for unit in self._units if Stage.GATEWAY in unit.stages)
        return Directory(
            gateway=gateway.incarnation if gateway.alive else 0,
            gateway_inbox=inbox_address(self._run.socket_dir, Stage.GATEWAY, "", gateway.incarnation),
            replicas=[self._entry(unit) for unit in self._units if unit.replica],
        )

    def state_record(self, unit: Unit) -> ReplicaStateChanged:
        """The record of a replica's state as it is now."""
        info = replica_info(self._run, self._shape, unit) if unit.state is ReplicaState.READY else None
        return ReplicaStateChanged(time.monotonic_ns(), unit.replica, unit.incarnation, unit.state, unit.reason, info)

    def _entry(self, unit: Unit) -> ReplicaEntry:
        return ReplicaEntry(
            replica=unit.replica,
            incarnation=unit.incarnation,
            state=unit.state,
            reason=unit.reason,
            since_ns=unit.since_ns,
            restarts=unit.restarts,
            inboxes={
                stage: inbox_address(self._run.socket_dir, stage, unit.replica, unit.incarnation)
                for stage in unit.stages
            },
            info=replica_info(self._run, self._shape, unit) if unit.state in _SERVING else None,
        )


def replica_info(run: RunInfo, shape: ModelShape, unit: Unit) -> ReplicaInfo:
    """What identifies a replica of this run; secrets are left out of the flags."""
    config = run.config
    device = unit.facts.get("device", "cpu")
    return ReplicaInfo(
        version=__version__,
        revision=run.revision,
        model=config.served_model_name or run.model.name,
        model_path=run.model.path,
        model_sha256=run.model.weights_sha256,
        tokenizer_sha256=run.model.tokenizer_sha256,
        dtype=config.dtype,
        device=f"cpu ({platform.machine()})" if device == "cpu" else device,
        host=run.host,
        flags={f: str(getattr(config, f)) for f in config.__struct_fields__ if f not in SECRETS},
        max_model_len=shape.max_model_len(config),
        block_size=config.block_size,
        num_blocks=shape.num_kv_blocks(config),
        compute=unit.compute,
    )
