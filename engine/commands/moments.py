"""Points in time on the command line."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Moment(click.ParamType[float]):
    """``10m`` (ago; s, m, h, d), seconds since the epoch, or ISO 8601 (local time without an offset)."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds since the epoch."""
        if isinstance(value, float):
            return value
        ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
        if ago:
            return time.time() - float(ago[1]) * _UNITS_S[ago[2]]
        if re.fullmatch(r"\d+(?:\.\d+)?", value):
            return float(value)
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            self.fail(f"{value!r} is no time: 10m (ago), seconds since the epoch, or 2026-01-31T12:00", param, ctx)
