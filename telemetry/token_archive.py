"""The closed files of the token log: compressed in small slices, deleted when they are too many or too old."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from telemetry import gzip_blocks
from telemetry.token_files import BLOCK_BYTES, COMPRESSED, PART, SUFFIX, all_names, last_write_ts, plain_names


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long closed files are kept. 0: no limit."""

    max_age_s: float = 0.0  # since a file's last line
    max_bytes: int = 0  # of all files together, compressed ones as they lie on disk


class Compression:
    """Compresses one file. Until `step` has answered True the plain file is the only one that counts."""

    def __init__(self, path: Path, sync: bool) -> None:
        """Begin. Raises OSError."""
        self.name = path.name
        self._path = path
        self._part = path.with_name(path.name + COMPRESSED + PART)
        self._sync = sync
        self._source = os.open(path, os.O_RDONLY)
        try:
            self._target = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError:
            os.close(self._source)
            raise

    def step(self) -> bool:
        """Compress the next block; whether that was the last. Raises OSError; `abandon` it then."""
        data = os.read(self._source, BLOCK_BYTES)
        write_whole(self._target, gzip_blocks.pack(data))
        if len(data) == BLOCK_BYTES:
            return False
        self._finish()
        return True

    def abandon(self) -> None:
        """Leave the plain file as it is. Raises OSError."""
        self._close()
        self._part.unlink(missing_ok=True)

    def _finish(self) -> None:
        """The order matters: whenever this is cut short, there is a whole file."""
        times = os.fstat(self._source)
        os.utime(self._target, ns=(times.st_atime_ns, times.st_mtime_ns))
        if self._sync:
            os.fsync(self._target)
        self._part.replace(self._path.with_name(self.name + COMPRESSED))
        if self._sync:
            sync_folder(self._path.parent)
        self._path.unlink()
        self._close()

    def _close(self) -> None:
        if self._source >= 0:
            os.close(self._source)
            os.close(self._target)
            self._source = self._target = -1


class TokenArchive:
    """Owns the files that nothing will be written to any more; who writes says which those are."""

    def __init__(self, folder: Path, retention: Retention, sync: bool = False) -> None:
        """`sync`: bring a compressed file to the disk before the plain one is deleted."""
        self._folder = folder
        self._retention = retention
        self._sync = sync
        self._compression: Compression | None = None

    def recover(self) -> None:
        """Clean up after a process that was killed while it compressed. Raises OSError."""
        for path in self._folder.glob("*" + SUFFIX + COMPRESSED + PART):
            path.unlink()
        for path in self._folder.glob("*" + SUFFIX + COMPRESSED):
            path.with_name(path.name.removesuffix(COMPRESSED)).unlink(missing_ok=True)

    def work(self) -> bool:
        """Compress the next block, a few milliseconds; whether that was a file's last.

        Raises OSError, and then begins anew after the next `trim`.
        """
        if self._compression is None:
            return False
        try:
            done = self._compression.step()
        except OSError:
            self._drop_compression()
            raise
        if done:
            self._compression = None
        return done

    def trim(self, closed: Collection[str], now_ts: float) -> None:
        """Delete those of the closed files whose time is over, and choose the next one to compress. Raises OSError."""
        for name in self._expired(closed, now_ts):
            self._delete(name)
        if self._compression is None:
            plain = next((name for name in plain_names(self._folder) if name in closed), None)
            self._compression = Compression(self._folder / plain, self._sync) if plain else None

    def close(self) -> None:
        """Stop in the middle."""
        self._drop_compression()

    def _expired(self, closed: Collection[str], now_ts: float) -> list[str]:
        """The oldest files, as many as have to go."""
        names = all_names(self._folder)
        excess = sum(map(self._size, names)) - self._retention.max_bytes if self._retention.max_bytes else 0
        oldest_ts = now_ts - self._retention.max_age_s if self._retention.max_age_s else float("-inf")
        expired = []
        for name in names:
            if name in closed and (excess > 0 or last_write_ts(self._folder, name) < oldest_ts):
                expired.append(name)
                excess -= self._size(name)
        return expired

    def _size(self, name: str) -> int:
        """Bytes on disk, also where a file is there in both forms."""
        paths = (self._folder / name, self._folder / (name + COMPRESSED))
        return sum(path.stat().st_size for path in paths if path.exists())

    def _delete(self, name: str) -> None:
        if self._compression is not None and self._compression.name == name:
            self._drop_compression()
        for path in (self._folder / name, self._folder / (name + COMPRESSED)):
            path.unlink(missing_ok=True)

    def _drop_compression(self) -> None:
        if self._compression is not None:
            compression, self._compression = self._compression, None
            compression.abandon()


def write_whole(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError; what has been written up to then is the caller's to undo."""
    written = os.write(fd, data)
    if written < len(data):
        raise OSError(f"only {written} of {len(data)} bytes were written: is the disk full?")


def sync_folder(folder: Path) -> None:
    """Bring names that were made, changed or removed to the disk. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
