"""What a run leaves behind, and who clears it away.

A run that ends in order removes its own folder. One that was killed leaves its run folder and its socket
folder; the next start removes the sockets at once, and the run folder once telemetry has read its journals.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import IO

import msgspec

from engine.config import SECRETS
from engine.run_folder import RunFolder, RunInfo, process_name
from telemetry.events import Stage

KEPT_CRASH_DUMPS = 10
_COPY_CHUNK_BYTES = 1 << 16
_SOCKET_PREFIX = "vitrine-"


class StartError(Exception):
    """The system cannot start; the message is one clear line."""


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A bound, listening socket. Raises StartError, naming the flag to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sees TCP and turns Nagle's algorithm off: a token must not wait for an ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as e:
        sock.close()
        if e.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} is already in use on {host}; choose another with {flag}") from e
        raise StartError(f"cannot listen on {host} port {port}: {e.strerror} (see --host and {flag})") from e
    return sock


def lock_data_folder(path: Path) -> IO[str]:
    """Make the data folder ours for as long as the returned file is open. Raises StartError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / "lock").open("a+")
    except OSError as e:
        raise StartError(f"cannot write the data folder {path}: {e.strerror}; choose another with --data-dir") from e
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        raise StartError(
            f"the data folder {path} is in use by another vitrine (pid {owner}); choose another with --data-dir"
        ) from e
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def new_socket_folder() -> Path:
    """A short path that only we can enter: a socket's path may not be longer than about 100 bytes."""
    return Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))


def leftover_runs(data: Path, current: Path | None = None) -> list[RunFolder]:
    """Folders of runs that did not end in order. Call with the data folder locked."""
    return [RunFolder(path) for path in sorted((data / "run").glob("*")) if path != current]


def remove_leftover_sockets(data: Path) -> None:
    """Remove the socket folders of runs that did not end in order."""
    for run in leftover_runs(data):
        try:
            sockets = Path(run.info().socket_dir)
        except (OSError, msgspec.MsgspecError):
            continue
        if sockets.name.startswith(_SOCKET_PREFIX):
            shutil.rmtree(sockets, ignore_errors=True)


def remove_run(run: RunFolder) -> None:
    """Remove a run's folder."""
    shutil.rmtree(run.path, ignore_errors=True)


def remove_gauges(folder: RunFolder, stages: tuple[Stage, ...], replica: str, incarnation: int) -> None:
    """Remove the pages of processes that are gone, so that nobody counts them any more."""
    for stage in stages:
        name = process_name(stage, replica, incarnation)
        for path in folder.gauges.glob(f"{name}[.-]*"):
            path.unlink(missing_ok=True)


def dump_crash(
    crashes: Path, folder: RunFolder, stages: tuple[Stage, ...], replica: str, incarnation: int, reason: str
) -> Path:
    """Copy a dead unit's journals, with the configuration and the reason, to `crashes`; the newest ten stay."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    dump = crashes / f"{stamp}-{replica or stages[0]}.{incarnation}"
    dump.mkdir(parents=True, exist_ok=True)
    (dump / "reason.txt").write_text(reason + "\n")
    (dump / folder.info_file.name).write_bytes(msgspec.json.encode(_without_secrets(folder.info())))
    for stage in stages:
        for journal in folder.journals.glob(process_name(stage, replica, incarnation) + ".*"):
            _copy_sparse(journal, dump / journal.name)
    for old in sorted(crashes.iterdir())[:-KEPT_CRASH_DUMPS]:
        shutil.rmtree(old, ignore_errors=True)
    return dump


def _without_secrets(info: RunInfo) -> RunInfo:
    masked = {name: "***" for name in SECRETS if getattr(info.config, name)}
    return msgspec.structs.replace(info, config=msgspec.structs.replace(info.config, **masked))


def _copy_sparse(source: Path, target: Path) -> None:
    """Copy a file without writing the parts that are all zero (a ring that was never filled)."""
    zeros = bytes(_COPY_CHUNK_BYTES)
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_COPY_CHUNK_BYTES):
            if chunk == zeros:
                writer.seek(len(chunk), os.SEEK_CUR)
            else:
                writer.write(chunk)
        writer.truncate()
