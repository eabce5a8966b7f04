"""Presence, frequency and repetition penalty of one sequence."""

from __future__ import annotations

import numpy as np

from engine.messages import SamplingParams
from engine.runner.sampling.arrays import Floats, Ints

_CAPACITY = 64


class Penalties:
    """The distinct tokens that are penalised, and by how much: kept up to date token by token.

    Presence and frequency penalty count sampled tokens only (OpenAI's definition): a token sampled c > 0 times
    loses ``presence + c · frequency``. The repetition penalty (Keskar et al., CTRL, 2019) is for every token of
    prompt and answer, once, however often it stands there.
    """

    def __init__(self, params: SamplingParams, prompt: list[int], sampled: list[int]) -> None:
        self.repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._place: dict[int, int] = {}
        self._ids = np.empty(_CAPACITY, np.int64)
        self._counts = np.empty(_CAPACITY, np.int64)
        self._deductions = np.empty(_CAPACITY, np.float32)
        if self.repetition != 1.0:
            for token in dict.fromkeys(prompt):
                self._add(token)
        for token in sampled:
            self.append(token)

    @property
    def ids(self) -> Ints:
        """Each token once, ``[k]``."""
        return self._ids[: len(self._place)]

    @property
    def deductions(self) -> Floats:
        """What presence and frequency take from the logits of `ids`, ``[k]``."""
        return self._deductions[: len(self._place)]

    def append(self, token: int) -> None:
        """`token` has been sampled."""
        place = self._place_of(token)
        self._counts[place] += 1
        self._deductions[place] = self._presence + self._frequency * self._counts[place]

    def _place_of(self, token: int) -> int:
        place = self._place.get(token)
        return self._add(token) if place is None else place

    def _add(self, token: int) -> int:
        place = len(self._place)
        if place == len(self._ids):
            self._grow()
        self._place[token] = place
        self._ids[place], self._counts[place], self._deductions[place] = token, 0, 0.0
        return place

    def _grow(self) -> None:
        self._ids, self._counts, self._deductions = (
            np.concatenate([a, np.empty_like(a)]) for a in (self._ids, self._counts, self._deductions)
        )
