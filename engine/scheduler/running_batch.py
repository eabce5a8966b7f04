"""The running batch: who computes, by age, and in which slot of the runner."""

from __future__ import annotations

from engine.scheduler.sequence import NO_SLOT, Sequence


class RunningBatch:
    """Admission is first come, first served and preemption takes the youngest, so age order keeps itself."""

    def __init__(self, max_num_seqs: int) -> None:
        self.sequences: list[Sequence] = []  # oldest first
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def free_slots(self) -> int:
        """How many more sequences could run."""
        return len(self._free_slots)

    @property
    def youngest(self) -> Sequence:
        """Who came last. Raises IndexError when nobody runs."""
        return self.sequences[-1]

    def join(self, sequence: Sequence) -> None:
        """Give a sequence a slot. Raises IndexError when there is none."""
        sequence.slot = self._free_slots.pop()
        self.sequences.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out; its slot stays taken until it is given back. Raises ValueError if not here."""
        self.sequences.remove(sequence)

    def give_back_slot(self, sequence: Sequence) -> None:
        """The runner works on the slot no more."""
        if sequence.slot != NO_SLOT:
            self._free_slots.append(sequence.slot)
            sequence.slot = NO_SLOT
