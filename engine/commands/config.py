"""``vitrine config``."""

from __future__ import annotations

import click

from engine.commands.output import print_json, print_table
from engine.commands.settings import SECTIONS, SectionedCommand, markdown, read, with_settings
from engine.config import SECRETS, Config


@click.command("config", cls=SectionedCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table of all settings for the README.")
@with_settings
def command(as_json: bool, as_markdown: bool, config_file: str | None, **flags: str | None) -> None:
    """Show every setting, its value and where it came from: a flag, the environment, a file, or the default."""
    if as_markdown:
        click.echo(markdown())
        return
    config, origins = read(config_file, flags)
    if as_json:
        print_json({name: {"value": shown(config, name), "from": origin} for name, origin in origins.items()})
        return
    rows = [[name, str(shown(config, name)), origins[name]] for names in SECTIONS.values() for name in names]
    print_table(["setting", "value", "from"], rows)


def shown(config: Config, name: str) -> object:
    """A setting's value as it may be printed: secrets masked, folders as they will be used."""
    value: object = getattr(config, name)
    if name in SECRETS:
        return "********" if value else ""
    folders = {"data_dir": config.data_path, "cache_dir": config.cache_path}
    return str(folders[name]) if name in folders else value
