"""The files of the token log, as their readers see them: plain or compressed, they have the same names and offsets.

    tokens-20260730-141500.jsonl           the newest is being written, older ones are closed
    tokens-20260730-141500.jsonl.gz        the same file compressed (see `telemetry.gzip_blocks`)
    tokens-20260730-141500.jsonl.gz.part   being compressed, no concern of readers

A file is called by its plain name throughout. There is always one of plain and compressed: the compressed one gets
its name when it is complete, and only then the plain one is deleted.
"""

from __future__ import annotations

import bisect
import calendar
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from telemetry import gzip_blocks

SUFFIX = ".jsonl"
COMPRESSED = ".gz"
PART = ".part"
BLOCK_BYTES = 256 << 10
"""Compressing so much takes about 5 ms, finding a line in it 1 ms."""

_NAME = "tokens-%Y%m%d-%H%M%S" + SUFFIX


def name_at(ts: float) -> str:
    """Name of a file that begins at this time (seconds since the epoch)."""
    return time.strftime(_NAME, time.gmtime(ts))


def begun_ts(name: str) -> float | None:
    """When a file began, by its name; None for names of another kind."""
    try:
        return calendar.timegm(time.strptime(name, _NAME))
    except ValueError:
        return None


def plain_names(folder: Path) -> list[str]:
    """The files that are not compressed, oldest first."""
    return sorted(path.name for path in folder.glob("*" + SUFFIX))


def compressed_names(folder: Path) -> list[str]:
    """The files that are compressed, oldest first, by their plain names."""
    return sorted(path.name.removesuffix(COMPRESSED) for path in folder.glob("*" + SUFFIX + COMPRESSED))


def all_names(folder: Path) -> list[str]:
    """All files, oldest first."""
    return sorted({*plain_names(folder), *compressed_names(folder)})


class Blocks(Protocol):
    """A file as a row of blocks. Lines may go from one into the next."""

    @property
    def starts(self) -> list[int]:
        """Where each block begins, in bytes of the plain file."""

    def read(self, index: int) -> bytes:
        """One block's bytes of the plain file. Raises OSError, and ValueError when it is damaged."""


class PlainBlocks:
    """Blocks of a plain file, as long as it is now."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.starts = list(range(0, os.fstat(fd).st_size, BLOCK_BYTES))

    def read(self, index: int) -> bytes:
        """See `Blocks`."""
        return os.pread(self._fd, BLOCK_BYTES, self.starts[index])


class CompressedBlocks:
    """Blocks of a compressed file."""

    def __init__(self, fd: int) -> None:
        """Raises ValueError when it is none."""
        self._fd = fd
        self._members = gzip_blocks.members(fd)
        self.starts = [member.start for member in self._members]

    def read(self, index: int) -> bytes:
        """See `Blocks`."""
        member = self._members[index]
        return gzip_blocks.unpack(os.pread(self._fd, member.length, member.offset))


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[Blocks]:
    """A file's blocks, whether it is compressed or not. Raises OSError when it is gone, ValueError when damaged."""
    kind: type[PlainBlocks] | type[CompressedBlocks] = PlainBlocks
    try:
        fd = os.open(folder / name, os.O_RDONLY)
    except FileNotFoundError:
        fd, kind = os.open(folder / (name + COMPRESSED), os.O_RDONLY), CompressedBlocks
    try:
        yield kind(fd)
    finally:
        os.close(fd)


def last_write_ts(folder: Path, name: str) -> float:
    """When the last line was written. Raises OSError when the file is gone."""
    path = folder / name
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return path.with_name(name + COMPRESSED).stat().st_mtime


def line_at(blocks: Blocks, offset: int) -> bytes | None:
    """The whole line that begins at `offset`, or None."""
    index = bisect.bisect_right(blocks.starts, offset) - 1
    if index < 0:
        return None
    data = blocks.read(index)[offset - blocks.starts[index] :]
    while b"\n" not in data:
        index += 1
        if index == len(blocks.starts):
            return None
        data += blocks.read(index)
    return data[: data.index(b"\n") + 1]


def lines_backwards(blocks: Blocks, end: int | None = None) -> Iterator[list[tuple[int, bytes]]]:
    """Offset and bytes of the whole lines (before `end`), block by block, the last one first.

        |  block 1  |  block 2  |      one line ends in block 1, one goes over both,
        ....\n------- ----\n......      one begins in block 2

    A line that goes over two blocks comes with the earlier one. Holds a block and a line in memory.
    """
    count = len(blocks.starts) if end is None else bisect.bisect_left(blocks.starts, end)
    rest = b""  # of a later block: the end of a line that begins in an earlier one
    for index in reversed(range(count)):
        start = blocks.starts[index]
        data = blocks.read(index)
        data = (data if end is None else data[: end - start]) + rest
        cut = data.find(b"\n") + 1 if index else 0
        rest = data[:cut] if cut or not index else data
        yield _lines(data[cut:], start + cut)[::-1] if cut or not index else []


def _lines(data: bytes, offset: int) -> list[tuple[int, bytes]]:
    """The whole lines of `data`; one that is still being written is none."""
    found = []
    for line in data.split(b"\n")[:-1]:
        found.append((offset, line))
        offset += len(line) + 1
    return found
