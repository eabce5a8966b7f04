"""Asking the flight recorder: journals on disk, read by a process of telemetry's, without any server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from engine.commands.errors import CommandFailedError
from engine.commands.plain import plain

_READER = "telemetry.flight_recorder"
_PIECE_BYTES = 1 << 16


def read_recording(folder: Path, what: str, **options: str | float | None) -> Iterator[bytes]:
    """What the reader writes about `folder`, piece by piece. Raises CommandFailedError."""
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    command = [sys.executable, "-P", "-m", _READER, str(folder), what, *flags]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        while piece := process.stdout.read(_PIECE_BYTES):
            yield piece
        complaint = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise CommandFailedError(complaint.rpartition("\n")[2] or f"{_READER} ended with {process.returncode}")
    for note in complaint.splitlines():
        click.echo(f"vitrine: {plain(note)}", err=True)
