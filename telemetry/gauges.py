"""One memory-mapped page of gauges and heartbeats per process.

The owner stores 64-bit integers in fixed slots; anybody on the host maps the file and reads them without
asking. The page outlives its process, so the last state of a dead stage can still be seen.

A page starts with a header (magic, length of the metadata, metadata as JSON), the slots follow at a fixed
offset, eight bytes each, in the host's byte order. They are read and written through a view of 8-byte words,
each in one piece: `struct.pack_into` zeroes the place first, which another process can see.
"""

from __future__ import annotations

import mmap
import sys
import time
from enum import IntEnum
from pathlib import Path

import msgspec

from telemetry.events import Stage

PAGE_BYTES = 4096
_MAGIC = b"VGAUGE01"
_SLOTS_AT = 1024
SUFFIX = ".gauges"


class Gauge(IntEnum):
    """Slots of a page. A process fills those that it owns; the others stay 0."""

    HEARTBEAT_NS = 0  # monotonic time of the last beat
    READY = 1  # 1 once the stage can serve
    # Messages: the depth of the queue in front of a stage is everybody's SENT_… minus its own TAKEN.
    TAKEN = 2
    SENT_GATEWAY = 3
    SENT_TOKENIZER = 4
    SENT_SCHEDULER = 5
    SENT_RUNNER = 6
    SENT_DETOKENIZER = 7
    BUSY_NS = 8  # time spent working since the start
    JOURNAL_DROPPED = 9  # records too large to be journaled
    # scheduler
    RUNNING = 10
    WAITING_KV_BLOCKS = 11
    WAITING_TOKEN_BUDGET = 12
    WAITING_MAX_RUNNING = 13
    WAITING_PREEMPTED = 14
    BLOCKS_FREE = 15
    BLOCKS_ACTIVE = 16
    BLOCKS_CACHED = 17
    BLOCKS_TOTAL = 18
    LAST_STEP_ID = 19
    LAST_STEP_NS = 20  # when the last step's result was taken
    # runner
    STEP_STARTED_NS = 21  # 0 between steps
    STEP_PREDICTED_NS = 22  # predicted duration of the running step
    # gateway
    REQUESTS_IN_FLIGHT = 23
    TOKENS_IN_FLIGHT = 24
    # telemetry
    LAG_NS = 25
    EXPORT_DEGRADED = 26  # since when spans cannot be delivered; 0: they can
    STORE_DEGRADED = 27  # since when the store cannot be written; 0: it can
    PENDING_SINCE_NS = 28  # scheduler: since when there has been unfinished work without a step's result; 0 idle
    TOKEN_LOG_DEGRADED = 29  # telemetry: since when the token log cannot be written; 0: it can


DEGRADED = {
    Gauge.STORE_DEGRADED: "the store cannot be written",
    Gauge.TOKEN_LOG_DEGRADED: "the token log cannot be written",
    Gauge.EXPORT_DEGRADED: "spans cannot be delivered",
}
"""What telemetry can be in trouble with, in words. The engine serves all the same."""


SENT_TO = {
    Stage.GATEWAY: Gauge.SENT_GATEWAY,
    Stage.TOKENIZER: Gauge.SENT_TOKENIZER,
    Stage.SCHEDULER: Gauge.SENT_SCHEDULER,
    Stage.RUNNER: Gauge.SENT_RUNNER,
    Stage.DETOKENIZER: Gauge.SENT_DETOKENIZER,
}


class PageOwner(msgspec.Struct, frozen=True):
    """Who writes a page. ``peer`` names the other side where a process keeps one page per link."""

    stage: Stage
    replica: str  # "" for gateway, telemetry, dashboard, supervisor
    incarnation: int
    pid: int
    peer: str = ""


class GaugePage:
    """A process's own page. Methods are cheap enough for the hot path (well under a microsecond)."""

    def __init__(self, path: Path, owner: PageOwner) -> None:
        """Create (or replace) the file at `path`."""
        meta = msgspec.json.encode(owner)
        if len(meta) > _SLOTS_AT - 16:
            raise ValueError(f"gauge page metadata is {len(meta)} bytes, more than fits")
        self.path = path
        path.unlink(missing_ok=True)  # whoever has the old file mapped keeps it whole
        with path.open("x+b") as f:
            f.truncate(PAGE_BYTES)
            self._map = mmap.mmap(f.fileno(), PAGE_BYTES)
        self._slots = memoryview(self._map)[_SLOTS_AT:].cast("q")
        self._map[8:16] = len(meta).to_bytes(8, sys.byteorder)
        self._map[16 : 16 + len(meta)] = meta
        self._map[:8] = _MAGIC

    def set(self, gauge: Gauge, value: int) -> None:
        """Store `value`."""
        self._slots[gauge] = value

    def get(self, gauge: Gauge) -> int:
        """Read back a slot."""
        return self._slots[gauge]

    def add(self, gauge: Gauge, amount: int = 1) -> None:
        """Add to a slot. Only the owner may (there is no lock)."""
        self.set(gauge, self.get(gauge) + amount)

    def beat(self) -> None:
        """Say that the process is alive now."""
        self.set(Gauge.HEARTBEAT_NS, time.monotonic_ns())

    def close(self) -> None:
        """Unmap; the file stays."""
        self._slots.release()
        self._map.close()


class GaugeReader:
    """Somebody else's page."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises FileNotFoundError, or ValueError when it is not (yet) a page."""
        with path.open("rb") as f:
            self._map = mmap.mmap(f.fileno(), PAGE_BYTES, prot=mmap.PROT_READ)
        if self._map[:8] != _MAGIC:
            self._map.close()
            raise ValueError(f"{path} is not a gauge page")
        self._slots = memoryview(self._map)[_SLOTS_AT:].cast("q")
        length = int.from_bytes(self._map[8:16], sys.byteorder)
        self.owner = msgspec.json.decode(self._map[16 : 16 + length], type=PageOwner)

    def get(self, gauge: Gauge) -> int:
        """Read a slot."""
        return self._slots[gauge]

    def heartbeat_age_s(self) -> float:
        """Seconds since the owner's last beat."""
        return (time.monotonic_ns() - self.get(Gauge.HEARTBEAT_NS)) / 1e9

    def close(self) -> None:
        """Unmap."""
        self._slots.release()
        self._map.close()


class GaugeBoard:
    """All pages of one run, kept up to date by looking at the folder: a new file is a new process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[Path, tuple[int, GaugeReader]] = {}  # path → (inode, reader)

    def pages(self) -> list[GaugeReader]:
        """Every page there is now."""
        found: dict[Path, int] = {}
        for path in self._folder.glob("*" + SUFFIX):
            try:
                found[path] = path.stat().st_ino
            except FileNotFoundError:
                continue
        for path, (inode, reader) in list(self._readers.items()):
            if found.get(path) != inode:
                reader.close()
                del self._readers[path]
        for path, inode in found.items():
            if path not in self._readers:
                try:
                    self._readers[path] = (inode, GaugeReader(path))
                except (FileNotFoundError, ValueError):
                    continue
        return [reader for _, reader in self._readers.values()]

    def close(self) -> None:
        """Unmap all."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()
