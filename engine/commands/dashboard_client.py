"""Asking the dashboard's JSON API, for the commands that show what it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import click
import httpx

from engine.commands.errors import CommandFailedError
from engine.commands.urls import server_options
from engine.config import Config

_TIMEOUT_S = 10.0


def dashboard_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--url``, ``--config``, ``--operator-token`` and ``--json``."""
    function = click.option("--json", "as_json", is_flag=True, help="Print the dashboard's answer as JSON.")(function)
    return server_options("dashboard_port", "operator_token", "The dashboard.")(function)


def get(url: str, path: str, token: str, query: dict[str, Any] | None = None) -> Any:
    """``GET path`` as JSON; query parameters that are None are left out. Raises CommandFailedError."""
    with _asking(url, path, token, query or {}) as response:
        response.read()
        return _body(response, url)


def put(url: str, path: str, token: str, body: Any) -> Any:
    """``PUT path`` with a JSON body; the answer's. Raises CommandFailedError."""
    with _asking(url, path, token, {}, method="PUT", json=body) as response:
        response.read()
        return _body(response, url)


def stream(url: str, path: str, token: str, query: dict[str, Any]) -> Iterator[bytes]:
    """``GET path``, piece by piece, however long it is. Raises CommandFailedError, also for one that breaks off."""
    with _asking(url, path, token, query) as response:
        if response.status_code != 200:
            response.read()
            _body(response, url)
        yield from response.iter_bytes()


@contextlib.contextmanager
def _asking(
    url: str, path: str, token: str, query: dict[str, Any], method: str = "GET", json: Any = None
) -> Iterator[httpx.Response]:
    given = {name: value for name, value in query.items() if value is not None}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
    try:
        address = url.rstrip("/") + path
        with client, client.stream(method, address, params=given, headers=headers, json=json) as response:
            yield response
    except httpx.RemoteProtocolError as e:
        raise CommandFailedError(f"the dashboard at {url} broke off its answer ({e}); see its log") from e
    except httpx.HTTPError as e:
        reason = str(e) or type(e).__name__
        raise CommandFailedError(
            f'the dashboard at {url} cannot be reached ({reason}); is "vitrine serve" running? See --url'
        ) from e


def _body(response: httpx.Response, url: str) -> Any:
    try:
        body = response.json()
    except ValueError as e:
        raise CommandFailedError(f"{url} does not answer like Vitrine's dashboard (see --url)") from e
    if response.status_code != 200:
        raise CommandFailedError(_refusal(response.status_code, body, url))
    return body


def _refusal(status: int, body: Any, url: str) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict) and "param" in error:  # the shape of the OpenAI API's errors, not the dashboard's
        return f"{url} is the API; the dashboard is usually on port {Config().dashboard_port} (see --url)"
    if status == 401:
        return f"the dashboard at {url} wants a token: --operator-token or VITRINE_OPERATOR_TOKEN"
    return f"the dashboard says {status}: {error.get('message', error) if isinstance(error, dict) else error}"
