"""Greedy choice and random draws, each row by its own parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.runner.sampling.filters import keep_most_likely
from engine.runner.sampling.randomness import uniforms
from engine.runner.slots import Ints, SlotTable

GREEDY_TEMPERATURE = 1e-4
"""At this temperature and below a row takes the most likely token: a draw could only tell near ties apart."""


@dataclass(slots=True)
class SamplingRows:
    """Parameters of the rows that sample, ``[n]`` each; `positions` are those of the tokens to be sampled."""

    temperature: NDArray[np.float32]
    top_k: Ints
    top_p: NDArray[np.float64]
    seed: NDArray[np.uint64]
    positions: Ints

    @classmethod
    def of(cls, table: SlotTable, slots: Ints, positions: Ints) -> SamplingRows:
        """The parameters of `slots`."""
        return cls(table.temperature[slots], table.top_k[slots], table.top_p[slots], table.seed[slots], positions)

    def take(self, rows: Ints) -> SamplingRows:
        """A selection."""
        return SamplingRows(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.seed[rows], self.positions[rows]
        )


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """One id per row of `logits` (float32 ``[n, vocab_size]``). Equal logits: the lowest id.

    A row's draw depends on its own logits and parameters only, not on the rows beside it.
    """
    ids = logits.argmax(-1)  # documented: of several maxima the first
    drawn = np.flatnonzero(rows.temperature > GREEDY_TEMPERATURE)
    if drawn.size:
        index = torch.from_numpy(drawn).to(logits.device)
        ids[index] = _draw(logits[index], rows.take(drawn))
    return ids


def _draw(logits: Tensor, rows: SamplingRows) -> Tensor:
    """Invert the cumulative distribution at one uniform number per row.

    Taken in float64, so that the rounding of a sum over the vocabulary cannot push a draw to its neighbour.
    """
    temperature, top_k, top_p, point = (
        torch.from_numpy(a).to(logits.device)
        for a in (rows.temperature, rows.top_k, rows.top_p, uniforms(rows.seed, rows.positions))
    )
    kept = keep_most_likely(logits / temperature[:, None], top_k, top_p)
    cumulative = kept.softmax(-1).cumsum(-1, dtype=torch.float64)
    # right=True finds the first entry above the point, whose token therefore has a probability above 0.
    return torch.searchsorted(cumulative, point[:, None] * cumulative[:, -1:], right=True).squeeze(-1)
