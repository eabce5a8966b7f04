"""Distributions of measured values."""

from __future__ import annotations

import math
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


class MedianInterval(msgspec.Struct, frozen=True):
    """The median of some values, and where the median of all that could have been measured lies.

    ``low`` and ``high`` are two of the values: so many from either end that the interval between them holds the
    true median with probability ``confidence``, whatever the distribution (Thompson, 1936).
    """

    median: float
    low: float
    high: float
    confidence: float

    @classmethod
    def of(cls, values: Iterable[float], confidence: float = 0.95) -> MedianInterval:
        """The narrowest such interval of at least `confidence`; with fewer than six values the widest there is."""
        ordered = sorted(values)
        n = len(ordered)
        outside = 2**-n  # probability that the true median lies below the value number `cut`
        cut = 0
        while cut < (n - 1) // 2 and 1 - 2 * (grown := outside + math.comb(n, cut + 1) * 2**-n) >= confidence:
            outside, cut = grown, cut + 1
        return cls(percentile(ordered, 0.5), ordered[cut], ordered[n - 1 - cut], 1 - 2 * outside)
