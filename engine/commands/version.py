"""``vitrine version``."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from engine import __version__


@click.command("version")
def command() -> None:
    """Show versions of Vitrine, Python and PyTorch: what to put into a bug report."""
    click.echo(f"vitrine {__version__}")
    click.echo(f"python {platform.python_version()}, torch {metadata.version('torch')}, {platform.platform()}")
