"""Log probabilities in the shapes that OpenAI, and for prompts vLLM, gave them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from engine.gateway.answer_options import AnswerOptions
from engine.gateway.pieces import Piece
from engine.messages import TextLogprob, TokenTextLogprobs

_SKIPPED_CHARACTERS = 8
"""So many characters of a prompt may be lost between two tokens, as spaces are in some vocabularies."""

FLOOR = -9999.0
"""Stands for minus infinity, which JSON has not."""


class AnswerOffsets:
    """Where the tokens of one answer begin in its text, in characters.

    A part of a character begins where the character does.
    """

    def __init__(self, begin: int) -> None:
        self._at = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, token: TextLogprob) -> int:
        """The place of the next token."""
        at = self._at
        self._at += len(self._decoder.decode(token.data))
        return at


def prompt_offsets(tokens: Sequence[TextLogprob], text: str) -> list[int]:
    """Where the tokens of a prompt begin in its text.

    One that makes no text may yet stand there by its name, and one that makes some may not stand there at all: a
    start token that the client did not write.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at = _behind(text, at, decoder.decode(token.data) if token.data else token.text)
    return offsets


def _behind(text: str, at: int, piece: str) -> int:
    """Where `piece` ends if it stands at `at` or soon behind it; letters may have lost their case."""
    nearby = text[at : at + len(piece) + _SKIPPED_CHARACTERS]
    found = nearby.casefold().find(piece.casefold()) if nearby.isascii() else nearby.find(piece)
    return at if found < 0 else at + found + len(piece)


def completion_logprobs(piece: Piece, options: AnswerOptions, offsets: AnswerOffsets) -> dict[str, Any] | None:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``, those of an echoed prompt first; None for none.

    ``top_logprobs`` has an object per token, with the token itself if it is not among the most likely ones; it is
    null where no alternatives were asked for.
    """
    count = options.logprobs
    prompt = piece.prompt_logprobs if options.echo else []
    if count is None or not (prompt or piece.logprobs):
        return None
    known = [*prompt[1:], *piece.logprobs]
    unknown = [None] * len(prompt[:1])  # nothing comes before the first token that could make it likely
    tokens = [item.token for item in (*prompt, *piece.logprobs)]
    return {
        "tokens": [label(token) for token in tokens],
        "token_logprobs": unknown + [finite(item.token.logprob) for item in known],
        "top_logprobs": unknown + [_top_by_label(item, count) for item in known] if count else None,
        "text_offset": [
            *prompt_offsets([item.token for item in prompt], piece.prompt_text),
            *(offsets.next(item.token) for item in piece.logprobs),
        ],
    }


def _top_by_label(item: TokenTextLogprobs, count: int) -> dict[str, float]:
    """Of tokens with the same text the most likely one is told, but always the one that was taken."""
    by_label = {label(item.token): finite(item.token.logprob)}
    for token in item.top[:count]:
        by_label.setdefault(label(token), finite(token.logprob))
    return by_label


def chat_logprobs(piece: Piece, options: AnswerOptions) -> dict[str, Any] | None:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}, …], "refusal": null}``, or None for none."""
    if options.logprobs is None or not piece.logprobs:
        return None
    count = options.logprobs
    content = [
        _chat_token(item.token) | {"top_logprobs": [_chat_token(token) for token in item.top[:count]]}
        for item in piece.logprobs
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: TextLogprob) -> dict[str, Any]:
    return {"token": label(token), "logprob": finite(token.logprob), "bytes": list(token.data)}


def prompt_logprobs(piece: Piece, count: int) -> list[dict[str, Any] | None]:
    """vLLM's shape: null for the first token, then ``{id: {"logprob", "rank", "decoded_token"}}``, itself first."""
    return [None, *(_by_id(item, count) for item in piece.prompt_logprobs[1:])]


def _by_id(item: TokenTextLogprobs, count: int) -> dict[str, Any]:
    return {
        str(token.token_id): {"logprob": finite(token.logprob), "rank": token.rank, "decoded_token": label(token)}
        for token in (item.token, *item.top[:count])
    }


def label(token: TextLogprob) -> str:
    r"""A token as text; one with parts of characters as OpenAI writes them: ``bytes:\xe2\x80``."""
    try:
        token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(chr(b) if 0x20 <= b < 0x7F and b != 0x5C else f"\\x{b:02x}" for b in token.data)
    return token.text


def finite(logprob: float) -> float:
    """What can be written as JSON: minus infinity, and what is no number, are `FLOOR`."""
    return logprob if logprob > FLOOR else FLOOR
