"""Since when which sink has been failing. Told in the gauge page, so that ``/health`` and the dashboard know."""

from __future__ import annotations

import time

from telemetry.gauges import DEGRADED, Gauge, GaugePage


class Degraded:
    """One entry per sink of `DEGRADED`; a sink that works has none."""

    def __init__(self) -> None:
        self._since_ns: dict[Gauge, int] = {}

    def note(self, sink: Gauge, failing: bool) -> None:
        """The sink's last attempt has failed, or gone well."""
        if failing:
            self._since_ns.setdefault(sink, time.monotonic_ns())
        else:
            self._since_ns.pop(sink, None)

    def show(self, page: GaugePage) -> None:
        """Write all of it into the page."""
        for sink in DEGRADED:
            page.set(sink, self._since_ns.get(sink, 0))
