"""The table of all sequences that are not over."""

from __future__ import annotations

from engine.scheduler.sequence import Sequence


class SequenceTable:
    """Every sequence that is not over, by its number and by its request."""

    def __init__(self) -> None:
        self._by_id: dict[int, Sequence] = {}
        self._by_request: dict[str, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, sequence: Sequence) -> None:
        """Enter a new sequence."""
        self._by_id[sequence.seq_id] = sequence
        self._by_request.setdefault(sequence.request_id, []).append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence. Raises KeyError when it is not here, so nothing can end twice."""
        del self._by_id[sequence.seq_id]
        siblings = self._by_request[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._by_request[sequence.request_id]

    def get(self, seq_id: int) -> Sequence | None:
        """The sequence with this number, if it is not over."""
        return self._by_id.get(seq_id)

    def of_request(self, request_id: str) -> list[Sequence]:
        """The sequences of a request that are not over."""
        return list(self._by_request.get(request_id, ()))

    def of_gateways_up_to(self, incarnation: int) -> list[Sequence]:
        """The sequences that gateways up to this incarnation asked for."""
        return [sequence for sequence in self._by_id.values() if sequence.gateway <= incarnation]
