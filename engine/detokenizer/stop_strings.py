"""Stop strings: found wherever token borders fall, with as little text held back as possible."""

from __future__ import annotations

from functools import lru_cache

import msgspec


class Piece(msgspec.Struct, frozen=True):
    """Text that may be sent, and the stop string that ended it, or ""."""

    text: str
    stop: str = ""


class StopStrings:
    """An automaton over characters (Aho and Corasick, 1975): a state is the longest suffix of the text so far
    that is the beginning of a stop string, so that each character is looked at once.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter: list[int] = [0]  # state → that of its longest proper suffix
        self.depth: list[int] = [0]  # state → characters of a stop string seen
        self.found: list[str] = [""]  # state → the longest stop string that ends here
        for stop in stops:
            self._add(stop)
        self._link()

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._shorter[state]
        return self._next[state].get(character, 0)

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append("")
            state = self._next[state][character]
        self.found[state] = stop

    def _link(self) -> None:
        """Set the suffix links, breadth first, so that those of shorter states are there already."""
        queue = list(self._next[0].values())
        for state in queue:
            for character, child in self._next[state].items():
                self._shorter[child] = self.step(self._shorter[state], character)
                self.found[child] = self.found[child] or self.found[self._shorter[child]]
                queue.append(child)


@lru_cache(maxsize=16)
def compile_stops(stops: tuple[str, ...]) -> StopStrings:
    """The automaton for these strings; the choices of a request share it."""
    return StopStrings(stops)


class StopMatcher:
    """Finds the stop string that is complete first; of those complete at the same character, the longest.

    Whatever the pieces that the text comes in, and whatever the order of the list, the result is the same.
    """

    def __init__(self, stops: tuple[str, ...], include_stop: bool) -> None:
        self._stops = compile_stops(stops)
        self._include_stop = include_stop
        self._state = 0
        self._held = ""

    def push(self, text: str) -> Piece:
        """Add text; after a stop string was found there is nothing more to add."""
        held = len(self._held)
        text = self._held + text
        for i in range(held, len(text)):
            self._state = self._stops.step(self._state, text[i])
            stop = self._stops.found[self._state]
            if stop:
                end = i + 1 if self._include_stop else i + 1 - len(stop)
                return Piece(text[:end], stop)
        certain = len(text) - self._stops.depth[self._state]
        self._held = text[certain:]
        return Piece(text[:certain])

    def flush(self) -> str:
        """What was held back for a stop string that never came."""
        held, self._held, self._state = self._held, "", 0
        return held
