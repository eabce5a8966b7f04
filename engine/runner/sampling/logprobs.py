"""Log probabilities under the model's own distribution: before bias, penalties, temperature and filters."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.runner.sampling.arrays import Ints, to_device


def token_logprobs(logits: Tensor, token_ids: Ints, num_top: Ints) -> list[TokenLogprobs]:
    """Of ``token_ids[i]``, and of the ``num_top[i]`` most likely tokens, under row i of `logits`.

    `logits` are raw, float32 ``[n, vocab_size]``. A token's rank is 1 + the number of tokens with a larger logit;
    among equals the lowest id comes first.
    """
    logprobs = logits.log_softmax(-1)
    column = to_device(token_ids, logits)[:, None]
    ranks = (logits > logits.gather(-1, column)).sum(-1) + 1
    top_ids = _most_likely(logits, min(int(num_top.max()), logits.shape[-1]))
    top = logprobs.gather(-1, to_device(top_ids, logits)).tolist()
    own = logprobs.gather(-1, column).squeeze(-1).tolist()
    counts, ids = num_top.tolist(), top_ids.tolist()
    return [
        TokenLogprobs(own[i], rank, ids[i][: counts[i]], top[i][: counts[i]]) for i, rank in enumerate(ranks.tolist())
    ]


def _most_likely(logits: Tensor, count: int) -> Ints:
    """Ids of the `count` largest per row, ``[n, count]``, falling, of equal ones the lowest first.

    `topk` leaves open which of several equals it takes, and bfloat16 heads give many; so it only tells where to
    cut, and what is not below the cut is sorted here.
    """
    if count == 0:
        return np.empty((len(logits), 0), np.int64)
    cut = logits.topk(count).values[:, -1:]
    candidates = (logits >= cut).nonzero(as_tuple=True)
    values = logits[candidates].cpu().numpy()
    rows, ids = (c.cpu().numpy() for c in candidates)
    order = np.lexsort((ids, -values, rows))
    first_of_row = np.searchsorted(rows, np.arange(len(logits)))
    picked: Ints = ids[order][first_of_row[:, None] + np.arange(count)]
    return picked
