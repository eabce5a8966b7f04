"""The colours of the operator dashboard, so that a stage looks the same in Grafana."""

from __future__ import annotations

import re
from pathlib import Path

from telemetry.events import Stage

STYLESHEET = Path(__file__).parents[1] / "dashboard" / "static" / "vitrine.css"
_PARTS = {
    "tokenize": "tokenizer",
    "queue": "scheduler",
    "preempted": "wait",
    "prefill": "runner",
    "decode": "runner light",
    "detokenize": "detokenizer",
    "drain": "gateway",
    "transport": "gateway light",
}
_BLOCKS = {"free": "quiet", "active": "series-1", "cached": "series-2"}
_REASONS = {"stop": "good", "length": "series-2", "abort": "warn", "error": "bad"}


def named_colours() -> dict[str, str]:
    """The light theme's variables of the stylesheet, ``{"gateway": "#2f6fd0", …}``."""
    light = STYLESHEET.read_text().split("@media", 1)[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6});", light))


def of_stages() -> dict[str, str]:
    """Colour of each process."""
    known = named_colours()
    return {str(stage): known[stage] for stage in Stage}


def of_parts() -> dict[str, str]:
    """Colour of each part of a request's time."""
    return _chosen(_PARTS)


def of_blocks() -> dict[str, str]:
    """Colour of each state of a KV block."""
    return _chosen(_BLOCKS)


def of_finish_reasons() -> dict[str, str]:
    """Colour of each finish reason."""
    return _chosen(_REASONS)


def _chosen(names: dict[str, str]) -> dict[str, str]:
    known = named_colours()
    return {what: _shade(known, name) for what, name in names.items()}


def _shade(known: dict[str, str], name: str) -> str:
    """A colour by its name; "light" is what the stylesheet's class of that name (opacity .55) makes on white."""
    base, _, light = name.partition(" ")
    if not light:
        return known[base]
    channels = (int(known[base][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.55 * channel + 0.45 * 255):02x}" for channel in channels)
