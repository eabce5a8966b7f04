"""The last part of a step: from the logits of its rows to the next token of each."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.runner.sampling.arrays import Ints, to_device
from engine.runner.sampling.filters import Filters
from engine.runner.sampling.logit_rules import apply_rules
from engine.runner.sampling.logprobs import token_logprobs
from engine.runner.sampling.sampler import SamplingRows, sample
from engine.runner.slots import SlotTable


def choose_tokens(
    logits: Tensor, table: SlotTable, slots: Ints, positions: Ints
) -> tuple[Ints, dict[int, TokenLogprobs]]:
    """The next token of each of `slots`, ``[n]``, which `table` then knows; log probabilities of rows that ask.

    `logits`, raw, float32 ``[n, vocab_size]``, are overwritten; ``positions[i]`` is the token's place in its
    sequence. What changes a row's choice works in this order:

    1. logit_bias, 2. repetition penalty, 3. frequency and presence penalty, 4. bans (ends before min_tokens, bad
    words): on the raw logits, for greedy rows too. Bans that leave no token at all are ignored.
    5. temperature (up to 1e-4: the most likely token, and nothing further), 6. top_k, 7. top_p, 8. min_p, 9. the draw.

    Steps 5 to 8 stand in the order of transformers' processors; vLLM puts min_p before top_k, which differs only in
    the mass that top_p counts. Both have the bias before the penalties. Log probabilities are of before step 1.
    """
    asked = np.flatnonzero(table.num_logprobs[slots] >= 0)
    raw = logits[to_device(asked, logits)]
    if table.rules:
        rules = {row: table.rules[slot] for row, slot in enumerate(slots.tolist()) if slot in table.rules}
        apply_rules(logits, rules, positions)
    ids: Ints = sample(logits, _rows(table, slots, positions)).cpu().numpy()
    table.append_tokens(slots, ids)
    if not asked.size:
        return ids, {}
    scores = token_logprobs(raw, ids[asked], table.num_logprobs[slots[asked]])
    return ids, dict(zip(asked.tolist(), scores, strict=True))


def _rows(table: SlotTable, slots: Ints, positions: Ints) -> SamplingRows:
    filters = Filters(table.top_k[slots], table.top_p[slots], table.min_p[slots])
    return SamplingRows(table.temperature[slots], filters, table.seed[slots], positions)
