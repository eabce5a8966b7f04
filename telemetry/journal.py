"""A stage's journal: a memory-mapped ring of records that one process appends to and another tails.

An append is two copies into the page cache and no system call; what has been appended survives the death
of the writer. When the reader falls a whole ring behind, the oldest records are overwritten, and the
reader counts how many it missed. The promise covers the death of any process, not power loss.

Layout of the file::

    0       8          16     24     32             40            4096             4096 + capacity
    ├ magic ┼ capacity ┼ head ┼ tail ┼ owner length ┼ owner, JSON ┼ ring of frames ──┤

    frame = length u32 │ crc32 u32 │ sequence number u64 │ body, padded to 8 bytes

``head`` and ``tail`` are offsets that only grow; position in the ring is offset modulo capacity. Frames lie
between them and never wrap: where the rest of the ring is too short, a filler frame (length 0xFFFFFFFF)
sends the reader to the start.

    writer:  move tail past what will be overwritten → write the frame → move head
    reader:  read head → copy the frame at its cursor → check that tail has not passed the cursor

so a reader takes a frame only if nothing touched it in the meantime, and the checksum says so again. The
checksum covers body and sequence number, so that a gap in the numbers is the exact count of what was missed.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from telemetry.events import AnyRecord, Record, Stage

SUFFIX = ".journal"
DEFAULT_CAPACITY_BYTES = 8 << 20

_MAGIC = b"VJOURN01"
_RING_AT = 4096
_FRAME = struct.Struct("<IIQ")
_FILLER = 0xFFFFFFFF
_OWNER_AT = 40
_CAPACITY, _HEAD, _TAIL, _OWNER_BYTES = 1, 2, 3, 4
"""Words of the header. They are read and written through a view of 8-byte words, each in one piece:
`struct.pack_into` zeroes the place first, which another process can see."""


class JournalOwner(msgspec.Struct, frozen=True):
    """Who writes a journal."""

    stage: Stage
    replica: str  # "" for gateway, telemetry, dashboard, supervisor
    incarnation: int
    pid: int


def _frame_bytes(body_bytes: int) -> int:
    return (_FRAME.size + body_bytes + 7) & ~7


def _checksum(body: bytes, seq: int) -> int:
    return zlib.crc32(body, seq & 0xFFFFFFFF)


class JournalWriter:
    """Appends records. One writer per file; not safe for several threads without a lock of theirs."""

    def __init__(self, path: Path, owner: JournalOwner, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        """Create the file at `path`. Raises FileExistsError if there is one: a journal has one life."""
        if capacity_bytes % 8 or capacity_bytes < 4096:
            raise ValueError(f"capacity {capacity_bytes} must be a multiple of 8 and at least 4096 bytes")
        meta = msgspec.json.encode(owner)
        if len(meta) > _RING_AT - _OWNER_AT:
            raise ValueError(f"journal metadata is {len(meta)} bytes, more than fits")
        self.path = path
        self.dropped = 0
        self._capacity = capacity_bytes
        with path.open("x+b") as f:
            f.truncate(_RING_AT + capacity_bytes)
            self._map = mmap.mmap(f.fileno(), _RING_AT + capacity_bytes)
        self._words = memoryview(self._map)[:_RING_AT].cast("Q")
        self._head = self._tail = self._seq = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._words[_CAPACITY] = capacity_bytes
        self._words[_OWNER_BYTES] = len(meta)
        self._map[_OWNER_AT : _OWNER_AT + len(meta)] = meta
        self._map[:8] = _MAGIC

    def append(self, record: Record) -> None:
        """Append one record. One that cannot fit in a quarter of the ring is dropped and counted."""
        body = self._encoder.encode(record)
        size = _frame_bytes(len(body))
        if size > self._capacity // 4:
            self.dropped += 1
            self._seq += 1  # the reader sees the gap
            return
        position = self._head % self._capacity
        rest = self._capacity - position
        if rest < size:
            self._make_room(rest)
            if rest >= _FRAME.size:
                _FRAME.pack_into(self._map, _RING_AT + position, _FILLER, 0, self._seq)
            self._head += rest
            self._words[_HEAD] = self._head
            position = 0
        self._make_room(size)
        at = _RING_AT + position
        _FRAME.pack_into(self._map, at, len(body), _checksum(body, self._seq), self._seq)
        self._map[at + _FRAME.size : at + _FRAME.size + len(body)] = body
        self._seq += 1
        self._head += size
        self._words[_HEAD] = self._head

    def close(self) -> None:
        """Unmap; the file and its records stay."""
        self._words.release()
        self._map.close()

    def _make_room(self, size: int) -> None:
        limit = self._head + size - self._capacity
        if self._tail >= limit:
            return
        while self._tail < limit:
            self._tail += _stride(self._map, self._tail, self._capacity)
        self._words[_TAIL] = self._tail


def _stride(ring: mmap.mmap, offset: int, capacity: int) -> int:
    """Bytes from the frame (or filler) at `offset` to the next one."""
    position = offset % capacity
    rest = capacity - position
    if rest < _FRAME.size:
        return rest
    length = _FRAME.unpack_from(ring, _RING_AT + position)[0]
    return rest if length == _FILLER else _frame_bytes(length)


class JournalReader:
    """Tails one journal from a cursor. Several readers may read the same file."""

    def __init__(self, path: Path, cursor: int = 0, next_seq: int = 0, known_seq: int = 0) -> None:
        """Map the file. Raises FileNotFoundError, or ValueError when it is not (yet) a journal.

        `cursor` and `next_seq` are those of an earlier reader of the same file, to go on where it was. Records
        below `known_seq` have been read by somebody before: it is no loss when they are missing now.
        """
        with path.open("rb") as f:
            self._map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        try:
            self._words = memoryview(self._map)[:_RING_AT].cast("Q")
            self._capacity, self.owner = self._header()
        except (ValueError, TypeError, IndexError, msgspec.MsgspecError) as e:
            raise ValueError(f"{path} is not a journal: {e}") from e
        self.path = path
        self.cursor = cursor
        self.next_seq = next_seq
        self.dropped = 0  # records missed: overwritten before they were read, too large, or damaged
        self.damaged = 0  # places where bytes were not what the writer wrote
        self._known_seq = known_seq
        self._decoder = msgspec.msgpack.Decoder(AnyRecord)

    def read(self, limit: int = 10_000) -> Iterator[AnyRecord]:
        """Yield at most `limit` records, oldest first, up to the head as it is now.

        ``cursor`` and ``next_seq`` stand behind the last record taken, so a caller that stops early
        loses nothing.
        """
        head = self._head()
        taken = 0
        while self.cursor < head and taken < limit:
            record = self._take(head)
            if record is None:
                continue
            taken += 1
            yield record

    def unread_bytes(self) -> int:
        """How far the head is ahead of the cursor."""
        return max(0, self._words[_HEAD] - self.cursor)

    def close(self) -> None:
        """Unmap."""
        self._words.release()
        self._map.close()

    def _head(self) -> int:
        """Where the writer is; the cursor (so nothing is read) where that cannot be right."""
        head = self._words[_HEAD]
        if head <= self._words[_TAIL] + self._capacity:  # read after the head, so it can only be further
            return head
        self.damaged += 1
        return self.cursor

    def _header(self) -> tuple[int, JournalOwner]:
        if self._map[:8] != _MAGIC:
            raise ValueError("no magic number")
        capacity = self._words[_CAPACITY]
        if _RING_AT + capacity != len(self._map):
            raise ValueError(f"capacity {capacity} is not that of the file")
        length = self._words[_OWNER_BYTES]
        return capacity, msgspec.json.decode(self._map[_OWNER_AT : _OWNER_AT + length], type=JournalOwner)

    def _take(self, head: int) -> AnyRecord | None:
        """Take the frame at the cursor and move on; None for a filler, an overwritten or a damaged frame."""
        if self._overrun():
            return None
        rest = self._capacity - self.cursor % self._capacity
        if rest < _FRAME.size:
            self.cursor += rest
            return None
        length, crc, seq, body = self._copy_frame(self.cursor)
        if self._overrun():
            return None
        if length == _FILLER and self.cursor + rest <= head:
            self.cursor += rest
            return None
        if body is None or _checksum(body, seq) != crc or seq < self.next_seq:
            self._skip_damage(length, head)
            return None
        self.cursor += _frame_bytes(length)
        self.dropped += max(0, seq - max(self.next_seq, self._known_seq))
        self.next_seq = seq + 1
        return self._decode(body)

    def _copy_frame(self, offset: int) -> tuple[int, int, int, bytes | None]:
        """Length, checksum, sequence number and body; no body where the length cannot be right."""
        position = offset % self._capacity
        length, crc, seq = _FRAME.unpack_from(self._map, _RING_AT + position)
        at = _RING_AT + position + _FRAME.size
        fits = position + _frame_bytes(length) <= self._capacity
        return length, crc, seq, self._map[at : at + length] if fits else None

    def _decode(self, body: bytes) -> AnyRecord | None:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError:
            self.damaged += 1
            self.dropped += 1
            return None

    def _skip_damage(self, length: int, head: int) -> None:
        """Step over a damaged frame if a sound one follows it; else its length is damaged too: go to the head.

        How many records were lost is seen from the next sound frame's sequence number.
        """
        self.damaged += 1
        following = self.cursor + _frame_bytes(length)
        self.cursor = following if self._sound(following, head) else head

    def _sound(self, offset: int, head: int) -> bool:
        """Whether a frame, a filler, or the end of all is at `offset`."""
        if offset >= head:
            return offset == head
        if self._capacity - offset % self._capacity < _FRAME.size:
            return True
        length, crc, seq, body = self._copy_frame(offset)
        return length == _FILLER or (body is not None and _checksum(body, seq) == crc)

    def _overrun(self) -> bool:
        """Whether the writer has overwritten the cursor; if so, jump to the oldest whole frame."""
        tail = self._words[_TAIL]
        if self.cursor >= tail:
            return False
        self.cursor = tail
        return True
