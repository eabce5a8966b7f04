"""``vitrine replicas``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from engine.commands.dashboard_client import dashboard_options, get
from engine.commands.output import print_json, print_table, seconds

_STATE_STYLES = {"ready": "green", "unhealthy": "red", "stopped": "dim"}
_COLUMNS = ["replica", "start", "state", "since", "restarts", "running", "waiting", "KV blocks", "model", "reason"]


@click.command("replicas")
@dashboard_options
def command(url: str, operator_token: str, as_json: bool) -> None:
    """List the replicas of the model: state, load and restarts."""
    answer = get(url, "/api/replicas", operator_token)
    if as_json:
        print_json(answer)
        return
    print_table(_COLUMNS, [_row(replica) for replica in answer["replicas"]], right=_COLUMNS[5:8])


def _row(replica: Mapping[str, Any]) -> list[str | Text]:
    info = replica["info"] or {}
    return [
        replica["replica"],
        f"#{replica['incarnation']}",
        Text(replica["state"], style=_STATE_STYLES.get(replica["state"], "yellow")),
        seconds(replica["in_state_s"]),
        str(replica["restarts"]),
        *_load(replica["load"]),
        " ".join(filter(None, (info.get("model"), info.get("dtype"), info.get("device")))),
        replica["reason"],
    ]


def _load(load: Mapping[str, Any] | None) -> list[str]:
    """Sequences running and waiting, and KV blocks in use of all."""
    if load is None:
        return ["–"] * 3
    return [str(load["running"]), str(sum(load["waiting"].values())), f"{load['blocks_active']}/{load['blocks_total']}"]
