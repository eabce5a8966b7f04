"""What the runner keeps per slot: block table, last token, what sampling needs. Host memory, struct of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.messages import SlotStart
from engine.runner.sampling.logit_rules import LogitRules
from engine.runner.sampling.scored_prompt import ScoredPrompt

Ints = NDArray[np.int64]

NO_LOGPROBS = -1


class SlotTable:
    """State of all slots. A slot's values are those of the sequence that started there last."""

    def __init__(self, num_slots: int, max_blocks: int, block_size: int) -> None:
        """`max_blocks` is the longest block table a sequence can have."""
        self.block_size = block_size
        self.block_tables = np.zeros((num_slots, max_blocks), np.int32)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.last_token = np.zeros(num_slots, np.int64)
        self.temperature = np.zeros(num_slots, np.float32)
        self.top_p = np.ones(num_slots, np.float64)
        self.top_k = np.zeros(num_slots, np.int64)
        self.min_p = np.zeros(num_slots, np.float64)
        self.seed = np.zeros(num_slots, np.uint64)
        self.num_logprobs = np.full(num_slots, NO_LOGPROBS, np.int64)
        # Only of slots whose sequences ask for it.
        self.rules: dict[int, LogitRules] = {}
        self.scored_prompts: dict[int, ScoredPrompt] = {}

    def start(self, start: SlotStart) -> None:
        """Give a slot to a sequence: its block table is empty again, and nothing is left of the former one."""
        slot, params = start.slot, start.params
        self.num_blocks[slot] = 0
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.top_k[slot] = params.top_k
        self.min_p[slot] = params.min_p
        self.seed[slot] = start.seed
        self.num_logprobs[slot] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.rules.pop(slot, None)
        if rules := LogitRules.of(start):
            self.rules[slot] = rules
        self.scored_prompts.pop(slot, None)
        if scored := ScoredPrompt.of(start):
            self.scored_prompts[slot] = scored

    def append_blocks(self, slot: int, block_ids: list[int]) -> None:
        """Make a slot's block table longer. Raises ValueError when it would get longer than any may be."""
        first = int(self.num_blocks[slot])
        self.block_tables[slot, first : first + len(block_ids)] = block_ids
        self.num_blocks[slot] = first + len(block_ids)

    def append_tokens(self, slots: Ints, token_ids: Ints) -> None:
        """Each of `slots` has sampled a token, ``[n]`` each."""
        self.last_token[slots] = token_ids
        if not self.rules:
            return
        for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
            if slot in self.rules:
                self.rules[slot].append(token)

    def locations(self, slots: Ints, positions: Ints) -> Ints:
        """Where the KV cache keeps `positions` of `slots`: block id · block size + offset in the block."""
        blocks, offsets = np.divmod(positions, self.block_size)
        return self.block_tables[slots, blocks] * np.int64(self.block_size) + offsets
