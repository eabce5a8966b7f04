"""Follows all journals of one run: those that are there, and those that appear."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from telemetry.events import AnyRecord, Stage
from telemetry.journal import SUFFIX, JournalOwner, JournalReader

_READ_LIMIT = 1_000_000
_MTIME_STEP_NS = 1_000_000_000
"""More than the step in which any file system counts a folder's time of change."""


class Entry(NamedTuple):
    """A record, who wrote it, and whether no earlier process has taken account of it."""

    owner: JournalOwner
    record: AnyRecord
    fresh: bool


class Tail:
    """Reads the records of a folder of journals, each from its oldest one on.

    After a restart everything that is still in the rings is read again, since open requests are put together
    from it; `next_seqs` says, by journal, from which record on it is news.
    """

    def __init__(self, folder: Path, next_seqs: Mapping[str, int]) -> None:
        self._folder = folder
        self._next_seqs = next_seqs
        self._readers: dict[str, JournalReader] = {}
        self._ended: dict[str, JournalOwner] = {}  # process gone, journal read to the end and closed
        self._dropped = 0
        self._discovered_ns = -1  # the folder's time of change at which every journal in it was known

    def poll(self) -> Iterator[Entry]:
        """All records there are now, the gateway's first (see `telemetry.assembly`)."""
        self._discover()
        readers = sorted(self._readers.values(), key=lambda reader: reader.owner.stage is not Stage.GATEWAY)
        for reader in readers:
            known = self._next_seqs.get(str(reader.path), 0)
            for record in reader.read(_READ_LIMIT):
                yield Entry(reader.owner, record, reader.next_seq > known)

    def owners(self) -> list[JournalOwner]:
        """The writers of all journals seen."""
        return [*self._ended.values(), *(reader.owner for reader in self._readers.values())]

    def positions(self) -> dict[str, tuple[int, int]]:
        """By journal that is still followed: (cursor, next_seq), to be saved."""
        return {path: (reader.cursor, reader.next_seq) for path, reader in self._readers.items()}

    def paths(self) -> list[str]:
        """All journals seen."""
        return [*self._ended, *self._readers]

    def take_dropped(self) -> int:
        """Records that were missed since the last call."""
        total = self._dropped + sum(reader.dropped for reader in self._readers.values())
        self._dropped = 0
        for reader in self._readers.values():
            reader.dropped = 0
        return total

    def close_ended(self) -> None:
        """Close the journals of processes that are gone. Call after `poll` has read them to the end."""
        for path, reader in list(self._readers.items()):
            if not process_alive(reader.owner.pid) and not reader.unread_bytes():
                self._ended[path] = reader.owner
                self._dropped += reader.dropped
                reader.close()
                del self._readers[path]

    def close(self) -> None:
        """Close all."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _discover(self) -> None:
        """Open the journals that have come. A folder that has not changed is not listed again."""
        changed_ns = self._folder.stat().st_mtime_ns
        if changed_ns == self._discovered_ns:
            return
        known = [self._open(path) for path in self._folder.glob("*" + SUFFIX)]
        if all(known) and time.time_ns() - changed_ns > _MTIME_STEP_NS:
            self._discovered_ns = changed_ns

    def _open(self, path: Path) -> bool:
        """Follow a journal; False while it cannot be read: being created right now, or damaged."""
        key = str(path)
        if key not in self._readers and key not in self._ended:
            try:
                self._readers[key] = JournalReader(path, known_seq=self._next_seqs.get(key, 0))
            except (OSError, ValueError):
                return False
        return True


def process_alive(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
