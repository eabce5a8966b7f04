"""FLOPs and bytes of one engine step, from its plan and from what the model's parts cost.

::

    FLOPs = tokens · products + rows that sample · vocabulary projection + Σ pairs (token, position seen) · attention
    bytes = weights, once + vocabulary projection, once
          + keys and values: those of each row's context read once, those of new tokens written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from telemetry.events import AttentionWork, ModelWork


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
        pairs, positions = _seen(layers, starts, num_tokens)
        flops += pairs * layers.flops_per_pair
        moved += (positions + tokens) * layers.kv_bytes_per_position
    return Work(flops, moved)


def experts_read(share: float, tokens: int) -> float:
    """The share of the experts that at least one of `tokens` uses, if each chooses on its own."""
    return 1 - (1 - share) ** tokens


def _seen(layers: AttentionWork, starts: Sequence[int], num_tokens: Sequence[int]) -> tuple[int, int]:
    """(pairs of a token and a position that it sees, positions that any token of a row sees), over all rows."""
    if not layers.window:
        ends = [start + n for start, n in zip(starts, num_tokens, strict=True)]
        return sum(_triangle(end) for end in ends) - sum(map(_triangle, starts)), sum(ends)
    rows = [_seen_in_window(layers.window, start, n) for start, n in zip(starts, num_tokens, strict=True)]
    return sum(pairs for pairs, _ in rows), sum(positions for _, positions in rows)


def _seen_in_window(window: int, start: int, n: int) -> tuple[int, int]:
    """As `_seen`, of one row: the first tokens see all before them, the others the window."""
    below = min(max(window - start, 0), n)  # tokens whose context still fits into the window
    pairs = _triangle(start + below) - _triangle(start) + (n - below) * window
    return pairs, min(start + n, window + n - 1)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
