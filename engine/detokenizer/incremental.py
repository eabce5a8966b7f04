"""Token ids to text, one at a time, without ever emitting half a character.

What the increments of a sequence add up to is what the tokenizers library makes of all its ids at once::

    text of the output = decode(prompt + output) − decode(prompt)

so that the space in front of the first word is there if the prompt has text, and is left out, where the decoder
leaves it out, if not. A prompt that breaks off within a character (or, with byte fallback, ends in a run of bytes)
keeps what it has of it, and the output begins behind it, with a character of its own.

Two ways lead there, depending on the tokenizer's decoder:

* byte-level BPE: every token is a fixed run of bytes, so that an incremental UTF-8 decoder is all it takes;
* everything else (byte fallback, Metaspace, WordPiece, …): what a token becomes depends on its neighbours, so
  that new tokens are decoded behind the last one before them, and that one's own text is cut off again.

      … │ context │ pending …      text of pending = decode(context + pending) − decode(context)
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine.detokenizer.pieces import Pieces


class IncrementalDetokenizer(Protocol):
    """The text of one sequence, as it grows."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token, "" for none."""
        ...

    def flush(self) -> str:
        """The rest, at the end of the sequence: bytes that never became a character are U+FFFD."""
        ...


def start_detokenizer(pieces: Pieces, prompt_ids: Sequence[int], skip_special_tokens: bool) -> IncrementalDetokenizer:
    """A detokenizer for the tokens that follow a prompt."""
    skipped = pieces.skipped(skip_special_tokens)
    if pieces.byte_level:
        return ByteLevelDetokenizer(pieces, skipped)
    return WindowDetokenizer(pieces, prompt_ids, skipped)


class ByteLevelDetokenizer:
    """For byte-level BPE (GPT-2)."""

    def __init__(self, pieces: Pieces, skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._pending = b""  # the beginning of a character, at most 3 bytes

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if token_id in self._skipped:
            return ""
        return self._decode(self._pieces.level_bytes(token_id), final=False)

    def flush(self) -> str:
        """U+FFFD for an unfinished character."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, final: bool) -> str:
        data = self._pending + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._pending = data[used:]
        return text


class WindowDetokenizer:
    """For every other decoder.

    A run of fallback bytes is held back to its end: the library reads it as characters only if it is valid as
    a whole.
    """

    def __init__(self, pieces: Pieces, prompt_ids: Sequence[int], skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._context = pieces.last_plain(reversed(prompt_ids), skipped)
        if not self._context and any(map(pieces.is_fallback_byte, prompt_ids)):
            self._context = pieces.word  # a prompt of bytes alone is text, too
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if token_id in self._skipped or self._pieces.name(token_id) is None:
            return ""
        self._pending.append(token_id)
        return "" if self._pieces.is_fallback_byte(token_id) else self._take()

    def flush(self) -> str:
        """The text of a run of bytes that was going on."""
        return self._take() if self._pending else ""

    def _take(self) -> str:
        before = self._pieces.decode(self._context)
        text = self._pieces.decode(self._context + self._pending)[len(before) :]
        self._context = self._pieces.last_plain(reversed(self._pending), self._skipped) or self._context
        self._pending = []
        return text
