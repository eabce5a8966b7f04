"""The policy: one step under one token budget.

In this order: a token for every decoding sequence, so that no prefill makes a stream stall; then chunks for
running prefills and, in the order of the queue, for newly admitted sequences.
"""

from __future__ import annotations

from itertools import islice

from engine.scheduler.kv_cache import KVCache
from engine.scheduler.running_batch import RunningBatch
from engine.scheduler.sequence import NO_SLOT, Sequence
from engine.scheduler.step import Step
from engine.scheduler.waiting_queue import WaitingQueue
from telemetry.events import WaitReason


class Planner:
    """Moves sequences between queue and batch, and fills steps. Keeps no state of its own.

    Progress is certain: the first running sequence by rank is never preempted for another one, and alone it
    always finds blocks, since no sequence longer than the pool is let in.
    """

    def __init__(
        self, queue: WaitingQueue, running: RunningBatch, kv: KVCache, budget: int, prefill_share: float = 1.0
    ) -> None:
        """`budget` tokens per step; of these prefills get `prefill_share` at most while others decode."""
        self._queue = queue
        self._running = running
        self._kv = kv
        self._budget = budget
        self._prefill_budget = max(1, int(budget * prefill_share))

    def plan(self) -> Step:
        """The next step; one without rows when there is nothing to do."""
        step = Step(self._budget)
        self._plan_decodes(step)
        self._plan_prefills(step)
        return step

    def _plan_decodes(self, step: Step) -> None:
        """By rank. As a rule each of them had a row in the step before, so the budget covers them all."""
        running = self._running.sequences
        i = 0
        while i < len(running) and step.left:  # it may get shorter: preemption takes from the end
            sequence = running[i]
            i += 1
            if not sequence.decoding:
                continue
            if sequence.scheduled < sequence.capacity:
                step.add(sequence, 1, [])
            elif self._make_room(step, sequence):
                step.add(sequence, 1, self._kv.grow(sequence))
        step.decode_tokens = len(step.sequences)
        if step.decode_tokens:
            step.left = min(step.left, self._prefill_budget)

    def _make_room(self, step: Step, sequence: Sequence) -> bool:
        """Preempt the last one until a block is available. False when `sequence` must do without this time.

        That is when it was the last one itself, or when somebody's blocks come free with a step in flight.
        """
        while not self._kv.pool.available:
            if self._running.blocks_come_free:
                return False
            victim = self._running.last
            self._preempt(step, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, step: Step, victim: Sequence) -> None:
        """Preemption by recompute: its known tokens stay, so it will continue as if nothing had happened."""
        step.preempted.append((victim, victim.scheduled))
        victim.preemptions += 1
        self._kv.release(victim)
        self._running.leave(victim)
        self._running.give_back_slot(victim)
        self._queue.push(victim)

    def _plan_prefills(self, step: Step) -> None:
        claims = self._claims(step) if step.left else []
        needs = [sequence.remaining for sequence in claims]
        half = step.left // 2
        for i, sequence in enumerate(claims):
            if not step.left:
                return
            chunk = prefill_chunk(needs, i, step.left, half)
            if sequence.slot == NO_SLOT:
                if not self._admit(step, sequence):
                    return
                step.add(sequence, min(max(1, chunk), sequence.remaining), sequence.blocks.copy())
            elif chunk:
                step.add(sequence, chunk, [])

    def _claims(self, step: Step) -> list[Sequence]:
        """Running prefills and those for whom there are slots, in order."""
        claims: list[Sequence] = []
        if len(step.sequences) < len(self._running):
            running = self._running.sequences
            claims += [sequence for sequence in running if sequence.remaining and not sequence.decoding]
        claims += self._queue.admissible(self._running.free_slots)
        return claims

    def _admit(self, step: Step, sequence: Sequence) -> bool:
        """One spare block for each who runs, so that its next block does not undo the admission."""
        if not self._kv.admit(sequence, spare=len(self._running)):
            step.held_up_by = WaitReason.KV_BLOCKS
            return False
        self._queue.remove(sequence)
        self._running.join(sequence)
        step.starting.append(sequence.slot_start())
        step.admitted.append(sequence)
        return True


def prefill_chunk(needs: list[int], i: int, left: int, half: int) -> int:
    """Tokens for the i-th of several prefills, oldest first, that need `needs` tokens.

    `left` tokens of the step are left for it and those behind it; `half` is half of what there was for all.
    A prefill takes what it needs, but leaves room, up to `half`, for shorter ones behind it. So equal prompts
    run one after the other (the best mean TTFT), a short one need not wait for a long one, and the oldest
    gets on whatever comes behind it. May be 0, but not for the first.
    """
    need = needs[i]
    if need + half <= left:
        return need
    reserved = 0
    for other in islice(needs, i + 1, None):
        if other < need:
            reserved += other
        if reserved >= half:
            break
    return max(0, min(need, left - min(reserved, half)))
