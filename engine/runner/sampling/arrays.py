"""Host arrays of the sampler, and how the arrays of many rows become flat ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def lengths(arrays: Sequence[Ints | Floats]) -> Ints:
    """How many entries each array has."""
    return np.array([len(array) for array in arrays], np.int64)


def to_device(array: Ints | Floats | Doubles, like: Tensor) -> Tensor:
    """The array as a tensor where `like` is."""
    return torch.from_numpy(array).to(like.device)


def take_rows(tensor: Tensor, rows: Ints) -> Tensor:
    """The rows (distinct, rising) of a tensor ``[n, …]``; the tensor itself, no copy, when these are all."""
    return tensor if len(rows) == len(tensor) else tensor[to_device(rows, tensor)]
