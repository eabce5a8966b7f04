"""``vitrine serve``."""

from __future__ import annotations

import click

from engine.commands.settings import SectionedCommand, read, with_settings


@click.command("serve", cls=SectionedCommand)
@with_settings
def command(config_file: str | None, **flags: str | None) -> int:
    """Run the whole system: API, engine, telemetry and dashboard.

    Ends with Ctrl-C or SIGTERM, after the requests that are running have finished (see --drain-timeout).
    """
    config, _ = read(config_file, flags)
    from engine.replicas.serve import serve

    return serve(config)
