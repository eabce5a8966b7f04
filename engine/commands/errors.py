"""How a command fails: one line on standard error, and an exit status."""

from __future__ import annotations

import click


class CommandFailedError(click.ClickException):
    """The command was understood but could not be carried out: exit status 1."""


class WrongSettingError(click.ClickException):
    """A setting is wrong: exit status 2, like a wrong flag."""

    exit_code = 2
