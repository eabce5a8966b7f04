"""The settings as command-line flags, and as a table for the README; both made from `engine.config.settings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from engine.commands.errors import WrongSettingError
from engine.config import Config, ConfigError, Setting, resolve, settings

SECTIONS = {
    "Model": (
        "model",
        "served_model_name",
        "chat_template",
        "dtype",
        "device",
        "simulated_step",
        "threads",
        "max_model_len",
        "cache_dir",
    ),
    "Server": (
        "host",
        "port",
        "dashboard_port",
        "api_key",
        "operator_token",
        "max_body_bytes",
        "request_timeout",
        "drain_timeout",
    ),
    "Engine": (
        "replicas",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_queue",
        "max_tokens_in_flight",
        "kv_cache_memory",
        "kv_blocks",
        "block_size",
        "prefix_cache",
        "prefill_share",
        "priority_aging",
        "overlap",
    ),
    "Telemetry": (
        "telemetry",
        "store_url",
        "store_retention",
        "store_retention_bytes",
        "token_log",
        "token_log_max_bytes",
        "token_log_max_age",
        "token_log_retention",
        "token_log_retention_bytes",
        "token_log_fsync",
        "otlp_endpoint",
        "jaeger_url",
        "trace_ratio",
        "step_trace_ratio",
        "objective_ttft",
        "objective_itl",
        "price_per_hour",
        "data_dir",
        "log_level",
    ),
}
"""Which settings stand together in ``--help`` and in the README."""


class SettingOption(click.Option):
    """A flag for one setting. Values are passed on as text: `engine.config` alone knows what is valid."""

    def __init__(self, setting: Setting, section: str) -> None:
        super().__init__([setting.flag], help=describe(setting), metavar=placeholder(setting))
        self.section = section


class SectionedCommand(click.Command):
    """A command whose ``--help`` groups its flags."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one block per section, then what belongs to none."""
        blocks: dict[str, list[tuple[str, str]]] = {section: [] for section in (*SECTIONS, "Other")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                blocks[getattr(param, "section", "Other")].append(record)
        for section, records in blocks.items():
            with formatter.section(section):
                formatter.write_dl(records)


def placeholder(setting: Setting) -> str:
    """What stands for the value: its choices, or its kind."""
    if setting.choices:
        return "|".join(setting.choices)
    return {int: "N", float: "X"}.get(setting.kind, "TEXT")


def describe(setting: Setting) -> str:
    """The help text, with the default and the environment variable."""
    default = f"default: {setting.default}; " if setting.default != "" else ""
    return f"{setting.help}  [{default}env: {setting.variable}]"


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every setting, and ``--config``, to a command; it receives them as keyword arguments for `read`."""
    by_name = {setting.name: setting for setting in settings()}
    options = [SettingOption(by_name[name], section) for section, names in SECTIONS.items() for name in names]
    function.__click_params__ = list(reversed(options))  # type: ignore[attr-defined]
    return config_option("TOML file with settings; flags and environment win over it")(function)


def config_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--config``, for `read`."""
    return click.option(
        "--config", "config_file", envvar="VITRINE_CONFIG", metavar="FILE", help=f"{text}  [env: VITRINE_CONFIG]"
    )


def read(config_file: str | None, flags: dict[str, str | None]) -> tuple[Config, dict[str, str]]:
    """Resolve the settings; see `engine.config.resolve`. Raises WrongSettingError."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return resolve(given, file=config_file)
    except ConfigError as e:
        raise WrongSettingError(str(e)) from e


def markdown() -> str:
    """The settings as Markdown tables, one per section."""
    by_name = {setting.name: setting for setting in settings()}
    blocks = []
    for section, names in SECTIONS.items():
        rows = [f"**{section}**", "", "| flag | default | |", "| --- | --- | --- |"]
        rows += [_markdown_row(by_name[name]) for name in names]
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks)


def _markdown_row(setting: Setting) -> str:
    choices = ", ".join(f"`{choice}`" for choice in setting.choices)
    default = f"`{setting.default}`" if setting.default != "" else ""
    return f"| `{setting.flag}` | {default} | {setting.help}{': ' + choices if choices else ''} |"
