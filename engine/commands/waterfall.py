"""A request's stages as bars of text on one time line.

::

    tokenize     █                                        1.2 ms
    queue        ██                                       4.9 ms
    prefill        ██████                                31.0 ms
    decode               ████████████████████████████     212 ms
    detokenize           ░░░░░░░░░░░░░░░░░░░░░░░░░░░░     3.1 ms
    drain                                             █   0.4 ms
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from engine.commands.output import seconds

WIDTH = 60

STAGE_STYLES = {
    "tokenize": "cyan",
    "queue": "yellow",
    "preempted": "red",
    "prefill": "blue",
    "decode": "green",
    "detokenize": "magenta",
    "drain": "bright_blue",
    "transport": "bright_black",
    "unaccounted": "bright_black",
}
"""One colour per part of a request, in the order of time."""

_SPANS = (
    ("queue", "enqueued_at", "scheduled_at"),
    ("prefill", "scheduled_at", "first_sampled_at"),
    ("decode", "first_sampled_at", "last_sampled_at"),
)


@dataclass(frozen=True)
class Lane:
    """One bar: times in seconds since the request was received. A faint one overlaps others: it is no part."""

    label: str
    part: str
    start_s: float
    end_s: float
    took_s: float
    faint: bool = False


def lanes(request: Mapping[str, Any], sequences: Sequence[Mapping[str, Any]]) -> list[Lane]:
    """The bars of a request, as far as it got. Its own columns stand for its sequences where there are none yet."""
    found = [_lane("tokenize", request, "tokenize_start_at", "tokenize_end_at")]
    for sequence in sequences or [request]:
        suffix = f" #{sequence['idx']}" if len(sequences) > 1 else ""
        found += [_lane(part, sequence, start, end, suffix) for part, start, end in _SPANS]
        found.append(_detokenize(sequence, suffix))
    found.append(_lane("drain", request, "last_sampled_at", "sent_at"))
    return [lane for lane in found if lane is not None]


def _lane(part: str, row: Mapping[str, Any], start: str, end: str, suffix: str = "") -> Lane | None:
    if row[start] is None or row[end] is None:
        return None
    return Lane(part + suffix, part, row[start], row[end], row[end] - row[start])


def _detokenize(row: Mapping[str, Any], suffix: str) -> Lane | None:
    start, end, busy = row["first_sampled_at"], row["last_sampled_at"], row["detokenize_s"]
    if start is None or end is None or busy is None:
        return None
    return Lane("detokenize" + suffix, "detokenize", start, end, busy, faint=True)


def draw(bars: Sequence[Lane], total_s: float, width: int = WIDTH) -> list[Text]:
    """One line per bar, on a time line of `total_s` seconds that is `width` characters wide."""
    label_width = max((len(bar.label) for bar in bars), default=0)
    return [_line(bar, max(total_s, 1e-9), width, label_width) for bar in bars]


def _line(bar: Lane, total_s: float, width: int, label_width: int) -> Text:
    start = min(width - 1, max(0, int(width * bar.start_s / total_s)))
    length = max(1, min(width, round(width * bar.end_s / total_s)) - start)
    line = Text(f"{bar.label:<{label_width}}  {' ' * start}")
    line.append(("░" if bar.faint else "█") * length, style=STAGE_STYLES[bar.part])
    line.append(" " * (width - start - length))
    line.append(f"{seconds(bar.took_s):>10}")
    return line
