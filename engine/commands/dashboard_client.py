"""Asking the dashboard's JSON API, for the commands that show what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import httpx

from engine.commands.errors import CommandFailedError
from engine.commands.urls import server_url

_TIMEOUT_S = 10.0
_OPTIONS = (
    click.option(
        "--url",
        default="http://127.0.0.1:8001",
        show_default=True,
        callback=server_url,
        help="The dashboard.",
    ),
    click.option("--operator-token", "token", envvar="VITRINE_OPERATOR_TOKEN", default="", help="If it wants one."),
    click.option("--json", "as_json", is_flag=True, help="Print the dashboard's answer as JSON."),
)


def dashboard_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--url``, ``--operator-token`` and ``--json``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def get(url: str, path: str, token: str, query: dict[str, Any] | None = None) -> Any:
    """``GET path`` as JSON; query parameters that are None are left out. Raises CommandFailedError."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.get(url.rstrip("/") + path, params=given, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError as e:
        reason = str(e) or type(e).__name__
        raise CommandFailedError(
            f'the dashboard at {url} cannot be reached ({reason}); is "vitrine serve" running? See --url'
        ) from e
    return _body(response, url)


def _body(response: httpx.Response, url: str) -> Any:
    if response.status_code == 401:
        raise CommandFailedError(f"the dashboard at {url} wants a token: --operator-token or VITRINE_OPERATOR_TOKEN")
    try:
        body = response.json()
    except ValueError as e:
        raise CommandFailedError(f"{url} does not answer like Vitrine's dashboard (see --url)") from e
    if response.status_code != 200:
        error = body.get("error", body) if isinstance(body, dict) else body
        message = error.get("message", error) if isinstance(error, dict) else error
        raise CommandFailedError(f"the dashboard says {response.status_code}: {message}")
    return body
