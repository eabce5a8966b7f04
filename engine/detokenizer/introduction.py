"""What the first increment of a sequence says about its prompt."""

from __future__ import annotations

import msgspec

from engine.detokenizer.logprob_texts import LogprobTexts
from engine.detokenizer.pieces import Pieces
from engine.messages import PromptLogprobs, SequenceStart, TokenTextLogprobs


class Introduction(msgspec.Struct, frozen=True):
    """The prompt, or (all empty) nothing because it has been told."""

    token_ids: list[int] | None = None
    cached_tokens: int = 0
    text: str = ""
    logprobs: list[TokenTextLogprobs] = []


TOLD = Introduction()


class PromptReader:
    """Collects log probabilities of a prompt as they come, and introduces the prompt once."""

    def __init__(self, start: SequenceStart, pieces: Pieces, logprobs: LogprobTexts) -> None:
        self._start = start
        self._pieces = pieces
        self._texts = logprobs
        self._told = False
        self._logprobs: list[TokenTextLogprobs] = []
        if start.params.prompt_logprobs is not None:
            self._logprobs.append(logprobs.unknown(start.prompt_token_ids[0]))

    def read(self, message: PromptLogprobs) -> None:
        """The next part. It is put into words at once, so that a long prompt's work is spread over its chunks."""
        ids = self._start.prompt_token_ids[message.start : message.start + len(message.items)]
        self._logprobs += [self._texts.read(i, item) for i, item in zip(ids, message.items, strict=True)]

    def introduce(self) -> Introduction:
        """The prompt at the first call, `TOLD` at later ones."""
        if self._told:
            return TOLD
        self._told = True
        start = self._start
        self._texts.pass_over(start.prompt_token_ids)
        logprobs, self._logprobs = self._logprobs, []
        return Introduction(start.prompt_token_ids, start.cached_tokens, self._text(), logprobs)

    def _text(self) -> str:
        params = self._start.params
        if not params.echo:
            return ""
        skipped = self._pieces.skipped(params.skip_special_tokens)
        return self._pieces.decode([i for i in self._start.prompt_token_ids if i not in skipped])
