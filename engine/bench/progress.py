"""A progress bar with live rates, on stderr and only for people."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.bench.results import RequestResult
from engine.bench.workload import Workload


class LiveProgress:
    """One bar per workload. Counts events as they come, so that long answers move it too."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[live]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=5,
        )

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, workload: Workload, title: str = "") -> None:
        """A workload starts; its warm-up is not counted in the bar, but in the rate."""
        self._task = self._progress.add_task(title or workload.name, total=workload.requests, live="warming up")
        self._started = time.perf_counter()
        self._events = self._failed = 0
        self._ttft_s = 0.0

    def on_events(self, count: int) -> None:
        """`count` events with text have arrived."""
        self._events += count
        self._show()

    def on_result(self, result: RequestResult) -> None:
        """A request has ended."""
        self._failed += bool(result.error)
        self._ttft_s = result.ttft_s or self._ttft_s
        self._progress.advance(self._task)
        self._show()

    def _show(self) -> None:
        rate = self._events / (time.perf_counter() - self._started)
        live = f"{rate:,.0f} tok/s  last TTFT {1e3 * self._ttft_s:,.0f} ms"
        self._progress.update(self._task, live=f"{live}  {self._failed} failed" if self._failed else live)
