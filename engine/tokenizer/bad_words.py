"""Words that must not appear in an answer, as token ids."""

from __future__ import annotations

from tokenizers import Tokenizer

from engine.tokenizer.limits import RequestRefusedError

_LETTER = "x"


class BadWords:
    """Looks up the tokens of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word as it stands, behind a space and within a longer word, where those are something else.

        Raises RequestRefusedError for a word that the tokenizer makes nothing of.
        """
        forms: dict[tuple[int, ...], None] = {}
        for i, word in enumerate(words):
            as_it_stands = self._encode(word, i)
            if not as_it_stands:
                raise RequestRefusedError(f"bad_words[{i}]: there are no tokens in this word", f"bad_words[{i}]")
            forms[as_it_stands] = None
            forms[self._encode(" " + word, i)] = None
            if inside := self._inside(word, i):
                forms[inside] = None
        return tuple(forms)

    def _inside(self, word: str, i: int) -> tuple[int, ...]:
        """The word behind a letter, where the tokens leave the two apart; vocabularies with a space in front of every
        word have other tokens there.
        """
        letter, both = self._encode(_LETTER, i), self._encode(_LETTER + word, i)
        return both[len(letter) :] if both[: len(letter)] == letter else ()

    def _encode(self, word: str, i: int) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(word, add_special_tokens=False).ids)
        except Exception as e:  # bare ones, where a vocabulary has no token for some character
            raise RequestRefusedError(f"bad_words[{i}]: cannot be tokenized: {e}", f"bad_words[{i}]") from e
