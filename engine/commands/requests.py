"""``vitrine requests``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.text import Text

from engine.commands.dashboard_client import dashboard_options, get
from engine.commands.one_request import asked_for, print_request, state_of
from engine.commands.output import clock, print_json, print_table, seconds
from telemetry.events import FinishReason

Row = Mapping[str, Any]

_MOST = 1000
_STATES = ("tokenizing", "waiting", "running", "finished")
_FINISH_REASONS = tuple(reason.value for reason in FinishReason)
_COLUMNS = ["received", "id", "state", "endpoint", "replica", "in", "cached", "out", "TTFT", "TPOT", "total"]


@click.command("requests")
@click.argument("request_id", metavar="[ID]", required=False)
@dashboard_options
@click.option("--limit", type=click.IntRange(1, _MOST), default=20, show_default=True, help="Requests to list.")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option("--replica", help="Only those of one replica.")
@click.option("--finish-reason", type=click.Choice(_FINISH_REASONS), help="Only those that ended so.")
@click.option("--min-ttft-ms", type=float, help="Only those whose first token took at least so long.")
@click.option("--trace-id", help="Only those of one trace.")
@click.option("--token", metavar="IDS", help="Only those with this token id in prompt or answer; or several: 12,7,9.")
def command(request_id: str | None, url: str, operator_token: str, as_json: bool, **filters: Any) -> None:
    """List the latest requests, or show where the one with ID spent its time."""
    if request_id is None:
        answer = get(url, "/api/requests", operator_token, filters)
    else:
        answer = get(url, "/api/requests/" + quote(request_id, safe=""), operator_token)
    if as_json:
        print_json(answer)
    elif request_id is None:
        _print_list(answer["requests"])
    else:
        print_request(answer)


def _print_list(rows: Sequence[Row]) -> None:
    if not rows:
        click.echo("no such requests yet")
        return
    print_table(_COLUMNS, [_list_row(row) for row in rows], right=_COLUMNS[5:])


def _list_row(row: Row) -> list[str | Text]:
    return [
        clock(row["received_ts"]),
        row["request_id"],
        state_of(row),
        asked_for(row),
        row["replica"] or "–",
        *(_count(row[column]) for column in ("prompt_tokens", "cached_tokens", "output_tokens")),
        *(seconds(row[column]) for column in ("ttft_s", "tpot_s", "e2e_s")),
    ]


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
