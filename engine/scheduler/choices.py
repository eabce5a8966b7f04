"""What the sequences of one request with the same prompt share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.scheduler.sequence import Sequence


class Choices:
    """What the sequences of one request with the same prompt share: one computes it, the others use its blocks.

    With the prefix cache on, they find them there; without, they take them from one that still runs.
    """

    def __init__(self, shared_tokens: int) -> None:
        """`shared_tokens` of the prompt lie in full blocks; its last token does not, for after it each samples."""
        self.shared_tokens = shared_tokens
        self._computing: dict[int, Sequence] = {}  # hold blocks, not all of the prompt's computed
        self._ready: dict[int, Sequence] = {}  # hold all of them, computed

    @property
    def donor(self) -> Sequence | None:
        """One that holds all blocks that can be shared, computed."""
        return next(iter(self._ready.values()), None)

    @property
    def computing(self) -> bool:
        """Whether one is on the way to become the donor."""
        return bool(self._computing)

    def advanced(self, sequence: Sequence) -> None:
        """One of them holds blocks, and `computed` tokens of it are there."""
        if sequence.seq_id in self._ready:
            return
        if sequence.computed >= self.shared_tokens:
            self._computing.pop(sequence.seq_id, None)
            self._ready[sequence.seq_id] = sequence
        else:
            self._computing[sequence.seq_id] = sequence

    def released(self, sequence: Sequence) -> None:
        """One of them has given its blocks back."""
        self._computing.pop(sequence.seq_id, None)
        self._ready.pop(sequence.seq_id, None)
