"""CPU and memory of the engine's processes, as the operating system counts them."""

from __future__ import annotations

import msgspec
import psutil


class Usage(msgspec.Struct, frozen=True):
    """``cpu`` in cores (1.0 is one core), None until a process has been seen twice."""

    cpu: float | None
    rss_bytes: int


class UsageMeter:
    """Keeps what is needed to tell CPU since the last look. One thread at a time."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def look(self, pids: set[int]) -> dict[int, Usage]:
        """Usage of each process that is alive."""
        self._known = {pid: process for pid, process in self._known.items() if pid in pids}
        found = {pid: self._usage(pid) for pid in pids}
        return {pid: usage for pid, usage in found.items() if usage is not None}

    def _usage(self, pid: int) -> Usage | None:
        try:
            seen_before = pid in self._known
            process = self._known.setdefault(pid, psutil.Process(pid))
            with process.oneshot():
                cpu = process.cpu_percent(None) / 100
                return Usage(cpu if seen_before else None, process.memory_info().rss)
        except psutil.Error:
            self._known.pop(pid, None)
            return None
