"""Sums over the vocabulary whose rounding does not depend on how many rows or threads there are."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


def block_sums(weights: Tensor) -> Tensor:
    """Sums of each row's blocks and, last, of what is left over: ``[n, vocab_size // BLOCK + 1]``."""
    num_rows, vocab_size = weights.shape
    rest = vocab_size % BLOCK
    whole = weights[:, : vocab_size - rest].view(num_rows, vocab_size // BLOCK, BLOCK)
    return torch.cat([whole.sum(-1), weights[:, vocab_size - rest :].sum(-1, keepdim=True)], -1)


def row_sums(weights: Tensor) -> Tensor:
    """The sum of each row, float64 ``[n, 1]``."""
    return block_sums(weights).cumsum(-1, dtype=torch.float64)[:, -1:]
