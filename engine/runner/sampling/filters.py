"""top_k, top_p and min_p: which tokens stay in the draw.

top_k and top_p keep the n most likely tokens, of equal ones those with the lowest ids. To find where to cut, only the
largest logits must be in order, and not where they are; a nucleus that is wider than that is cut in `wide_nucleus`.
min_p is a threshold by definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from engine.runner.sampling.arrays import Doubles, Ints, take_rows, to_device
from engine.runner.sampling.cuts import Cuts
from engine.runner.sampling.sums import row_sums
from engine.runner.sampling.wide_nucleus import drop_outside_nucleus

_LIMIT_GROUPS = (64, 1024)


@dataclass(frozen=True, slots=True)
class Filters:
    """Parameters per row, ``[n]`` each: `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    top_k: Ints
    top_p: Doubles
    min_p: Doubles

    def take(self, rows: Ints) -> Filters:
        """A selection."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])

    @property
    def cut(self) -> bool:
        """Whether any row has a limit on how many tokens stay, or on their mass."""
        return bool(self.top_k.any() or (self.top_p < 1).any())


def drop_unlikely(weights: Tensor, logits: Tensor, filters: Filters) -> None:
    """Set the weights of excluded tokens to 0; the most likely token of a row always stays.

    `weights`, float32 ``[n, vocab_size]``, changed in place, are exp(logit - the row's largest logit). top_p counts
    the mass that top_k has left, and the token that reaches it stays. min_p (Nguyen et al., 2024) leaves out what is
    less likely than that share of the most likely token. `logits` are not read where ``filters.cut`` is false.
    """
    if filters.cut:
        _cut(weights, logits, filters)
    if filters.min_p.any():
        weights.masked_fill_(weights < to_device(filters.min_p, weights)[:, None].float(), 0)


def _cut(weights: Tensor, logits: Tensor, filters: Filters) -> None:
    vocab_size = logits.shape[-1]
    limited = (filters.top_k > 0) & (filters.top_k < vocab_size)
    cuts, totals = Cuts(logits), row_sums(weights)
    # A far limit makes a long head, which rows with a near one need not pay for.
    for above, up_to in pairwise((0, *_LIMIT_GROUPS, vocab_size)):
        rows = np.flatnonzero(limited & (filters.top_k > above) & (filters.top_k <= up_to))
        if rows.size:
            cuts.limit_count(rows, logits, filters.top_k[rows], filters.top_p[rows])
    nucleus = np.flatnonzero(~limited & (filters.top_p < 1))
    wide = cuts.limit_mass(nucleus, logits, totals, filters.top_p) if nucleus.size else nucleus
    cuts.apply(weights, logits)
    if wide.size:
        part = take_rows(weights, wide)
        drop_outside_nucleus(part, take_rows(logits, wide), take_rows(totals, wide), filters.top_p[wide])
        if part is not weights:
            weights[to_device(wide, weights)] = part
