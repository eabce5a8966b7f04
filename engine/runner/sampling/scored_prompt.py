"""A prompt whose own tokens are to be scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.messages import SlotStart
from engine.runner.sampling.arrays import Ints


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """The prompt's ids, and how many of the most likely tokens to give with each."""

    token_ids: Ints  # [num_prompt]
    num_top: int

    @classmethod
    def of(cls, start: SlotStart) -> ScoredPrompt | None:
        """None where the sequence does not ask for it."""
        num_top = start.params.prompt_logprobs
        return None if num_top is None else cls(np.array(start.token_ids[: start.num_prompt], np.int64), num_top)

    def following(self, start: int, num_tokens: int) -> Ints:
        """The prompt tokens that a chunk of `num_tokens` at position `start` predicts.

        ::

            prompt     a  b  c  d  e
            chunk            ^  ^        start 2, 2 tokens
            following           d  e     the prompt's last token predicts no prompt token
        """
        return self.token_ids[start + 1 : start + num_tokens + 1]
