"""The last hour's samples, kept in memory and brought up to date by reading only what is new."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from dashboard.store import Store

KEPT_S = 3600
_REREAD_S = 3
"""Seconds that are read again, since telemetry may still have been writing them."""

Sample = tuple[int, dict[str, Any]]
"""(second since the epoch, values by the keys of `telemetry.samples`)"""


class History:
    """Samples of the whole system. Safe for several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()

    def since(self, ts: float) -> list[Sample]:
        """Samples from `ts` on, oldest first. Raises StoreAwayError."""
        with self._lock:
            self._refresh(time.time())
            return [sample for sample in self._samples if sample[0] >= ts]

    def _refresh(self, now: float) -> None:
        start = self._samples[-1][0] - _REREAD_S if self._samples else now - KEPT_S
        with self._store.reading() as reader:
            rows = reader.samples(start, now + 1)
        if not rows:
            return
        while self._samples and self._samples[-1][0] >= rows[0]["ts"]:
            self._samples.pop()
        self._samples.extend((row["ts"], row["values"]) for row in rows)
        while self._samples[0][0] < now - KEPT_S:
            self._samples.popleft()
