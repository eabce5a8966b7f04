"""The gap before each token as a bar chart."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dashboard.formatting import duration
from dashboard.tokens import Token

MAX_BARS = 240


class GapBar(msgspec.Struct, frozen=True):
    """One bar: the longest gap of its tokens. ``height`` in percent of the longest of all."""

    height: float
    slow: bool
    title: str


class GapChart(msgspec.Struct, frozen=True):
    """The bars, how many tokens each stands for, and how many gaps are slow."""

    bars: list[GapBar]
    per_bar: int
    slow: int


def gap_chart(tokens: Sequence[Token]) -> GapChart:
    """Bars of the gaps, at most `MAX_BARS` of them."""
    timed = [(token.gap_s, token) for token in tokens if token.gap_s is not None]
    per_bar = max(1, -(-len(timed) // MAX_BARS))
    longest = max((gap for gap, _ in timed), default=0.0) or 1.0
    groups = [timed[i : i + per_bar] for i in range(0, len(timed), per_bar)]
    return GapChart(
        bars=[_bar(*max(group, key=lambda pair: pair[0]), longest) for group in groups],
        per_bar=per_bar,
        slow=sum(token.slow for token in tokens),
    )


def _bar(gap_s: float, token: Token, longest: float) -> GapBar:
    return GapBar(100 * gap_s / longest, token.slow, f"before token {token.index}: {duration(gap_s)}")
