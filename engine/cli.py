"""The command line, ``vitrine``. Each command's module is imported when the command runs, not before."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from engine import __version__
from engine.commands.plain import plain

_COMMANDS = {
    "serve": "Run the whole system: API, engine, telemetry and dashboard.",
    "config": "Show every setting, its value and where it came from.",
    "model": "List, fetch and describe models.",
    "requests": "List requests, or show where one spent its time.",
    "export": "Write out requests, tokens, traces or the step timeline, also after a crash.",
    "replicas": "List the replicas of the model.",
    "log-level": "Change what the processes log, while they run.",
    "bench": "Put load on any OpenAI-compatible server and measure it.",
    "version": "Show versions.",
}
"""Each is a module of its own name (with _ for -) in `engine.commands`, with a click command called ``command``."""


class _LazyGroup(click.Group):
    """Knows its commands' names and one-line descriptions without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order in which a newcomer needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"engine.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="%(prog)s %(version)s", help="Show the version and exit.")
def cli() -> None:
    """Vitrine: an LLM inference engine you can see into."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit status: 0, 1 when it failed, 2 when it was called wrongly."""
    try:
        status = cli.main(list(arguments), prog_name="vitrine", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
        return 0
    except click.ClickException as e:
        click.echo(f"vitrine: {_one_line(e)}", err=True)
        return e.exit_code
    except click.Abort:
        return 130
    except BrokenPipeError:  # "vitrine requests | head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status if isinstance(status, int) else 0


def _one_line(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message = f"{message.rstrip('.')}; see {error.ctx.command_path} --help"
    return plain(message)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
