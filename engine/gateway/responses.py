"""Responses of the two generation endpoints, whole and in chunks.

``token_ids`` and ``prompt_token_ids`` (asked for with ``return_token_ids``) and ``prompt_logprobs`` have the shapes
vLLM gave them: a completion's choice has all of them; a chat has those of the prompt at the top and ``token_ids`` in
the choice. In a stream each chunk has its own ids and log probabilities, and the prompt's come with the first chunk
of a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from engine.gateway.answer_options import AnswerOptions
from engine.gateway.best_of import choose_best
from engine.gateway.logprobs import AnswerOffsets, chat_logprobs, completion_logprobs, prompt_logprobs
from engine.gateway.pieces import Piece

DONE = b"data: [DONE]\n\n"


class Usage:
    """Counts tokens over the pieces of a response: each prompt once, each token that was made once."""

    def __init__(self, best_of: int) -> None:
        self._best_of = best_of
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, piece: Piece) -> None:
        """Count a piece. A prompt is counted with the first sequence made from it."""
        self._completion_tokens += len(piece.token_ids)
        if piece.prompt_token_ids is not None and piece.index % self._best_of == 0:
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
    """How one endpoint writes an answer. A `piece` has the echoed prompt in its text."""

    whole: str
    chunk: str
    id_prefix: str

    def choice(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets) -> dict[str, Any]:
        """A choice of a whole response. `offsets` are those of this sequence."""

    def delta(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets, first: bool) -> dict[str, Any]:
        """A choice of a chunk; `first` is the sequence's first."""

    def top(self, piece: Piece, options: AnswerOptions) -> dict[str, Any]:
        """Fields outside the choice that are about the prompt of `piece`."""


class CompletionShape:
    """``/v1/completions``."""

    whole = chunk = "text_completion"
    id_prefix = "cmpl-"

    def choice(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets) -> dict[str, Any]:
        """``{"index", "text", "logprobs", "finish_reason", …}``."""
        logprobs = completion_logprobs(piece, options, offsets)
        fields = {"index": piece.index, "text": piece.text, "logprobs": logprobs, **_ending(piece)}
        if options.token_ids:
            fields["token_ids"] = piece.token_ids
            fields["prompt_token_ids"] = piece.prompt_token_ids
        return fields | _prompt_logprobs(piece, options)

    def delta(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets, first: bool) -> dict[str, Any]:
        """The same as a whole choice, with a part of the text."""
        return self.choice(piece, options, offsets)

    def top(self, piece: Piece, options: AnswerOptions) -> dict[str, Any]:
        """Nothing."""
        return {}


class ChatShape:
    """``/v1/chat/completions``."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def choice(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets) -> dict[str, Any]:
        """``{"index", "message", "logprobs", "finish_reason", …}``."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._choice(piece, "message", message, options)

    def delta(self, piece: Piece, options: AnswerOptions, offsets: AnswerOffsets, first: bool) -> dict[str, Any]:
        """``{"index", "delta", …}``; the role comes with the first."""
        delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
        return self._choice(piece, "delta", delta, options)

    def top(self, piece: Piece, options: AnswerOptions) -> dict[str, Any]:
        """What is about the prompt, with the piece that has it."""
        if piece.prompt_token_ids is None:
            return {}
        ids = {"prompt_token_ids": piece.prompt_token_ids} if options.token_ids else {}
        return ids | _prompt_logprobs(piece, options)

    def _choice(self, piece: Piece, key: str, content: dict[str, Any], options: AnswerOptions) -> dict[str, Any]:
        logprobs = chat_logprobs(piece, options)
        fields = {"index": piece.index, key: content, "logprobs": logprobs, **_ending(piece)}
        if options.token_ids:
            fields["token_ids"] = piece.token_ids
        return fields


def _ending(piece: Piece) -> dict[str, Any]:
    return {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}


def _prompt_logprobs(piece: Piece, options: AnswerOptions) -> dict[str, Any]:
    if options.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": prompt_logprobs(piece, options.prompt_logprobs)}


class ResponseHead(msgspec.Struct, frozen=True):
    """What all chunks of a response begin with; ``created`` in seconds since the epoch."""

    id: str
    created: int
    model: str

    def fields(self) -> dict[str, Any]:
        """For the JSON object."""
        return msgspec.structs.asdict(self)


class ResponseWriter:
    """Makes the bytes of one response."""

    def __init__(
        self, shape: ResponseShape, head: ResponseHead, options: AnswerOptions, prompt_texts: Sequence[str] = ()
    ) -> None:
        """`prompt_texts` are the prompts as the client sent them, where they were texts: so they are echoed."""
        self._shape = shape
        self._head = head.fields()
        self._options = options
        self._prompt_texts = prompt_texts
        self._usage = Usage(options.best_of)
        self._offsets: dict[int, AnswerOffsets] = {}  # of the sequences that have begun

    def whole(self, pieces: Sequence[Piece]) -> bytes:
        """The body of a response that is not streamed. `pieces` hold one complete sequence each."""
        for piece in pieces:
            self._usage.add(piece)
            self._echo(piece)
        told = choose_best(pieces, self._options)
        return msgspec.json.encode(
            {
                **self._head,
                "object": self._shape.whole,
                "choices": [self._shape.choice(piece, self._options, _offsets(piece)) for piece in told],
                "usage": self._usage.fields(),
                **self._shape.top(told[0], self._options),
            }
        )

    def events(self, pieces: Sequence[Piece]) -> bytes:
        """Server-sent events, one per piece."""
        return b"".join(map(self._event, pieces))

    def _event(self, piece: Piece) -> bytes:
        self._usage.add(piece)
        first = piece.index not in self._offsets
        if first:
            self._echo(piece)
            self._offsets[piece.index] = _offsets(piece)
        return event(
            {
                **self._head,
                "object": self._shape.chunk,
                "choices": [self._shape.delta(piece, self._options, self._offsets[piece.index], first)],
                **({"usage": None} if self._options.usage else {}),
                **self._shape.top(piece, self._options),
            }
        )

    def usage_event(self) -> bytes:
        """The chunk that ends a stream with usage: no choices."""
        return event({**self._head, "object": self._shape.chunk, "choices": [], "usage": self._usage.fields()})

    def _echo(self, piece: Piece) -> None:
        """Put the prompt in front of a sequence's first piece, where that is asked for."""
        if not self._options.echo:
            return
        if self._prompt_texts:
            piece.prompt_text = self._prompt_texts[piece.index // self._options.best_of]
        piece.text = piece.prompt_text + piece.text


def _offsets(first: Piece) -> AnswerOffsets:
    """Of an answer that begins with this piece; an echoed prompt comes before it."""
    return AnswerOffsets(len(first.prompt_text))


def event(fields: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"
