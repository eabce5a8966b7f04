"""The tokens of one sequence: its line of the token log, with a piece of text for each id."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from dashboard.pieces import PieceShelf
from telemetry.queries import Row

_T = TypeVar("_T")

SLOW_FACTOR = 3.0
"""A gap this many times the median is marked."""


class Token(msgspec.Struct, frozen=True):
    """One output token. ``at_s`` since received; ``gap_s`` since the one before, None for the first."""

    index: int
    id: int
    piece: str
    at_s: float | None
    gap_s: float | None
    step_id: int | None
    slow: bool


class PromptToken(msgspec.Struct, frozen=True):
    """One token of the prompt."""

    id: int
    piece: str


class SequenceTokens(msgspec.Struct, frozen=True):
    """A sequence's prompt and output. The median gap is None for fewer than two tokens."""

    prompt: list[PromptToken]
    output: list[Token]
    median_gap_s: float | None
    longest_gap_s: float | None


def read_line(line: Row, shelf: PieceShelf, model_path: str) -> SequenceTokens:
    """The tokens of a line of the token log (its fields: see observability.md)."""
    prompt_ids, output_ids = line.get("prompt_token_ids") or [], line.get("output_token_ids") or []
    times = [at / 1000 for at in line.get("token_times_ms") or []]
    prompt = [PromptToken(*pair) for pair in zip(prompt_ids, shelf.pieces(prompt_ids, model_path), strict=True)]
    gaps = [None, *(b - a for a, b in itertools.pairwise(times))]
    known = [gap for gap in gaps if gap is not None]
    median = statistics.median(known) if known else None
    output = _output(output_ids, shelf.pieces(output_ids, model_path), times, gaps, line.get("step_ids") or [], median)
    return SequenceTokens(prompt, output, median, max(known, default=None))


def _output(
    ids: list[int],
    pieces: list[str],
    times: list[float],
    gaps: list[float | None],
    steps: list[int],
    median: float | None,
) -> list[Token]:
    limit = SLOW_FACTOR * median if median else float("inf")
    return [
        Token(
            index=i,
            id=token_id,
            piece=piece,
            at_s=_at(times, i),
            gap_s=(gap := _at(gaps, i)),
            step_id=_at(steps, i),
            slow=gap is not None and gap > limit,
        )
        for i, (token_id, piece) in enumerate(zip(ids, pieces, strict=True))
    ]


def _at(values: Sequence[_T], i: int) -> _T | None:
    return values[i] if i < len(values) else None
