"""Telling the operator how a download or a conversion is getting on.

A bar or a spinner where standard error is a terminal, one quiet line per job where it is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

SetDone = Callable[[int], None]


class Progress(Protocol):
    """Where long jobs report. Both methods are context managers around the job."""

    def bytes_of(self, text: str, total_bytes: int) -> AbstractContextManager[SetDone]:
        """A job of known size; call the yielded function with the bytes done so far."""
        ...

    def working(self, text: str) -> AbstractContextManager[None]:
        """A job of unknown length."""
        ...


class PlainProgress:
    """One line per job, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def bytes_of(self, text: str, total_bytes: int) -> Iterator[SetDone]:
        """Write the line, with the size."""
        self._write(f"{text} ({total_bytes / 1e6:.0f} MB)")
        yield lambda done: None

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Write the line."""
        self._write(text)
        yield

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class TerminalProgress:
    """A rich progress bar, or a spinner, on standard error."""

    @contextmanager
    def bytes_of(self, text: str, total_bytes: int) -> Iterator[SetDone]:
        """Show a bar with speed and time left."""
        from rich.console import Console  # costs more time to import than a start with a cached model takes
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Bars(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(text, total=total_bytes)
            yield lambda done: bars.update(task, completed=done)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner."""
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield


def progress_on_stderr() -> Progress:
    """The kind that suits standard error."""
    return TerminalProgress() if sys.stderr.isatty() else PlainProgress(sys.stderr)
