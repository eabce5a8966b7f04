"""``vitrine model``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from engine.commands.errors import CommandFailedError
from engine.commands.output import print_json, print_table, size
from engine.commands.settings import SettingOption, read
from engine.config import DEFAULT_MODEL, Config, settings

_SETTINGS = [SettingOption(setting, "Model") for setting in settings() if setting.name in ("dtype", "cache_dir")]
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
_NAME = click.Argument(["name"], default=DEFAULT_MODEL)


@click.group("model")
def command() -> None:
    """List, fetch and describe models."""


def _list(as_json: bool, **flags: str | None) -> None:
    """List the models known by name, and what of them is in the cache."""
    from engine.model_store import list_models

    models = list_models(_config(flags).cache_path)
    if as_json:
        print_json(models)
        return
    rows = [
        [
            model.name,
            f"{size(model.cached_bytes)} as {', '.join(model.cached_dtypes)}" if model.cached_dtypes else "no",
            size(model.download_bytes),
            model.licence,
            model.description,
        ]
        for model in models
    ]
    print_table(["name", "in the cache", "download", "licence", "description"], rows, right=["download"])


def _pull(name: str, as_json: bool, **flags: str | None) -> None:
    """Fetch a model and make it ready to be served.

    NAME is what --model of "vitrine serve" takes.
    """
    from engine.model_store import ModelError, progress_on_stderr, resolve_model

    config = _config(flags)
    try:
        files = resolve_model(name, config.dtype, config.cache_path, progress_on_stderr())
    except ModelError as e:
        raise CommandFailedError(str(e)) from e
    if as_json:
        print_json(files)
    else:
        click.echo(f"{files.name} is ready: {files.path}")


def _show(name: str, as_json: bool, **flags: str | None) -> None:
    """Show a model's sizes, limits and hashes."""
    from engine.model_store import ModelError, progress_on_stderr, show_model

    config = _config(flags)
    try:
        details = show_model(name, config.dtype, config.cache_path, progress_on_stderr())
    except ModelError as e:
        raise CommandFailedError(str(e)) from e
    if as_json:
        print_json(details)
        return
    facts: dict[str, Any] = msgspec.to_builtins(details.files) | {"dtype": details.dtype}
    facts |= msgspec.to_builtins(details.shape)
    rows = [[key.replace("_", " "), str(value).strip("(,)")] for key, value in facts.items()]
    rows += [[file, size(count)] for file, count in details.file_bytes.items()]
    print_table(["", ""], rows)


def _config(flags: dict[str, str | None]) -> Config:
    config, _ = read(None, flags)
    return config


command.add_command(click.Command("list", callback=_list, help=_list.__doc__, params=[_JSON, *_SETTINGS]))
command.add_command(click.Command("pull", callback=_pull, help=_pull.__doc__, params=[_NAME, _JSON, *_SETTINGS]))
command.add_command(click.Command("show", callback=_show, help=_show.__doc__, params=[_NAME, _JSON, *_SETTINGS]))
