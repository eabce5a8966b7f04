"""Log probabilities of prompts' own tokens, chunk by chunk of their prefill, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.runner.sampling.arrays import Ints
from engine.runner.sampling.logprobs import token_logprobs
from engine.runner.slots import SlotTable
from engine.runner.step_batch import StepBatch

MAX_LOGITS_BYTES = 32 * 2**20
"""Of float32 logits that exist at once."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a row of the step says about its prompt."""

    row: int
    tokens: Ints  # [n] tokens of the flat batch
    following: Ints  # [n] the prompt's token after each
    num_top: int


def score_prompts(
    batch: StepBatch, table: SlotTable, logits_after: Callable[[Ints], Tensor], vocab_size: int
) -> dict[int, list[TokenLogprobs]]:
    """Per row whose sequence asks for it: log probabilities of the prompt tokens that its chunk predicts.

    `logits_after` gives the raw float32 logits ``[n, vocab_size]`` after `n` tokens of the flat batch, for so few at
    a time that they fit MAX_LOGITS_BYTES.
    """
    chunks = _chunks(batch, table) if table.scored_prompts else []
    if not chunks:
        return {}
    tokens = np.concatenate([chunk.tokens for chunk in chunks])
    following = np.concatenate([chunk.following for chunk in chunks])
    num_top = np.concatenate([np.full(len(chunk.tokens), chunk.num_top) for chunk in chunks])
    width = max(1, MAX_LOGITS_BYTES // (4 * vocab_size))
    scores: list[TokenLogprobs] = []
    for part in (slice(start, start + width) for start in range(0, len(tokens), width)):
        scores += token_logprobs(logits_after(tokens[part]), following[part], num_top[part])
    ends = np.cumsum([len(chunk.tokens) for chunk in chunks]).tolist()
    return {chunk.row: scores[end - len(chunk.tokens) : end] for chunk, end in zip(chunks, ends, strict=True)}


def _chunks(batch: StepBatch, table: SlotTable) -> list[_Chunk]:
    starts = batch.context_length - batch.num_tokens
    chunks = []
    for row, slot in enumerate(batch.slots.tolist()):
        prompt = table.scored_prompts.get(slot)
        if prompt is None:
            continue
        following = prompt.following(int(starts[row]), int(batch.num_tokens[row]))
        if following.size:
            tokens = batch.first_token[row] + np.arange(following.size)
            chunks.append(_Chunk(row, tokens, following, prompt.num_top))
    return chunks
