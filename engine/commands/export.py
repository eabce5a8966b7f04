"""``vitrine export``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from engine.commands.dashboard_client import stream
from engine.commands.errors import CommandFailedError
from engine.commands.export_tables import print_requests, print_steps, rows_of
from engine.commands.moments import Moment
from engine.commands.recording import read_recording
from engine.commands.urls import server_options

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FROM_HELP = "Read the journals of a crash dump, a run folder or a data folder; no server is asked."


@click.group("export")
def command() -> None:
    """Write out what was recorded: from a running system, or from what a dead one left on disk."""


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the window, ``--output`` and where the dashboard is; the command returns pieces, which are written."""

    @click.option("--since", type=Moment(), help="Only from then on: 10m (ago), epoch seconds, or ISO 8601.")
    @click.option("--until", type=Moment(), help="Only what was before then.")
    @click.option("-o", "--output", type=click.Path(dir_okay=False), default="-", help="File to write.")
    @functools.wraps(function)
    def with_output(*, output: str, **rest: Any) -> None:
        pieces: Iterator[bytes] | None = function(**rest)
        if pieces is not None:
            _write(pieces, output)

    return server_options("dashboard_port", "operator_token", "The dashboard.")(with_output)


def _write(pieces: Iterator[bytes], output: str) -> None:
    """Nothing is opened before the first piece is there, so that a refusal leaves an older file alone."""
    first = next(pieces, b"")
    try:
        with click.open_file(output, "wb") as file:
            file.write(first)
            for piece in pieces:
                file.write(piece)
    except BrokenPipeError:
        raise
    except OSError as e:
        raise CommandFailedError(f"{output} cannot be written: {e.strerror}") from e


@command.command("steps")
@_common
@click.option("--format", "form", type=click.Choice(["chrome", "jsonl"]), default="chrome", show_default=True)
@click.option("--table", is_flag=True, help="Show the latest steps in the terminal instead.")
@click.option("--last", type=click.IntRange(1), default=40, show_default=True, help="Steps that --table shows.")
@click.option("--from", "folder", type=_FOLDER, help=_FROM_HELP)
def steps(
    url: str, operator_token: str, folder: Path | None, form: str, table: bool, last: int, **window: float | None
) -> Iterator[bytes] | None:
    """Engine steps as a timeline: Chrome trace format, for ui.perfetto.dev or chrome://tracing."""
    form = "jsonl" if table else form
    if folder is None:
        pieces = stream(url, "/api/export/steps", operator_token, {**window, "format": form})
    else:
        pieces = read_recording(folder, "steps", format=form, **window)
    if not table:
        return pieces
    print_steps(rows_of(pieces), last)
    return None


@command.command("requests")
@_common
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@click.option("--table", is_flag=True, help="With --from: show them in the terminal instead.")
@click.option("--from", "folder", type=_FOLDER, help=f"{_FROM_HELP} Only requests that were not finished.")
def requests(
    url: str, operator_token: str, folder: Path | None, form: str, table: bool, **window: float | None
) -> Iterator[bytes] | None:
    """Requests with their timings; with --from those that were not finished, and where each of them was."""
    if folder is None:
        if table:
            raise click.UsageError("--table needs --from; see vitrine requests for the list of a running system")
        return stream(url, "/api/export/requests", operator_token, {**window, "format": form})
    if form != "jsonl" or any(value is not None for value in window.values()):
        raise click.UsageError("--from knows neither --format csv nor --since and --until")
    pieces = read_recording(folder, "requests")
    if not table:
        return pieces
    print_requests(rows_of(pieces))
    return None


@command.command("tokens")
@_common
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
def tokens(url: str, operator_token: str, form: str, **window: float | None) -> Iterator[bytes]:
    """The token log: every sequence's ids, with their times and steps."""
    return stream(url, "/api/export/tokens", operator_token, {**window, "format": form})


@command.command("traces")
@_common
def traces(url: str, operator_token: str, **window: float | None) -> Iterator[bytes]:
    """Finished requests as spans: OTLP JSON, a line per request (OpenTelemetry's file format)."""
    return stream(url, "/api/export/traces", operator_token, window)
