"""top_p for flat distributions, whose nucleus has thousands of tokens: a histogram instead of a sort."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.runner.sampling.arrays import Doubles, Ints, to_device

_BINS = 2048
_BINS_PER_NAT = 64
"""Together they cover 32 nats below the largest logit; what is less likely than e^-32 shares the last bin."""


def drop_outside_nucleus(weights: Tensor, logits: Tensor, totals: Tensor, top_p: Doubles) -> None:
    """Set the weights outside each row's nucleus to 0, in place.

    `weights` float32 ``[n, vocab_size]`` are exp(logit - the row's largest logit), `totals` float64 ``[n, 1]`` their
    sums. Tokens fall into bins by how far their logit is below the largest. The running mass of the bins tells in
    which bin the nucleus ends, and only that bin's tokens, a few hundred, are put in order.
    """
    distance = logits.amax(-1, keepdim=True) - logits
    bins = distance.mul_(_BINS_PER_NAT).clamp_(max=_BINS - 1).long()
    mass = torch.zeros(len(weights), _BINS, dtype=torch.float64, device=weights.device)
    mass.scatter_add_(-1, bins, weights.double())
    sums = mass.cumsum(-1)
    target = to_device(top_p, weights)[:, None] * totals
    last = torch.searchsorted(sums, target).clamp(max=_BINS - 1)
    room = target - (sums - mass).gather(-1, last)
    rows, ids = (bins == last).nonzero(as_tuple=True)
    surplus = _surplus(weights, logits, rows, ids, room)
    weights.masked_fill_(bins > last, 0)
    weights[surplus] = 0


def _surplus(weights: Tensor, logits: Tensor, rows: Tensor, ids: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Of the tokens of the border bins, ``(rows, ids)``, those that come when each row's `room` ``[n, 1]`` is full."""
    mass, falling = weights[rows, ids].double().cpu().numpy(), -logits[rows, ids].cpu().numpy()
    row_of, id_of = rows.cpu().numpy(), ids.cpu().numpy()
    order = np.lexsort((id_of, falling, row_of))
    ends = np.searchsorted(row_of, np.arange(len(weights)), side="right")
    late = [
        _late(order[end - size : end], mass, limit)
        for end, size, limit in zip(ends, np.diff(ends, prepend=0), room[:, 0].tolist(), strict=True)
    ]
    places = to_device(np.concatenate(late), weights)
    return rows[places], ids[places]


def _late(order: Ints, mass: Doubles, room: float) -> Ints:
    """Those of `order` before which `room` is already full."""
    mass = mass[order]
    return order[np.cumsum(mass) - mass >= room]
