"""What the runner keeps per slot: block table, last token, sampling parameters. Host memory, struct of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.messages import SlotStart

Ints = NDArray[np.int64]


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
        self.seed = np.zeros(num_slots, np.uint64)

    def start(self, start: SlotStart) -> None:
        """Give a slot to a sequence: its block table is empty again."""
        slot = start.slot
        self.num_blocks[slot] = 0
        self.temperature[slot] = start.params.temperature
        self.top_p[slot] = start.params.top_p
        self.top_k[slot] = start.params.top_k
        self.seed[slot] = start.seed

    def append_blocks(self, slot: int, block_ids: list[int]) -> None:
        """Make a slot's block table longer. Raises ValueError when it would get longer than any may be."""
        first = int(self.num_blocks[slot])
        self.block_tables[slot, first : first + len(block_ids)] = block_ids
        self.num_blocks[slot] = first + len(block_ids)

    def locations(self, slots: Ints, positions: Ints) -> Ints:
        """Where the KV cache keeps `positions` of `slots`: block id · block size + offset in the block."""
        blocks, offsets = np.divmod(positions, self.block_size)
        return self.block_tables[slots, blocks] * np.int64(self.block_size) + offsets
