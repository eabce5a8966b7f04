"""Beats for a main thread that is busy inside torch."""

from __future__ import annotations

import threading
from types import TracebackType

from engine.process import BEAT_INTERVAL_S
from telemetry.gauges import GaugePage


class Heartbeat:
    """Context manager: while entered, a helper thread beats, so that a long step does not look like a dead process.

    torch releases the GIL while it computes. A process that is stopped or stuck with the GIL held does not beat; a
    step that never ends is found by its age instead. The thread sleeps on between steps, which makes entering free.
    """

    def __init__(self, gauges: GaugePage, interval_s: float = BEAT_INTERVAL_S) -> None:
        """Start the thread."""
        self._gauges = gauges
        self._interval_s = interval_s
        self._busy = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._busy = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._busy = False

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            if self._busy:
                self._gauges.beat()
