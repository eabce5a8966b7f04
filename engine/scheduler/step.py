"""One step: a batch being put together, then a plan in flight, then a record."""

from __future__ import annotations

import msgspec

from engine.messages import SlotStart, StepPlan, StepResult
from engine.scheduler.sequence import Sequence
from telemetry.events import StepKind, StepRecord, WaitReason


class Surroundings(msgspec.Struct, frozen=True):
    """What stood around the batch when it was planned. Counts of events are since the step before."""

    blocks_free: int
    blocks_active: int
    blocks_cached: int
    evicted_blocks: int
    queried_tokens: int
    hit_tokens: int
    waiting: int
    head_seq_id: int  # -1 for none
    head_reason: str  # "" for none


class Step:
    """A struct of arrays, one item per row, as in StepPlan."""

    def __init__(self, budget: int) -> None:
        """`budget` is how many tokens the step may compute."""
        self.left = budget  # tokens not given away yet
        self.sequences: list[Sequence] = []
        self.slots: list[int] = []
        self.starts: list[int] = []
        self.num_tokens: list[int] = []
        self.samples: list[bool] = []
        self.attempts: list[int] = []  # how often the row's sequence had been preempted
        self.new_blocks: list[list[int]] = []
        self.token_ids: list[int] = []
        self.starting: list[SlotStart] = []
        self.decode_tokens = 0
        self.admitted: list[Sequence] = []
        self.preempted: list[tuple[Sequence, int]] = []  # with the scheduled tokens it lost
        self.held_up_by = WaitReason.TOKEN_BUDGET  # what stopped the first sequence that was not admitted
        self.step_id = 0
        self.predicted_ns = 0
        self.planned_ns = 0
        self.submitted_ns = 0
        self.after_idle = False  # nothing was to be done before this step

    def add(self, sequence: Sequence, count: int, new_blocks: list[int]) -> None:
        """Append a row: the next `count` tokens of a sequence. -1 stands for one that has no id yet."""
        start = sequence.scheduled
        end = start + count
        known = len(sequence.tokens)
        samples = end == known + sequence.pending
        self.token_ids += sequence.tokens[start:end]
        if end > known:
            self.token_ids += [-1] * (end - max(start, known))
        sequence.scheduled = end
        sequence.pending += samples
        sequence.rows_in_flight += 1
        self.sequences.append(sequence)
        self.slots.append(sequence.slot)
        self.starts.append(start)
        self.num_tokens.append(count)
        self.samples.append(samples)
        self.attempts.append(sequence.preemptions)
        self.new_blocks.append(new_blocks)
        self.left -= count

    @property
    def prefill_tokens(self) -> int:
        """Tokens of all rows that are not decodes."""
        return len(self.token_ids) - self.decode_tokens

    @property
    def kind(self) -> StepKind:
        """What the step computes."""
        if not self.decode_tokens:
            return StepKind.PREFILL
        return StepKind.MIXED if self.prefill_tokens else StepKind.DECODE

    def plan(self) -> StepPlan:
        """The message to the runner."""
        return StepPlan(
            self.step_id,
            self.predicted_ns,
            self.starting,
            self.slots,
            self.starts,
            self.num_tokens,
            self.samples,
            self.new_blocks,
            self.token_ids,
        )

    def record(self, around: Surroundings, result: StepResult, received_ns: int, published_ns: int) -> StepRecord:
        """The journal's record. The runner's gap is idle time only if there was something to do."""
        return StepRecord(
            step_id=self.step_id,
            kind=self.kind,
            planned_ns=self.planned_ns,
            submitted_ns=self.submitted_ns,
            exec_start_ns=result.exec_start_ns,
            forward_end_ns=result.forward_end_ns,
            sampled_ns=result.sampled_ns,
            received_ns=received_ns,
            published_ns=published_ns,
            idle_ns=0 if self.after_idle else result.idle_ns,
            seq_ids=[sequence.seq_id for sequence in self.sequences],
            starts=self.starts,
            num_tokens=self.num_tokens,
            sampled=result.sampled,
            blocks_free=around.blocks_free,
            blocks_active=around.blocks_active,
            blocks_cached=around.blocks_cached,
            evicted_blocks=around.evicted_blocks,
            queried_tokens=around.queried_tokens,
            hit_tokens=around.hit_tokens,
            waiting=around.waiting,
            head_seq_id=around.head_seq_id,
            head_reason=around.head_reason,
        )
