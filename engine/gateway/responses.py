"""Responses of the two generation endpoints, whole and in chunks.

``token_ids`` and ``prompt_token_ids`` (asked for with ``return_token_ids``) have the shapes vLLM gave them: a
completion's choice has both; a chat has ``prompt_token_ids`` at the top and ``token_ids`` in the choice. In a
stream each chunk has its own ids, and the prompt's come with the first chunk of a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.gateway.requests import Piece

DONE = b"data: [DONE]\n\n"


class Usage:
    """Counts tokens over the pieces of a response: each prompt once, each answer token once."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, piece: Piece) -> None:
        """Count a piece. A prompt is counted with the first choice made from it."""
        self._completion_tokens += len(piece.token_ids)
        if piece.prompt_token_ids is not None and piece.index % self._n == 0:
            self._prompt_tokens += len(piece.prompt_token_ids)
            self._cached_tokens += piece.cached_tokens

    def fields(self) -> dict[str, Any]:
        """The ``usage`` object."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }


class ResponseShape(Protocol):
    """How one endpoint writes an answer."""

    whole: str
    chunk: str
    id_prefix: str

    def choice(self, piece: Piece, with_ids: bool) -> dict[str, Any]:
        """A choice of a whole response."""

    def delta(self, piece: Piece, first: bool, with_ids: bool) -> dict[str, Any]:
        """A choice of a chunk; `first` is the sequence's first."""

    def top(self, piece: Piece) -> dict[str, Any]:
        """Fields outside the choice that carry ids of `piece`."""


class CompletionShape:
    """``/v1/completions``."""

    whole = chunk = "text_completion"
    id_prefix = "cmpl-"

    def choice(self, piece: Piece, with_ids: bool) -> dict[str, Any]:
        """``{"index", "text", "logprobs", "finish_reason", …}``."""
        fields = {"index": piece.index, "text": piece.text, "logprobs": None, **_ending(piece)}
        if with_ids:
            fields["token_ids"] = piece.token_ids
            fields["prompt_token_ids"] = piece.prompt_token_ids
        return fields

    def delta(self, piece: Piece, first: bool, with_ids: bool) -> dict[str, Any]:
        """The same as a whole choice, with a part of the text."""
        return self.choice(piece, with_ids)

    def top(self, piece: Piece) -> dict[str, Any]:
        """Nothing."""
        return {}


class ChatShape:
    """``/v1/chat/completions``."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def choice(self, piece: Piece, with_ids: bool) -> dict[str, Any]:
        """``{"index", "message", "logprobs", "finish_reason", …}``."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._choice(piece, "message", message, with_ids)

    def delta(self, piece: Piece, first: bool, with_ids: bool) -> dict[str, Any]:
        """``{"index", "delta", …}``; the role comes with the first."""
        delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
        return self._choice(piece, "delta", delta, with_ids)

    def top(self, piece: Piece) -> dict[str, Any]:
        """The prompt's ids, with the piece that has them."""
        return {} if piece.prompt_token_ids is None else {"prompt_token_ids": piece.prompt_token_ids}

    def _choice(self, piece: Piece, key: str, content: dict[str, Any], with_ids: bool) -> dict[str, Any]:
        fields = {"index": piece.index, key: content, "logprobs": None, **_ending(piece)}
        if with_ids:
            fields["token_ids"] = piece.token_ids
        return fields


def _ending(piece: Piece) -> dict[str, Any]:
    return {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}


class ResponseWriter:
    """Makes the bytes of one response."""

    def __init__(self, shape: ResponseShape, response_id: str, created: int, model: str, n: int) -> None:
        """`created` in seconds since the epoch."""
        self._shape = shape
        self._head = {"id": response_id, "created": created, "model": model}
        self._usage = Usage(n)
        self._begun: set[int] = set()

    def whole(self, pieces: Sequence[Piece], with_ids: bool) -> bytes:
        """The body of a response that is not streamed. `pieces` hold one complete sequence each."""
        for piece in pieces:
            self._usage.add(piece)
        return msgspec.json.encode(
            {
                **self._head,
                "object": self._shape.whole,
                "choices": [self._shape.choice(piece, with_ids) for piece in pieces],
                "usage": self._usage.fields(),
                **(self._shape.top(pieces[0]) if with_ids else {}),
            }
        )

    def events(self, pieces: Sequence[Piece], with_ids: bool, with_usage: bool) -> bytes:
        """Server-sent events, one per piece. `with_usage`: the stream ends in usage, so here it is null."""
        return b"".join(self._event(piece, with_ids, with_usage) for piece in pieces)

    def _event(self, piece: Piece, with_ids: bool, with_usage: bool) -> bytes:
        self._usage.add(piece)
        first = piece.index not in self._begun
        self._begun.add(piece.index)
        return event(
            {
                **self._head,
                "object": self._shape.chunk,
                "choices": [self._shape.delta(piece, first, with_ids)],
                **({"usage": None} if with_usage else {}),
                **(self._shape.top(piece) if with_ids else {}),
            }
        )

    def usage_event(self) -> bytes:
        """The chunk that ends a stream with usage: no choices."""
        return event({**self._head, "object": self._shape.chunk, "choices": [], "usage": self._usage.fields()})


def event(fields: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"
