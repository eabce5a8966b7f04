"""Distributions of measured values."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Distribution(msgspec.Struct, frozen=True):
    """A summary of values; percentiles interpolate between neighbours."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution | None:
        """Summarize `values`, None when there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        mean = sum(ordered) / len(ordered)
        p50, p90, p99 = (percentile(ordered, q) for q in (0.5, 0.9, 0.99))
        return cls(len(ordered), mean, p50, p90, p99, ordered[0], ordered[-1])


def percentile(ordered: list[float], q: float) -> float:
    """The `q` quantile (0–1) of ascending values, linear between neighbours (type 7 of Hyndman and Fan, 1996)."""
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
