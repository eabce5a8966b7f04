"""top_k and top_p: which tokens stay in the draw.

Both come down to a count per row: the n most likely tokens stay, of equal ones those with the lowest ids. The
count needs only the largest logits in order, not where they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HEAD = 1024
"""A nucleus rarely has more tokens than this; then sorting the rest of the vocabulary is spared."""


def keep_most_likely(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`logits` ``[n, vocab_size]`` with -inf for the tokens that top_k and then top_p exclude.

    `top_k` int64 ``[n]`` (0: no limit), `top_p` float64 ``[n]`` (1: no limit; the token that reaches the mass
    stays, so there is always one). The order is that of the usual samplers: top_p counts what top_k has left.
    """
    vocab_size = logits.shape[-1]
    limited = (top_k > 0) & (top_k < vocab_size)
    nucleus = ~limited & (top_p < 1)
    logits = logits.clone()
    for rows, keep in ((limited, _keep_top_k), (nucleus, _keep_nucleus)):
        if rows.any():
            logits[rows] = keep(logits[rows], top_k[rows], top_p[rows])
    return logits


def _keep_top_k(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    largest = logits.topk(int(top_k.max())).values
    beyond = torch.arange(largest.shape[-1], device=logits.device) >= top_k[:, None]
    probabilities = largest.masked_fill(beyond, -torch.inf).softmax(-1)
    return _keep(logits, largest, torch.minimum(_nucleus_size(probabilities, top_p), top_k))


def _keep_nucleus(logits: Tensor, _top_k: Tensor, top_p: Tensor) -> Tensor:
    total = logits.logsumexp(-1, keepdim=True)
    largest = logits.topk(min(_HEAD, logits.shape[-1])).values
    if ((largest - total).exp().sum(-1, dtype=torch.float64) < top_p).any():
        largest = logits.sort(descending=True).values
    return _keep(logits, largest, _nucleus_size((largest - total).exp(), top_p))


def _nucleus_size(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """How many of the falling `probabilities` ``[n, m]`` it takes to reach `top_p` ``[n]``, at least one."""
    before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
    return (before < top_p[:, None]).sum(-1).clamp(min=1)


def _keep(logits: Tensor, largest: Tensor, count: Tensor) -> Tensor:
    """The `count` largest per row; `largest` has the row's largest logits in falling order."""
    threshold = largest.gather(-1, count[:, None] - 1)
    above, tied = logits > threshold, logits == threshold
    room = count - above.sum(-1)
    if (tied.sum(-1) > room).any():
        tied &= tied.cumsum(-1) <= room[:, None]
    return logits.masked_fill(~(above | tied), -torch.inf)
