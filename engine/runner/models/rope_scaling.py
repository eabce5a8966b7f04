"""Frequencies of rotary position embeddings, and the ways to stretch them over longer contexts.

Each function gives the angle per position of every pair of dimensions, float32 ``[head_dim / 2]``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def default(head_dim: int, theta: float) -> Tensor:
    """theta^(-2i / head_dim) for pair i (Su et al., "RoFormer", 2021, section 3.4.2)."""
    return theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def linear(frequencies: Tensor, factor: float) -> Tensor:
    """All positions closer together (Chen et al., "Extending Context Window … via Position Interpolation", 2023)."""
    return frequencies / factor


def dynamic_ntk(head_dim: int, theta: float, factor: float, original: int, length: int) -> Tensor:
    """The base grows so that the slowest pair is stretched and the fastest hardly ("NTK-aware", bloc97 and emozilla,
    2023; described by Peng et al., "YaRN", 2023, sections 3.1 and 3.3).

    For contexts of `length` tokens; nothing changes up to the `original` length.
    """
    stretch = factor * max(length, original) / original - (factor - 1)
    return default(head_dim, theta * stretch ** (head_dim / (head_dim - 2)))


def llama3(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Slow pairs divided by `factor`, fast ones kept, a straight line between them (Grattafiori et al., "The Llama 3
    Herd of Models", 2024, section 3.4.3, and its reference implementation).

    Slow: fewer than `low` turns within the `original` length; fast: more than `high`.
    """
    turns = original * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def yarn(
    head_dim: int, theta: float, factor: float, original: int, fast: float, slow: float, whole_pairs: bool
) -> Tensor:
    """Pairs with more than `fast` turns within the `original` length kept, those with fewer than `slow` divided by
    `factor`, a straight line over the pairs between them (Peng et al., "YaRN", 2023, section 3.2).

    `whole_pairs`: the line begins and ends at a whole pair.
    """

    def pair_with(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_with(fast), pair_with(slow)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    last = last + 0.001 if first == last else last
    divided = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    frequencies = default(head_dim, theta)
    return frequencies / factor * divided + frequencies * (1 - divided)


def yarn_attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """What cosines and sines are multiplied by (Peng et al., "YaRN", 2023, section 3.4; the two scales are
    DeepSeek-V2's, 2024).
    """

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)
