"""Greedy choice and random draws, each row by its own parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.runner.sampling.arrays import Floats, Ints, to_device
from engine.runner.sampling.draw import draw
from engine.runner.sampling.filters import Filters, drop_unlikely
from engine.runner.sampling.randomness import uniforms

GREEDY_TEMPERATURE = 1e-4
"""At this temperature and below a row takes the most likely token: a draw could only tell near ties apart."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of the rows that sample, ``[n]`` each; `positions` are those of the tokens to be sampled."""

    temperature: Floats
    filters: Filters
    seed: NDArray[np.uint64]
    positions: Ints

    def take(self, rows: Ints) -> SamplingRows:
        """A selection."""
        return SamplingRows(self.temperature[rows], self.filters.take(rows), self.seed[rows], self.positions[rows])


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """One id per row of `logits` (float32 ``[n, vocab_size]``, overwritten). Equal logits: the lowest id.

    A row's draw depends on its own logits and parameters only, not on the rows beside it.
    """
    drawn = np.flatnonzero(rows.temperature > GREEDY_TEMPERATURE)
    if drawn.size == len(rows.temperature):
        return _draw(logits, rows)
    ids = _most_likely(logits)
    if drawn.size:
        index = to_device(drawn, logits)
        ids[index] = _draw(logits[index], rows.take(drawn))
    return ids


def _most_likely(logits: Tensor) -> Tensor:
    """The first of the maxima: documented of both. On the CPU NumPy finds it ten times as fast."""
    return torch.from_numpy(logits.numpy().argmax(-1)) if logits.device.type == "cpu" else logits.argmax(-1)


def _draw(logits: Tensor, rows: SamplingRows) -> Tensor:
    # In place as far as can be: a fresh array of this size costs more than the arithmetic, for its page faults.
    logits.div_(to_device(rows.temperature, logits)[:, None])
    highest = logits.amax(-1, keepdim=True)
    weights = (logits - highest if rows.filters.cut else logits.sub_(highest)).exp_()
    drop_unlikely(weights, logits, rows.filters)
    return draw(weights, to_device(uniforms(rows.seed, rows.positions), logits))
