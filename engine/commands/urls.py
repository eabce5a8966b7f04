"""Where a server is that a command asks: given with ``--url``, or told from the settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import click
import httpx

from engine.commands.settings import config_option, read
from engine.config import Config

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def server_options(
    port: Literal["port", "dashboard_port"], secret: Literal["api_key", "operator_token"], what: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--url``, the secret's flag and ``--config`` to a command, which gets ``url`` and the secret.

    Without ``--url`` the server is where "vitrine serve" would listen, by environment and configuration file, and
    the secret is the one that it would ask for.
    """
    variable = "VITRINE_DASHBOARD_URL" if port == "dashboard_port" else "VITRINE_URL"
    default = f"{_local_url(Config().host, getattr(Config(), port))}, or as VITRINE_{port.upper()} and --config say"

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--url",
            envvar=variable,
            metavar="URL",
            callback=_checked,
            help=f"{what}  [default: {default}; env: {variable}]",
        )
        @config_option("TOML file with the settings of the server")
        @click.option(
            "--" + secret.replace("_", "-"),
            envvar=f"VITRINE_{secret.upper()}",
            default="",
            metavar="TEXT",
            help=f"Bearer token, if the server wants one  [env: VITRINE_{secret.upper()}]",
        )
        @functools.wraps(function)
        def with_server(*, url: str | None, config_file: str | None, **rest: Any) -> Any:
            if url is None:
                config, _ = read(config_file, {})
                url = _local_url(config.host, getattr(config, port))
                rest[secret] = rest[secret] or getattr(config, secret)
            return function(url=url, **rest)

        return with_server

    return decorate


def _local_url(host: str, port: int) -> str:
    """Where a server that binds to `host` is reached from this machine."""
    host = _ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _checked(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """The URL as given, once it is known to be one."""
    if url is None:
        return None
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as e:
        raise click.BadParameter(f"{url!r} is not a URL: {e}") from e
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise click.BadParameter(f"{url!r} must start with http:// or https:// and name a host")
    return url
