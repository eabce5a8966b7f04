"""Tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from engine.commands.plain import plain

_PIPE_WIDTH = 200


def console() -> Console:
    """Standard output; wide where it is no terminal, so that nothing is cut for the next program."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()) -> None:
    """A table; cells are plain text, never markup or control characters. Columns in `right` are numbers.

    Without any column names there is no header.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row))
    show(table)


def show(content: RenderableType, on: Console | None = None) -> None:
    """Print without the blanks that a renderable fills its lines up with, and without blank lines at its ends."""
    on = on or console()
    lines = [_without_trailing_blanks(line) for line in on.render_lines(content, pad=False)]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    on.print(Segments([segment for line in lines for segment in (*line, Segment.line())]), end="")


def _without_trailing_blanks(line: Sequence[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def seconds(value: float | None) -> str:
    """A duration to three digits: ``412 µs``, ``18.3 ms``, ``2.41 s``; ``–`` for none."""
    if value is None:
        return "–"
    scale, unit = (1, "s") if abs(value) >= 1 else (1e3, "ms") if abs(value) >= 1e-3 else (1e6, "µs")
    scaled = value * scale
    decimals = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    return f"{scaled:.{decimals}f} {unit}"


def clock(timestamp: float) -> str:
    """Local time of day of a wall-clock timestamp, with the date when that is not today's."""
    then = datetime.fromtimestamp(timestamp)
    return then.strftime("%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")


def size(count: int) -> str:
    """Bytes in decimal units: ``98.4 MB``."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
