"""The converted copies of GGUF files in the cache.

::

    <cache>/models/<name>/
      lock                    held while something is downloaded or converted
      <file>.gguf             of known models; a local GGUF file stays where it is
      bfloat16/, float32/     Hugging Face folders, each with a vitrine.json
      .partial-*              being made; left by a process that was killed, removed by the next
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine.model_store.errors import ModelError
from engine.model_store.hashing import sha256_of
from engine.model_store.progress import Progress
from engine.run_folder import ModelFiles

_FORMAT = 2
"""Raised when the converter changes what it writes: older copies are made again."""


class _Manifest(msgspec.Struct, frozen=True):
    """``vitrine.json``: what a converted folder was made from, and its files with their sizes."""

    format: int
    weights_sha256: str  # of the GGUF file
    tokenizer_sha256: str  # of tokenizer.json
    file_bytes: dict[str, int]


def find_converted(folder: Path, dtype: str, name: str) -> ModelFiles | None:
    """The copy in `dtype` if it is there and whole."""
    copy = folder / dtype
    try:
        manifest = msgspec.json.decode((copy / "vitrine.json").read_bytes(), type=_Manifest)
        whole = all((copy / file).stat().st_size == size for file, size in manifest.file_bytes.items())
    except (OSError, msgspec.MsgspecError):
        return None
    if manifest.format != _FORMAT or not whole:
        return None
    return ModelFiles(name, str(copy), manifest.weights_sha256, manifest.tokenizer_sha256)


def make_converted(
    folder: Path, dtype: str, name: str, source: Callable[[], tuple[Path, str]], progress: Progress
) -> ModelFiles:
    """The copy in `dtype`, made unless it is there. Of several processes that ask, one does the work.

    `source` gives the GGUF file and its SHA-256, and is called with the lock held. Raises ModelError.
    """
    found = find_converted(folder, dtype, name)
    if found is not None:
        return found
    with _locked(folder, progress):
        found = find_converted(folder, dtype, name)  # somebody else may have made it meanwhile
        if found is None:
            _remove_leftovers(folder)
            gguf, sha256 = source()
            found = _convert(folder, dtype, name, gguf, sha256, progress)
    return found


def _convert(folder: Path, dtype: str, name: str, gguf: Path, sha256: str, progress: Progress) -> ModelFiles:
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    try:
        with progress.working(f"converting {name} to {dtype}, once: about half a minute for 100 MB"):
            _run_converter(gguf, partial, dtype)
        _write_manifest(partial, sha256)
        copy = folder / dtype
        shutil.rmtree(copy, ignore_errors=True)
        partial.rename(copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = find_converted(folder, dtype, name)
    if files is None:
        raise ModelError(f"the converted copy of {name} in {folder} changed under our hands; start again")
    return files


def _run_converter(gguf: Path, target: Path, dtype: str) -> None:
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "engine.model_store.convert", str(gguf.resolve()), str(target), dtype],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | quiet,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ModelError(f"cannot convert {gguf}: {reason}")


def _write_manifest(folder: Path, weights_sha256: str) -> None:
    manifest = _Manifest(
        format=_FORMAT,
        weights_sha256=weights_sha256,
        tokenizer_sha256=sha256_of(folder / "tokenizer.json"),
        file_bytes={file.name: file.stat().st_size for file in sorted(folder.iterdir())},
    )
    (folder / "vitrine.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    folder.chmod(0o755)  # mkdtemp's folders are private


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it when its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.working(f"waiting for another process that prepares {folder.name}"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(".partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
