"""Building blocks shared by model families."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Projection = Callable[[Tensor], Tensor]
"""``[n, in_features]`` → ``[n, out_features]``."""


def projection(*weights: Tensor) -> Projection:
    """The product with one weight, or with several of equal width in one go (outputs side by side).

    Weights are ``[out_features, in_features]``. On a CPU they are copied once into the block layout of oneDNN's
    matrix kernels, which halves the time of a decode step; elsewhere they stay as they are.
    """
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if not _can_pack(weight):
        return lambda x: functional.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, None, "none", [], "")


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype is torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Rotary:
    """Rotary position embedding (Su et al., 2021), halves rotated against each other, no scaling."""

    def __init__(self, head_dim: int, theta: float, max_positions: int, like: Tensor) -> None:
        """Tables for positions below `max_positions`, in the dtype and on the device of `like`."""
        frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        self._half = head_dim // 2
        self._cos = torch.cat((cos, cos), -1).to(like)[:, None]
        self._sin = torch.cat((-sin, sin), -1).to(like)[:, None]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines for a step's tokens, ``[num_tokens, 1, head_dim]`` each."""
        return self._cos[positions], self._sin[positions]

    def rotate(self, heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate ``[num_tokens, num_heads, head_dim]``."""
        cos, sin = angles
        return torch.addcmul(heads * cos, heads.roll(self._half, -1), sin)
