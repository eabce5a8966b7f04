"""FLOPs and bytes of one engine step, from its plan and from what the model's parts cost.

::

    FLOPs = tokens · products + rows that sample · vocabulary projection + Σ pairs (token, position seen) · attention
    bytes = weights, once + vocabulary projection, once
          + keys and values: those of each row's context read once, those of new tokens written
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from telemetry.events import ModelWork


class Work(NamedTuple):
    """What one step computes, and what it moves at least."""

    flops: float
    bytes: float


def step_work(work: ModelWork, starts: Sequence[int], num_tokens: Sequence[int], num_sampled: int) -> Work:
    """Row i computes ``num_tokens[i]`` tokens behind ``starts[i]`` known ones; `num_sampled` rows get logits."""
    tokens = sum(num_tokens)
    flops = tokens * work.flops_per_token + num_sampled * work.flops_per_logits
    moved = work.weight_bytes + work.expert_bytes * experts_read(work.expert_share, tokens)
    moved += work.logits_bytes if num_sampled else 0
    for layers in work.attention:
        pairs, positions = _seen(layers.window, starts, num_tokens)
        flops += pairs * layers.flops_per_pair
        moved += (positions + tokens) * layers.kv_bytes_per_position
    return Work(flops, moved)


def experts_read(share: float, tokens: int) -> float:
    """The share of the experts that at least one of `tokens` uses, if each chooses on its own."""
    return 1 - (1 - share) ** tokens


def _seen(window: int, starts: Sequence[int], num_tokens: Sequence[int]) -> tuple[int, int]:
    """(pairs of a token and a position that it sees, positions that any token of a row sees), over all rows.

    Sums without a loop of our own: a step of hundreds of rows must cost the telemetry process next to nothing.
    """
    tokens = sum(num_tokens)
    pairs = _pairs(starts, num_tokens)
    positions = sum(starts) + tokens
    if window:
        pairs -= _pairs(*_behind(window, starts, num_tokens))
        positions -= sum(start - window + 1 for start in starts if start >= window)
    return pairs, positions


def _pairs(starts: Sequence[int], num_tokens: Sequence[int]) -> int:
    """Pairs of a token and a position, each token seeing all before it and itself: Σ n·start + n·(n + 1)/2."""
    squares: int = sum(map(mul, num_tokens, num_tokens))
    before: int = sum(map(mul, num_tokens, starts))
    return before + (squares + sum(num_tokens)) // 2


def _behind(window: int, starts: Sequence[int], num_tokens: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows that see exactly what the window hides: the same tokens, with the window's length cut off in front.

    ::

        position    0 1 2 3 4 5 6 7        window 3: the token at 6 sees 4 5 6 and not 0 1 2 3,
        sees        · · · · 4 5 6          which is what a token at position 3 sees without a window
    """
    rows = [(start - window, n) for start, n in zip(starts, num_tokens, strict=True) if start + n > window]
    return [max(0, start) for start, _ in rows], [n + min(0, start) for start, n in rows]
