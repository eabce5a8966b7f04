"""Words that must not be written: which tokens would complete one."""

from __future__ import annotations

from collections import defaultdict


class BadWords:
    """The forbidden words of one sequence, and as much of the sequence's end as it takes to recognise them.

    A word is a tuple of token ids. Its last token is forbidden where the ones before it are the end of the
    sequence, prompt included; a word of one token always.
    """

    def __init__(self, words: tuple[tuple[int, ...], ...], tokens: list[int]) -> None:
        """`tokens` is the sequence so far; words of one token do not need it."""
        self._always = [word[0] for word in words if len(word) == 1]
        self._by_ending: defaultdict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for *beginning, last in (word for word in words if len(word) > 1):
            self._by_ending[beginning[-1]].append((beginning, last))
        self._reach = max((len(word) - 1 for word in words), default=0)
        self._end = tokens[-self._reach :] if self._reach else []

    def append(self, token: int) -> None:
        """`token` has been sampled."""
        if self._reach:
            self._end = [*self._end, token][-self._reach :]

    def forbidden(self) -> list[int]:
        """Ids that may not come next; an id can be there twice."""
        if not self._end:
            return self._always
        begun = self._by_ending.get(self._end[-1], ())
        return self._always + [last for beginning, last in begun if self._end[-len(beginning) :] == beginning]
