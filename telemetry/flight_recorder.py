"""What the journals on disk tell, without any server: the last steps, and the requests that were not finished.

``python -m telemetry.flight_recorder FOLDER steps|requests --format …`` writes to standard output. FOLDER is a
crash dump, a run folder, or a data folder (then: its latest run). Journals are only read; those of a running
system may be looked at too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from engine.run_folder import RunFolder
from telemetry.assembly import Assembly
from telemetry.chrome_trace import chrome_trace
from telemetry.events import RequestReceived, StepStarted
from telemetry.facts import Scope, StepFacts
from telemetry.journal import SUFFIX
from telemetry.open_requests import open_request_rows
from telemetry.queries import Row, with_plan
from telemetry.rows import step_row
from telemetry.run_reader import READ_ERRORS, made_ns
from telemetry.tabular import json_lines
from telemetry.tail import Tail

_MAX_OPEN = 1_000_000  # no request is shed: the rings bound how many there are


class NoJournalsError(Exception):
    """The folder holds no journals; the message is one clear line."""


class FlightRecorder:
    """The records that one folder's journals hold, put together. Memory: what the rings hold."""

    def __init__(self, folder: Path) -> None:
        """Read all. Raises NoJournalsError."""
        journals = find_journals(folder)
        self._dropped = 0  # records that could not be read or made no sense
        self._assembly = Assembly(_run_id(journals), _MAX_OPEN)
        self._steps: list[StepFacts] = []
        self._begun: dict[Scope, StepStarted] = {}  # the last step that each runner began
        self._last_ns = 0
        # Without a request's record, whose wall time is known, the clock is taken to be that of this host's last start.
        self._wall_offset_ns = time.time_ns() - time.monotonic_ns()
        self._read(Tail(journals, {}))

    def steps(self, since: float | None = None, until: float | None = None) -> list[Row]:
        """The steps planned in a window (seconds since the epoch), in order of time, as `Reader.steps` has them."""
        rows = (with_plan(step_row(step, self._wall_offset_ns)) for step in self._steps)
        kept = [row for row in rows if _within(row["planned_ts"], since, until)]
        return sorted(kept, key=lambda row: row["planned_ts"])

    def requests(self) -> list[Row]:
        """A row for each request that was not finished, the oldest first; see `telemetry.open_requests`."""
        return open_request_rows(self._assembly.open_tracks(), self._last_ns, self._wall_offset_ns)

    def notes(self) -> list[str]:
        """What an operator should know besides: steps that were not finished, records that could not be read."""
        recorded = {(step.scope, step.record.step_id) for step in self._steps}
        found = [
            f"{scope.replica} #{scope.incarnation} was in step {step.step_id}: {step.num_rows} rows, "
            f"{step.num_tokens} tokens, for {(self._last_ns - step.at_ns) / 1e6:.1f} ms at the last record"
            for scope, step in self._begun.items()
            if (scope, step.step_id) not in recorded
        ]
        return found + [f"{self._dropped} records could not be read"] * bool(self._dropped)

    def _read(self, tail: Tail) -> None:
        for owner, record, _ in tail.poll():
            try:
                self._assembly.feed(owner, record)
            except READ_ERRORS:
                self._dropped += 1
            if isinstance(record, RequestReceived):
                self._wall_offset_ns = record.wall_ns - record.at_ns
            elif isinstance(record, StepStarted):
                self._begun[Scope(owner.replica, owner.incarnation)] = record
            self._steps.extend(self._assembly.take_steps())
            self._last_ns = max(self._last_ns, made_ns(record))
        self._dropped += tail.take_dropped()
        tail.close()


def find_journals(folder: Path) -> Path:
    """Where the journals are that `folder` means. Raises NoJournalsError."""
    runs = sorted((folder / "run").glob("*"), reverse=True)
    for place in (folder, RunFolder(folder).journals, *(RunFolder(run).journals for run in runs)):
        if any(place.glob("*" + SUFFIX)):
            return place
    raise NoJournalsError(f"{folder} holds no journals: name a folder in crash/ or run/, or the data folder")


def _run_id(journals: Path) -> str:
    for place in (journals, journals.parent):
        try:
            return RunFolder(place).info().run_id
        except (OSError, msgspec.MsgspecError):
            continue
    return journals.parent.name


def _within(at: float, since: float | None, until: float | None) -> bool:
    return (since is None or at >= since) and (until is None or at < until)


def _lines(arguments: argparse.Namespace) -> Iterable[bytes]:
    recorder = FlightRecorder(arguments.folder)
    for note in recorder.notes():
        print(note, file=sys.stderr)
    if arguments.what == "requests":
        return json_lines(recorder.requests())
    steps = recorder.steps(arguments.since, arguments.until)
    return chrome_trace(steps) if arguments.format == "chrome" else json_lines(steps)


def _write(pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m telemetry.flight_recorder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("steps", "requests"))
    parser.add_argument("--format", choices=("chrome", "jsonl"), default="jsonl")
    parser.add_argument("--since", type=float)
    parser.add_argument("--until", type=float)
    try:
        _write(_lines(parser.parse_args()))
    except NoJournalsError as e:
        print(e, file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
