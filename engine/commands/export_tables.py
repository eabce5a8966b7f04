"""Steps and unfinished requests as tables in the terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import click
import msgspec

from engine.commands.output import print_table, seconds

Row = Mapping[str, Any]

_STEP_COLUMNS = ["planned", "replica", "step", "kind", "rows", "tokens", "plan", "execute", "sample", "publish", "idle"]
_STEP_COLUMNS += ["free", "active", "cached", "waiting", "head waits for"]
_REQUEST_COLUMNS = ["id", "age", "replica", "stage", "state", "in", "computed", "out", "preempted", "waits", "reason"]


def rows_of(pieces: Iterable[bytes]) -> Iterator[Row]:
    """JSON lines, cut into pieces anywhere, as rows."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from map(msgspec.json.decode, lines)


def print_steps(rows: Iterable[Row], last: int) -> None:
    """The `last` ones."""
    kept = deque(rows, maxlen=last)
    if not kept:
        click.echo("no steps were recorded")
        return
    print_table(_STEP_COLUMNS, [_step(row) for row in kept], right=_STEP_COLUMNS[4:15])


def _step(row: Row) -> list[str]:
    return [
        datetime.fromtimestamp(row["planned_ts"]).strftime("%H:%M:%S.%f")[:-3],
        row["incarnation_id"].rpartition("/")[2].replace(".", " #"),
        str(row["step_id"]),
        row["kind"],
        *(str(row[name]) for name in ("num_seqs", "num_tokens")),
        *(seconds(row[f"{part}_s"]) for part in ("schedule", "execute", "sample", "publish", "idle")),
        *(str(row[f"blocks_{state}"]) for state in ("free", "active", "cached")),
        str(row["waiting"]),
        " ".join(filter(None, (row["head_reason"], row["head_request_id"]))),
    ]


def print_requests(rows: Iterable[Row]) -> None:
    """All of them."""
    cells = [_request(row) for row in rows]
    if not cells:
        click.echo("every recorded request was finished")
        return
    print_table(_REQUEST_COLUMNS, cells, right=[*_REQUEST_COLUMNS[5:10], "age"])


def _request(row: Row) -> list[str]:
    replica, incarnation = row["replica"], row["incarnation"]
    return [
        row["request_id"],
        seconds(row["age_s"]),
        "–" if replica is None else f"{replica} #{incarnation}",
        row["stage"],
        row["state"],
        "–" if row["prompt_tokens"] is None else str(row["prompt_tokens"]),
        *(str(row[name]) for name in ("computed_tokens", "output_tokens", "preemptions")),
        seconds(row["waited_s"]),
        row["wait_reason"] or "–",
    ]
