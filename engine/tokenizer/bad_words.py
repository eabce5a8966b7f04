"""Words that must not appear in an answer, as token ids."""

from __future__ import annotations

from tokenizers import Tokenizer

from engine.tokenizer.limits import RequestRefusedError


class BadWords:
    """Looks up the tokens of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word as it stands and as it is behind a space, where that is something else; each form once.

        Raises RequestRefusedError for a word that the tokenizer makes nothing of.
        """
        forms: dict[tuple[int, ...], None] = {}
        for i, word in enumerate(words):
            as_it_stands = self._encode(word, i)
            if not as_it_stands:
                raise RequestRefusedError(f"bad_words[{i}]: there are no tokens in this word", f"bad_words[{i}]")
            forms[as_it_stands] = None
            forms[self._encode(" " + word, i)] = None
        return tuple(forms)

    def _encode(self, word: str, i: int) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
        except Exception as e:  # bare ones, where a vocabulary has no token for some character
            raise RequestRefusedError(f"bad_words[{i}]: cannot be tokenized: {e}", f"bad_words[{i}]") from e
