"""The running batch: who computes, by rank, and in which slot of the runner."""

from __future__ import annotations

from bisect import insort

from engine.scheduler.sequence import NO_SLOT, Sequence, by_rank


class RunningBatch:
    """Sequences in slots. One that has ended keeps its slot as long as the runner works on it."""

    def __init__(self, max_num_seqs: int) -> None:
        self.sequences: list[Sequence] = []  # lowest rank first
        self._num_slots = max_num_seqs
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def free_slots(self) -> int:
        """How many more sequences could run."""
        return len(self._free_slots)

    @property
    def blocks_come_free(self) -> bool:
        """Whether somebody gives blocks back with the result of a step in flight: it has ended, or awaits its last
        token.
        """
        ended = self._num_slots - len(self._free_slots) - len(self.sequences)
        return ended > 0 or any(not sequence.remaining for sequence in self.sequences)

    @property
    def last(self) -> Sequence:
        """Who is served last. Raises IndexError when nobody runs."""
        return self.sequences[-1]

    def join(self, sequence: Sequence) -> None:
        """Give a sequence a slot. Raises IndexError when there is none."""
        sequence.slot = self._free_slots.pop()
        insort(self.sequences, sequence, key=by_rank)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out; its slot stays taken until it is given back. Raises ValueError if not here."""
        self.sequences.remove(sequence)

    def give_back_slot(self, sequence: Sequence) -> None:
        """The runner works on the slot no more."""
        if sequence.slot != NO_SLOT:
            self._free_slots.append(sequence.slot)
            sequence.slot = NO_SLOT
