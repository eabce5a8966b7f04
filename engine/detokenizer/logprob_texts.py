"""Log probabilities by token id, put into words."""

from __future__ import annotations

from collections.abc import Iterable

from engine.detokenizer.pieces import Pieces
from engine.messages import TextLogprob, TokenLogprobs, TokenTextLogprobs


class LogprobTexts:
    """Reads the tokens of one sequence in order, prompt and answer.

    The bytes of the tokens, one after another, are those of the text: a token that makes no text has none, and
    the first one that does may lack the space that it has elsewhere.
    """

    def __init__(self, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._begun = False

    def pass_over(self, token_ids: Iterable[int]) -> None:
        """Tokens that nobody asked about."""
        self._begun = self._begun or any(map(self._makes_text, token_ids))

    def unknown(self, token_id: int) -> TokenTextLogprobs:
        """A token without log probability, the first of all: rank 0."""
        token = self._say(token_id, 0.0, 0)
        self.pass_over([token_id])
        return TokenTextLogprobs(token, [])

    def read(self, token_id: int, logprobs: TokenLogprobs, ends: bool = False) -> TokenTextLogprobs:
        """The next token. One that `ends` the sequence by its id makes no text."""
        token = self._say(token_id, logprobs.logprob, logprobs.rank, silent=ends)
        ranked = enumerate(zip(logprobs.top_ids, logprobs.top_logprobs, strict=True), start=1)
        top = [self._say(top_id, logprob, rank) for rank, (top_id, logprob) in ranked]
        self.pass_over([token_id])
        return TokenTextLogprobs(token, top)

    def _say(self, token_id: int, logprob: float, rank: int, silent: bool = False) -> TextLogprob:
        if silent or token_id in self._skipped:
            return TextLogprob(token_id, self._pieces.name(token_id) or "", b"", logprob, rank)
        token = self._pieces.inside(token_id) if self._begun else self._pieces.first(token_id)
        return TextLogprob(token_id, token.text, token.data, logprob, rank)

    def _makes_text(self, token_id: int) -> bool:
        return token_id not in self._skipped and bool(self._pieces.name(token_id))
