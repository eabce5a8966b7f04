"""One draw per row from unnormalised weights, by inverting the cumulative distribution at a given point."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.runner.sampling.sums import BLOCK, block_sums

_BELOW_ONE = 1 - 2**-53
"""The float64 before 1: times a number it is less than that number."""


def draw(weights: Tensor, points: Tensor) -> Tensor:
    """The id at which each row's cumulative weight passes its point, ``[n]``. It has a weight above 0.

    `weights` float32 ``[n, vocab_size]``, not negative, at least one per row above 0; `points` float64 ``[n]`` in
    [0, 1). First the block of tokens is found, then the token in it: only the sums of the blocks are accumulated in
    float64, and what is left of the point's precision decides within the block.
    """
    vocab_size = weights.shape[-1]
    block, rest = _pass(block_sums(weights), points)
    ids = block[:, None] * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, ids.clamp(max=vocab_size - 1)).masked_fill(ids >= vocab_size, 0)
    offset, _ = _pass(inside, rest)
    return (block * BLOCK + offset).clamp(max=vocab_size - 1)  # weights that are not numbers still give an id


def _pass(masses: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Where the running sum of `masses` ``[n, m]`` passes `points`, and how far into that mass they lie, in [0, 1)."""
    sums = masses.cumsum(-1, dtype=torch.float64)
    target = points[:, None] * sums[:, -1:]
    # right=True finds the first sum above the target, whose mass therefore is above 0.
    index = torch.searchsorted(sums, target, right=True).clamp(max=masses.shape[-1] - 1)
    upper = sums.gather(-1, index)
    lower = torch.where(index > 0, sums.gather(-1, (index - 1).clamp(min=0)), 0.0)
    rest = ((target - lower) / (upper - lower)).clamp(max=_BELOW_ONE)
    return index.squeeze(-1), rest.squeeze(-1)
