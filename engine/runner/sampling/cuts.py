"""Where to cut off a row's tail, after a number of tokens or a mass."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.runner.sampling.arrays import Doubles, Ints, take_rows, to_device

NUCLEUS_HEAD = 64
"""So many of the largest logits are put in order to find a nucleus: it rarely has more tokens."""


class Cuts:
    """Per row how many tokens stay, and the logit of the last of them. New: no row has a cut."""

    def __init__(self, logits: Tensor) -> None:
        """For `logits` float32 ``[n, vocab_size]``."""
        column = logits[:, :1]
        self._threshold = torch.full_like(column, -torch.inf)  # float32 [n, 1]
        self._count = torch.zeros_like(column, dtype=torch.int64)  # [n, 1]
        self._ambiguous = torch.zeros_like(column[:, 0], dtype=torch.bool)  # [n]: more tokens may reach the threshold

    def limit_count(self, rows: Ints, logits: Tensor, top_k: Ints, top_p: Doubles) -> None:
        """Cut `rows` after ``top_k`` (each less than the vocabulary) tokens or, of their mass, after ``top_p``."""
        limit, share = (to_device(a, logits)[:, None] for a in (top_k, top_p))
        head = take_rows(logits, rows).topk(int(top_k.max()) + 1).values
        beyond = torch.arange(head.shape[-1], device=head.device) >= limit
        mass = _weights(head).masked_fill(beyond, 0)
        sums = mass.cumsum(-1)
        target = torch.where(share < 1, share, torch.inf) * sums[:, -1:]
        self._put(to_device(rows, logits), head, torch.minimum(_count(mass, sums, target), limit))

    def limit_mass(self, rows: Ints, logits: Tensor, totals: Tensor, top_p: Doubles) -> Ints:
        """Cut `rows` after ``top_p[rows]`` of their weights' sums, ``totals[rows]``; returns rows too flat for that.

        The weights are exp(logit - largest logit), `totals` float64 ``[n, 1]``.
        """
        whole = logits.shape[-1] <= NUCLEUS_HEAD
        head = take_rows(logits, rows).topk(logits.shape[-1] if whole else NUCLEUS_HEAD).values
        mass = _weights(head)
        sums = mass.cumsum(-1)
        target = to_device(top_p[rows], logits)[:, None] * take_rows(totals, rows)
        found = (whole | ~(sums[:, -1] < target[:, 0])).cpu().numpy()  # not ">=": what is no number is found, too
        chosen = to_device(found.nonzero()[0], logits)
        self._put(to_device(rows[found], logits), head[chosen], _count(mass, sums, target)[chosen])
        too_flat: Ints = rows[~found]
        return too_flat

    def apply(self, weights: Tensor, logits: Tensor) -> None:
        """Set `weights` ``[n, vocab_size]`` beyond the cuts to 0."""
        weights.masked_fill_(logits < self._threshold, 0)
        if self._ambiguous.any():
            self._drop_surplus(weights, logits)

    def _put(self, rows: Tensor, head: Tensor, count: Tensor) -> None:
        threshold = head.gather(-1, count - 1)
        following = head.gather(-1, count.clamp(max=head.shape[-1] - 1))
        self._threshold[rows], self._count[rows] = threshold, count
        self._ambiguous[rows] = (following == threshold).squeeze(-1)

    def _drop_surplus(self, weights: Tensor, logits: Tensor) -> None:
        """Of tokens level with the threshold those with the lowest ids stay, as many as there is room for."""
        rows = self._ambiguous.nonzero().squeeze(-1)
        logits, threshold = logits[rows], self._threshold[rows]
        room = self._count[rows] - (logits > threshold).sum(-1, keepdim=True)
        level = logits == threshold
        weights[rows] = weights[rows].masked_fill(level & (level.cumsum(-1) > room), 0)


def _weights(head: Tensor) -> Tensor:
    return (head.double() - head[:, :1]).exp()


def _count(mass: Tensor, sums: Tensor, target: Tensor) -> Tensor:
    """How many tokens of falling `mass` it takes until their `sums` reach `target`, at least one, ``[m, 1]``."""
    return (sums - mass < target).sum(-1, keepdim=True).clamp(min=1)
