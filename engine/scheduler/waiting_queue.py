"""The waiting queue: first come, first served, and a current reason for every wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from engine.scheduler.sequence import Sequence
from telemetry.events import WaitReason


class WaitingQueue:
    """Sequences in the order in which they will be admitted."""

    def __init__(self) -> None:
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()
        self.counts = dict.fromkeys(WaitReason, 0)
        """How many wait for each reason."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    @property
    def head(self) -> Sequence | None:
        """Who is next."""
        return next(iter(self._sequences.values()), None)

    def push(self, sequence: Sequence) -> None:
        """Put a new sequence at the end."""
        self._sequences[sequence.seq_id] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """Put a preempted sequence at the head."""
        self._sequences[sequence.seq_id] = sequence
        self._sequences.move_to_end(sequence.seq_id, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, from wherever it stands. Raises KeyError when it does not wait."""
        del self._sequences[sequence.seq_id]
        self._set_reason(sequence, None)

    def explain(self, held_up_by: WaitReason, free_slots: int) -> list[tuple[Sequence, WaitReason]]:
        """Say why each sequence waits now; returns those whose reason is a new one.

        `held_up_by` is what stops the head, and with it all who could run beside it. Those further back
        than there are `free_slots` could not run even then. A preempted sequence waits for being preempted.
        """
        changed = []
        for position, sequence in enumerate(self._sequences.values()):
            reason = held_up_by if position < free_slots else WaitReason.MAX_RUNNING
            if sequence.preemptions:
                reason = WaitReason.PREEMPTED
            if sequence.wait_reason is not reason:
                self._set_reason(sequence, reason)
                changed.append((sequence, reason))
        return changed

    def _set_reason(self, sequence: Sequence, reason: WaitReason | None) -> None:
        if sequence.wait_reason is not None:
            self.counts[sequence.wait_reason] -= 1
        if reason is not None:
            self.counts[reason] += 1
        sequence.wait_reason = reason
