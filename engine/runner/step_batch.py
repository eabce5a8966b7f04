"""A step plan as flat arrays: every token of the step with its position and its place in the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.messages import StepPlan
from engine.runner.slots import Ints, SlotTable


@dataclass(slots=True)
class StepBatch:
    """Rows one after another.

    ::

        row             0 (chunk of 3)   1   2
        token_ids       a  b  c          d   e
        positions       4  5  6          9   0
        first_token     0                3   4
        context_length  7                10  1
    """

    slots: Ints  # [num_rows]
    first_token: Ints  # [num_rows] index of the row's first token in the flat arrays
    num_tokens: Ints  # [num_rows]
    context_length: Ints  # [num_rows] positions that the row's last token sees, itself included
    token_ids: Ints  # [num_tokens]
    positions: Ints  # [num_tokens]
    locations: Ints  # [num_tokens] places in the KV cache


def prepare(plan: StepPlan, table: SlotTable) -> StepBatch:
    """Bring `table` up to date with the plan, and lay the plan out flat."""
    for start in plan.starting:
        table.start(start)
    for slot, block_ids in zip(plan.slots, plan.new_blocks, strict=True):
        if block_ids:
            table.append_blocks(slot, block_ids)
    slots, starts, num_tokens = (np.array(a, np.int64) for a in (plan.slots, plan.starts, plan.num_tokens))
    first_token = np.cumsum(num_tokens) - num_tokens
    row_of_token = np.repeat(np.arange(len(slots)), num_tokens)
    slot_of_token = slots[row_of_token]
    positions = np.arange(len(row_of_token)) + (starts - first_token)[row_of_token]
    token_ids = np.array(plan.token_ids, np.int64)
    return StepBatch(
        slots=slots,
        first_token=first_token,
        num_tokens=num_tokens,
        context_length=starts + num_tokens,
        token_ids=np.where(token_ids == -1, table.last_token[slot_of_token], token_ids),
        positions=positions,
        locations=table.locations(slot_of_token, positions),
    )


def context_locations(batch: StepBatch, rows: Ints, table: SlotTable, visible: Ints) -> Ints:
    """Locations of the last `visible` positions of each of `rows`' contexts, [len(rows), most visible].

    Behind a shorter row's context its last location is repeated, so that padding never reads another sequence.
    """
    lengths = batch.context_length[rows, None]
    positions = np.minimum(lengths - visible[:, None] + np.arange(visible.max()), lengths - 1)
    return table.locations(batch.slots[rows, None], positions)
