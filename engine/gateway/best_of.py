"""``best_of``: of the sequences made for a prompt, those with the highest mean log probability per token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from engine.gateway.answer_options import AnswerOptions
from engine.gateway.pieces import Piece


def choose_best(pieces: Sequence[Piece], options: AnswerOptions) -> list[Piece]:
    """The best `n` of each prompt, the best one first, ties in the order they were made; numbered as choices.

    `pieces` are whole sequences, `best_of` for each prompt, by index.
    """
    n, best_of = options.n, options.best_of
    if best_of == n:
        return list(pieces)
    chosen = []
    for first in range(0, len(pieces), best_of):
        ranked = sorted(pieces[first : first + best_of], key=_mean_logprob, reverse=True)
        chosen += ranked[:n]
    return [msgspec.structs.replace(piece, index=index) for index, piece in enumerate(chosen)]


def _mean_logprob(piece: Piece) -> float:
    if not piece.logprobs:
        return -math.inf
    return sum(item.token.logprob for item in piece.logprobs) / len(piece.logprobs)
