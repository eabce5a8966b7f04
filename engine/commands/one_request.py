"""One request in the terminal: its stages on a time line, the parts of its duration, waits and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.text import Text

from engine.commands.output import clock, console, print_table, seconds
from engine.commands.plain import plain
from engine.commands.waterfall import STAGE_STYLES, draw, lanes
from telemetry.events import FinishReason

Row = Mapping[str, Any]

_STATE_STYLES = {"error": "red", "abort": "yellow", "length": "", "stop": ""}
_TOKENS_SHOWN = 50


def print_request(answer: Row) -> None:
    """Show what ``GET /api/requests/{id}`` answers."""
    request, sequences = answer["request"], answer["sequences"]
    console().print(_headline(request), _waterfall(request, sequences), answer["why"], sep="\n", highlight=False)
    _print_parts(answer["parts"], request["e2e_s"])
    for sequence in sequences:
        _print_waits(sequence)
        _print_tokens(sequence)


def state_of(request: Row) -> Text:
    """How a request ended, or what it is doing."""
    word = request["finish_reason"] or request["state"]
    status = f" {request['http_status']}" if word == FinishReason.ERROR and request["http_status"] else ""
    return Text(word + status, style=_STATE_STYLES.get(word, "green"))


def asked_for(request: Row) -> str:
    """The endpoint, and how many sequences it was asked for where that is not one."""
    count = request["num_sequences"]
    return f"{request['endpoint']} ×{count}" if count > 1 else str(request["endpoint"])


def _headline(request: Row) -> Text:
    line = Text.assemble((request["request_id"], "bold"), "  ", state_of(request), f"  {asked_for(request)}  ")
    line.append(
        f"{plain(request['model'])} on {request['replica'] or 'no replica'} at {clock(request['received_ts'])}\n"
    )
    line.append(f"trace {request['trace_id']}\n", style="dim")
    if request["error_message"]:
        error = f"{request['http_status']} {request['error_type']}: {request['error_message']}"
        line.append(plain(error) + "\n", style="red")
    return line


def _waterfall(request: Row, sequences: Sequence[Row]) -> Text:
    bars = lanes(request, sequences)
    end = request["sent_at"] or request["finished_at"] or max((bar.end_s for bar in bars), default=0.0)
    return Text("\n").join([*draw(bars, end), Text()])


def _print_parts(parts: Sequence[Row], total_s: float | None) -> None:
    """The parts of the request's duration, which add up to it."""
    if not parts or total_s is None:
        return
    rows: list[list[str | Text]] = [
        [Text(part["name"], style=STAGE_STYLES[part["name"]]), seconds(part["seconds"]), f"{part['share']:.1%}"]
        for part in parts
    ]
    click.echo()
    print_table(["part", "time", "share"], [*rows, ["end to end", seconds(total_s), ""]], right=["time", "share"])


def _print_waits(sequence: Row) -> None:
    for start, end, reason in sequence["wait_spans"]:
        click.echo(f"\nsequence {sequence['idx']} waited {seconds(end - start)} from {seconds(start)} on: {reason}")


def _print_tokens(sequence: Row) -> None:
    if sequence["tokens"] is None:
        return
    tokens = sequence["tokens"]["output"]
    rows: list[list[str | Text]] = [
        [
            str(token["index"]),
            str(token["id"]),
            repr(token["piece"]),
            seconds(token["at_s"]),
            Text(seconds(token["gap_s"]), style="red" if token["slow"] else ""),
            "–" if token["step_id"] is None else str(token["step_id"]),
        ]
        for token in tokens[:_TOKENS_SHOWN]
    ]
    click.echo(f"\nsequence {sequence['idx']}: {len(sequence['tokens']['prompt'])} tokens in, {len(tokens)} out")
    print_table(["token", "id", "piece", "at", "gap", "step"], rows, right=["token", "id", "at", "gap", "step"])
    if len(tokens) > _TOKENS_SHOWN:
        click.echo(f"… and {len(tokens) - _TOKENS_SHOWN} more (--json has all)")
