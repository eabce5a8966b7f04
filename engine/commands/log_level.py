"""``vitrine log-level``."""

from __future__ import annotations

import click

from engine.commands.dashboard_client import dashboard_options, put
from engine.commands.output import print_json
from telemetry.events import Stage


@click.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--stage", type=click.Choice([str(stage) for stage in Stage]), help="Only processes of this stage.")
@dashboard_options
def command(level: str, stage: str | None, url: str, operator_token: str, as_json: bool) -> None:
    """Change what the processes log, while they run; until the next start --log-level no longer counts."""
    answer = put(url, "/api/log-level", operator_token, {"level": level, "stage": stage})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{stage or 'all processes'}: {level}")
