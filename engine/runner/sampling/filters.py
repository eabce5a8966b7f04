"""top_k, top_p and min_p: which tokens stay in the draw.

top_k and top_p keep the n most likely tokens, of equal ones those with the lowest ids. To find where to cut, only the
largest logits must be in order, and not where they are; min_p is a threshold by definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.runner.sampling.arrays import Doubles, Ints, to_device

_HEADS = (64, 1024)
"""So many of the largest logits are put in order first, and more only for rows whose cut lies further down."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Parameters per row, ``[n]`` each: `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    top_k: Ints
    top_p: Doubles
    min_p: Doubles

    def take(self, rows: Ints) -> Filters:
        """A selection."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def drop_unlikely(weights: Tensor, logits: Tensor, filters: Filters) -> None:
    """Set the weights of excluded tokens to 0; the most likely token of a row always stays.

    `weights`, float32 ``[n, vocab_size]``, changed in place, are the softmax of `logits`. top_p counts the mass that
    top_k has left, and the token that reaches it stays. min_p (Nguyen et al., 2024) leaves out what is less likely
    than that share of the most likely token.
    """
    cuts = _find_cuts(weights, logits, filters)
    if cuts is not None:
        weights.masked_fill_(logits < cuts.threshold, 0)
        cuts.drop_surplus(weights, logits)
    if filters.min_p.any():
        share = to_device(filters.min_p, weights).float()[:, None]
        weights.masked_fill_(weights < share * weights.amax(-1, keepdim=True), 0)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Per row how many tokens stay, and the logit of the last of them."""

    threshold: Tensor  # float32 [n, 1], -inf in rows without a cut
    count: Tensor  # int64 [n, 1]
    ambiguous: Tensor  # bool [n]: more tokens than `count` may reach the threshold

    @classmethod
    def none(cls, like: Tensor) -> _Cuts:
        """No row has a cut."""
        column = like[:, :1]
        count = torch.zeros_like(column, dtype=torch.int64)
        return cls(torch.full_like(column, -torch.inf), count, count[:, 0] > 0)

    def put(self, rows: Tensor, head: Tensor, count: Tensor) -> None:
        """`count` ``[m, 1]`` tokens stay in each of `rows`, whose largest logits are `head`, in falling order."""
        threshold = head.gather(-1, count - 1)
        following = head.gather(-1, count.clamp(max=head.shape[-1] - 1))
        self.threshold[rows], self.count[rows] = threshold, count
        self.ambiguous[rows] = (following == threshold).squeeze(-1)

    def drop_surplus(self, weights: Tensor, logits: Tensor) -> None:
        """Of tokens that are level with the threshold only those with the lowest ids stay, as far as there is room."""
        if not self.ambiguous.any():
            return
        rows = self.ambiguous.nonzero().squeeze(-1)
        logits, threshold = logits[rows], self.threshold[rows]
        room = self.count[rows] - (logits > threshold).sum(-1, keepdim=True)
        level = logits == threshold
        weights[rows] = weights[rows].masked_fill(level & (level.cumsum(-1) > room), 0)


def _find_cuts(weights: Tensor, logits: Tensor, filters: Filters) -> _Cuts | None:
    vocab_size = logits.shape[-1]
    limit = np.where((filters.top_k > 0) & (filters.top_k < vocab_size), filters.top_k, vocab_size)
    pending = np.flatnonzero((limit < vocab_size) | (filters.top_p < 1))
    if not pending.size:
        return None
    cuts = _Cuts.none(logits)
    for width in (*(w for w in _HEADS if w < vocab_size), vocab_size):
        # A limit beyond the head cannot be decided in it; whether a nucleus can, only its mass tells.
        rows = pending[(limit[pending] <= width) | (limit[pending] == vocab_size)]
        if rows.size:
            decided = _cut_in_head(cuts, weights, logits, width, rows, limit[rows], filters.top_p[rows])
            pending = np.setdiff1d(pending, decided, assume_unique=True)
    return cuts


def _cut_in_head(
    cuts: _Cuts, weights: Tensor, logits: Tensor, width: int, rows: Ints, limit: Ints, top_p: Doubles
) -> Ints:
    """Put the cuts that lie within the `width` largest logits; returns the rows, of `rows`, that have one."""
    index = to_device(rows, logits)
    head = _largest(logits if len(rows) == len(logits) else logits[index], width)
    mass = (head.double() - head[:, :1]).exp() * weights.amax(-1)[index, None]
    count, reached = _count(mass, to_device(limit, logits)[:, None], to_device(top_p, logits)[:, None])
    decided: NDArray[np.bool_] = (limit < logits.shape[-1]) | reached.cpu().numpy() | (width == logits.shape[-1])
    chosen = to_device(np.flatnonzero(decided), logits)
    cuts.put(index[chosen], head[chosen], count[chosen])
    return rows[decided]


def _largest(logits: Tensor, width: int) -> Tensor:
    whole = width == logits.shape[-1]
    return logits.sort(-1, descending=True).values if whole else logits.topk(width).values


def _count(mass: Tensor, limit: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens of falling `mass` (float64 ``[m, width]``) stay, ``[m, 1]``; whether they reach `top_p`, ``[m]``.

    A limit within the width makes what it leaves the whole.
    """
    within = torch.arange(mass.shape[-1], device=mass.device) < limit
    mass = mass.masked_fill(~within, 0)
    sums = mass.cumsum(-1)
    target = torch.where(top_p < 1, top_p, torch.inf) * torch.where(limit <= mass.shape[-1], sums[:, -1:], 1.0)
    count = (within & (sums - mass < target)).sum(-1, keepdim=True).clamp(min=1)
    return count, (sums[:, -1:] >= target).squeeze(-1)
