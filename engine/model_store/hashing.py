"""SHA-256 of files, remembered: large weights are read once, not at every start."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    size_bytes: int
    mtime_ns: int
    sha256: str


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


class HashCache:
    """Digests by path, valid while the file's size and time of change stay the same.

    Two processes that write at once may lose each other's entries; they are computed again then.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries = self._read()

    def sha256(self, path: Path) -> str:
        """The digest of `path`. Raises OSError."""
        entry = self._find(path)
        if entry is None:
            found = path.stat()
            entry = _Entry(found.st_size, found.st_mtime_ns, sha256_of(path))
            self._entries[str(path.resolve())] = entry
            self._write()
        return entry.sha256

    def knows(self, path: Path) -> bool:
        """Whether `sha256` will answer without reading the file."""
        return self._find(path) is not None

    def sha256_of_all(self, paths: list[Path]) -> str:
        """One digest for several files: that of the only one, else that of a list of names and digests."""
        if len(paths) == 1:
            return self.sha256(paths[0])
        lines = "".join(f"{self.sha256(path)}  {path.name}\n" for path in sorted(paths))
        return hashlib.sha256(lines.encode()).hexdigest()

    def _find(self, path: Path) -> _Entry | None:
        entry, found = self._entries.get(str(path.resolve())), path.stat()
        unchanged = entry is not None and (entry.size_bytes, entry.mtime_ns) == (found.st_size, found.st_mtime_ns)
        return entry if unchanged else None

    def _read(self) -> dict[str, _Entry]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Entry])
        except (OSError, msgspec.MsgspecError):
            return {}

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(self._entries))
        partial.replace(self._file)
