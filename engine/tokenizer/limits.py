"""What the tokenizer refuses, now that the true counts are known."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from engine.config import Config
from engine.model_shape import ModelShape


class RequestRefusedError(Exception):
    """A request cannot be run; ``param`` is the field to blame, as the client knows it."""

    def __init__(self, message: str, param: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class Limits(msgspec.Struct, frozen=True):
    """The vocabulary and the longest sequence of the model that is served."""

    vocab_size: int
    max_model_len: int  # tokens of context
    longest_sequence: int  # tokens, prompt and answer; less than the context where the KV pool is small

    @classmethod
    def of(cls, shape: ModelShape, config: Config) -> Limits:
        """The limits under a configuration."""
        return cls(shape.vocab_size, shape.max_model_len(config), shape.longest_sequence(config))

    def check_prompt(self, ids: list[int], param: str) -> None:
        """Raise RequestRefusedError for a prompt that is empty, too long, or has an id without an embedding."""
        if not ids:
            raise RequestRefusedError("the prompt is empty: it has no tokens", param)
        self.check_ids(ids, param)
        if len(ids) >= self.longest_sequence:
            raise self._too_long(f"the prompt has {len(ids)} tokens, which leaves no room for an answer", param)

    def check_ids(self, ids: list[int], param: str) -> None:
        """Raise RequestRefusedError for an id that is not in the vocabulary."""
        for bad in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= bad < self.vocab_size:
                message = f"{param}: token id {bad} is not in the vocabulary (0 to {self.vocab_size - 1})"
                raise RequestRefusedError(message, param, "invalid_token_id")

    def answer_tokens(self, prompts: Iterable[list[int]], asked: int | None) -> int:
        """``max_tokens`` as a number: what was asked for if it fits, the room left if nothing was asked for.

        Raises RequestRefusedError when prompt and answer do not fit together.
        """
        longest_prompt = max(map(len, prompts))
        room = self.longest_sequence - longest_prompt
        if asked is None:
            return room
        if asked > room:
            counts = f"the prompt has {longest_prompt} tokens and max_tokens asks for {asked} more"
            raise self._too_long(f"{counts}; at most {room} fit", "max_tokens")
        return asked

    def _too_long(self, what: str, param: str) -> RequestRefusedError:
        if self.longest_sequence == self.max_model_len:
            limit = f"the longest context is {self.longest_sequence} tokens"
        else:
            limit = f"the KV cache has room for {self.longest_sequence} tokens"
        return RequestRefusedError(f"{limit}: {what}", param, "context_length_exceeded")


def check_min_tokens(at_least: int, at_most: int) -> None:
    """Raise RequestRefusedError when the shortest answer that is allowed is longer than the longest."""
    if at_least > at_most:
        raise RequestRefusedError(f"min_tokens asks for {at_least}, but at most {at_most} fit", "min_tokens")
