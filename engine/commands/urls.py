"""``--url`` options."""

from __future__ import annotations

import click
import httpx


def server_url(ctx: click.Context, param: click.Parameter, url: str) -> str:
    """Callback of an option: the URL as given, once it is known to be one."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as e:
        raise click.BadParameter(f"{url!r} is not a URL: {e}") from e
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise click.BadParameter(f"{url!r} must start with http:// or https:// and name a host")
    return url
