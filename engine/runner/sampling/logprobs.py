"""Log probabilities under the model's own distribution: before bias, penalties, temperature and filters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.runner.sampling.arrays import Ints, to_device

_SLICE_BYTES = 2 * 2**20
"""Of logits that a CPU works on at once: what is made of them then stays in its cache, and takes little memory."""


def token_logprobs(logits: Tensor, token_ids: Ints, num_top: Ints) -> list[TokenLogprobs]:
    """Of ``token_ids[i]``, and of the ``num_top[i]`` most likely tokens, under row i of `logits`.

    `logits` are raw, float32 ``[n, vocab_size]``. A token's rank is 1 + the number of tokens with a larger logit;
    among equals the lowest id comes first.
    """
    width = max(1, _SLICE_BYTES // (4 * logits.shape[-1])) if logits.device.type == "cpu" else max(1, len(logits))
    parts = (slice(start, start + width) for start in range(0, len(logits), width))
    return [score for part in parts for score in _score(logits[part], token_ids[part], num_top[part])]


def _score(logits: Tensor, token_ids: Ints, num_top: Ints) -> Iterator[TokenLogprobs]:
    logits = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)  # broken weights stay a row's own
    logprobs = logits.log_softmax(-1)
    column = to_device(token_ids, logits)[:, None]
    ranks = (logits > logits.gather(-1, column)).sum(-1) + 1
    top_ids = _most_likely(logits, min(int(num_top.max()), logits.shape[-1]))
    top = logprobs.gather(-1, to_device(top_ids, logits)).tolist()
    own = logprobs.gather(-1, column).squeeze(-1).tolist()
    for logprob, rank, ids, values, k in zip(own, ranks.tolist(), top_ids.tolist(), top, num_top.tolist(), strict=True):
        yield TokenLogprobs(logprob, rank, ids[:k], values[:k])


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
