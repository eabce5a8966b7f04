"""What the engine says of one sequence, gathered until the writer of the response takes it."""

from __future__ import annotations

import msgspec

from engine.messages import Increment, TokenTextLogprobs
from telemetry.events import FinishReason

_TOKEN_ID_BYTES = 8
_LOGPROB_BYTES = 250
"""A log probability as an object in memory, with the text and the bytes of its token."""


class Piece(msgspec.Struct):
    """News of one sequence for the client: all increments since the last piece, put together.

    What is about the prompt comes with the sequence's first piece.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenTextLogprobs]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    prompt_token_ids: list[int] | None
    cached_tokens: int
    prompt_text: str
    prompt_logprobs: list[TokenTextLogprobs]


class SequenceNews:
    """What is known of one sequence, and what of it has not been taken yet."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.delivered_tokens = 0
        self.has_news = False
        self._stop_reason: str | int | None = None
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenTextLogprobs] = []
        self._introduction: Increment | None = None

    def add(self, increment: Increment) -> None:
        """Note an increment."""
        self.has_news = True
        self._texts.append(increment.text)
        self._token_ids.extend(increment.token_ids)
        self._logprobs.extend(increment.logprobs)
        if increment.prompt_token_ids is not None:
            self._introduction = increment
        self.finish_reason = increment.finish_reason
        self._stop_reason = increment.stop_reason

    def take(self) -> Piece:
        """All news since the last call; the tokens count as delivered."""
        first = self._introduction
        piece = Piece(
            index=self.index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            logprobs=self._logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            prompt_token_ids=first.prompt_token_ids if first else None,
            cached_tokens=first.cached_tokens if first else 0,
            prompt_text=first.prompt_text if first else "",
            prompt_logprobs=first.prompt_logprobs if first else [],
        )
        self.delivered_tokens += len(self._token_ids)
        self.has_news = False
        self._clear()
        return piece


def pending_bytes(increment: Increment) -> int:
    """What an increment takes in memory while it waits, roughly."""
    logprobs = sum(1 + len(item.top) for items in (increment.logprobs, increment.prompt_logprobs) for item in items)
    return len(increment.text) + _TOKEN_ID_BYTES * len(increment.token_ids) + _LOGPROB_BYTES * logprobs


def without_answer(increment: Increment) -> Increment:
    """What is left of an increment for a client that wants only its prompt back."""
    reason = increment.finish_reason
    return msgspec.structs.replace(
        increment,
        text="",
        token_ids=[],
        logprobs=[],
        finish_reason=FinishReason.LENGTH if reason is FinishReason.STOP else reason,
        stop_reason=None,
    )
