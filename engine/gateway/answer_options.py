"""What the client wants to be told, apart from what the engine needs to know."""

from __future__ import annotations

import msgspec


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer is written. ``logprobs`` and ``prompt_logprobs`` count alternatives per token; None: none at all.

    Of the ``best_of`` sequences made for each prompt, the best ``n`` are told. With ``prompt_only`` nothing is told
    but the prompt: the engine has to sample a token, which is thrown away.
    """

    n: int = 1
    best_of: int = 1
    echo: bool = False
    prompt_only: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    usage: bool = False  # a stream ends with a chunk that has the usage

    @property
    def engine_logprobs(self) -> int | None:
        """Alternatives per answer token that the engine is asked for; a choice of the best needs logprobs, too."""
        if self.prompt_only:
            return None
        return 0 if self.logprobs is None and self.best_of > self.n else self.logprobs

    @property
    def engine_prompt_logprobs(self) -> int | None:
        """Alternatives per prompt token that the engine is asked for."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((count for count in asked if count is not None), default=None)
