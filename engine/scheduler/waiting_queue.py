"""The waiting queue: in the order of rank, and a current reason for every wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.scheduler.sequence import Sequence, by_rank
from telemetry.events import WaitReason


class WaitingQueue:
    """Sequences in the order in which they will be admitted. A preempted one comes back to its own rank."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._explained: tuple[WaitReason, int] | None = None  # by which all reasons are up to date
        self.counts = dict.fromkeys(WaitReason, 0)
        """How many wait for each reason."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def head(self) -> Sequence | None:
        """Who is next."""
        return self._sequences[0] if self._sequences else None

    def push(self, sequence: Sequence) -> None:
        """Put a sequence where its rank belongs."""
        insort(self._sequences, sequence, key=by_rank)
        self._explained = None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, from wherever it stands. Raises KeyError when it does not wait."""
        i = bisect_left(self._sequences, sequence.rank, key=by_rank)
        if i == len(self._sequences) or self._sequences[i] is not sequence:
            raise KeyError(sequence.seq_id)
        del self._sequences[i]
        self._set_reason(sequence, None)
        self._explained = None

    def admissible(self, limit: int) -> Iterator[Sequence]:
        """Up to `limit` sequences that could be admitted now, in order.

        A choice whose prompt another one is computing is passed over: it will find the blocks ready soon.
        Behind one that awaits its last token's id (preempted with a step in flight) nobody is admitted.
        """
        begun: set[int] = set()
        for sequence in self._sequences:
            if limit <= 0 or sequence.pending:
                return
            choices = sequence.choices
            if choices is not None and choices.donor is None:
                if choices.computing or id(choices) in begun:
                    continue
                begun.add(id(choices))
            limit -= 1
            yield sequence

    def explain(self, held_up_by: WaitReason, free_slots: int) -> list[tuple[Sequence, WaitReason]]:
        """Say why each sequence waits now; returns those whose reason is a new one.

        `held_up_by` is what stops the head, and with it all who could run beside it. Those further back
        than there are `free_slots` could not run even then. A preempted sequence waits for being preempted; a
        choice that its sibling computes the prompt for waits for the budget that this takes.
        """
        if self._explained == (held_up_by, free_slots):
            return []
        self._explained = (held_up_by, free_slots)
        changed = []
        for position, sequence in enumerate(self._sequences):
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
