"""Token ids to text, one at a time, without ever emitting half a character.

What the increments of a sequence add up to is what the tokenizers library makes of all its ids at once. Two
ways lead there, depending on the tokenizer's decoder:

* byte-level BPE: every token is a fixed run of bytes, so that an incremental UTF-8 decoder is all it takes;
* everything else (byte fallback, Metaspace, WordPiece, …): what a token becomes depends on its neighbours, so
  that new tokens are decoded behind the last one before them, and that one's own text is cut off again.

      … │ context │ pending …      text of pending = decode(context + pending) − decode(context)
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class IncrementalDetokenizer(Protocol):
    """The text of one sequence, as it grows."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token, "" for none."""
        ...

    def flush(self) -> str:
        """The rest, at the end of the sequence: bytes that never became a character are U+FFFD."""
        ...


class DetokenizerFactory:
    """Starts detokenizers for one tokenizer, and keeps what they have in common."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = _Pieces(tokenizer)
        self._byte_level = set(_decoder_types(tokenizer)) in ({"ByteLevel"}, {"ByteLevel", "Fuse"})
        self._bytes: dict[int, bytes] = {}

    def start(self, prompt_ids: Sequence[int], skip_special_tokens: bool) -> IncrementalDetokenizer:
        """A detokenizer for the tokens that follow a prompt."""
        skipped = self._pieces.special if skip_special_tokens else frozenset()
        if self._byte_level:
            return ByteLevelDetokenizer(self._pieces, self._bytes, skipped)
        return WindowDetokenizer(self._tokenizer, self._pieces, prompt_ids, skipped)


class _Pieces:
    """What is asked about single tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_fallback = "ByteFallback" in _decoder_types(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)

    def text(self, token_id: int) -> str | None:
        """A token as it stands in the vocabulary; None for ids that it does not have."""
        piece: str | None = self._tokenizer.id_to_token(token_id)
        return piece

    def is_fallback_byte(self, token_id: int) -> bool:
        """Whether a token stands for a single byte of a character that has no token."""
        if not self._byte_fallback:
            return False
        piece = self.text(token_id)
        return piece is not None and _BYTE_TOKEN.fullmatch(piece) is not None


class ByteLevelDetokenizer:
    """For byte-level BPE (GPT-2). `known_bytes` remembers tokens already looked up; it may be shared."""

    def __init__(self, pieces: _Pieces, known_bytes: dict[int, bytes], skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._known_bytes = known_bytes
        self._skipped = skipped
        self._pending = b""  # the beginning of a character, at most 3 bytes

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if token_id in self._skipped:
            return ""
        data = self._known_bytes.get(token_id)
        if data is None:
            data = self._known_bytes[token_id] = byte_level_bytes(self._pieces.text(token_id) or "")
        return self._decode(data, final=False)

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
    a whole. A run that the prompt ends with is not continued by the output.
    """

    def __init__(
        self, tokenizer: Tokenizer, pieces: _Pieces, prompt_ids: Sequence[int], skipped: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces
        self._skipped = skipped
        self._context = self._last_plain(reversed(prompt_ids))
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if token_id in self._skipped or self._pieces.text(token_id) is None:
            return ""
        self._pending.append(token_id)
        return "" if self._pieces.is_fallback_byte(token_id) else self._take()

    def flush(self) -> str:
        """The text of a run of bytes that was going on."""
        return self._take() if self._pending else ""

    def _take(self) -> str:
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)[len(before) :]
        self._context = self._last_plain(reversed(self._pending)) or self._context
        self._pending = []
        return text

    def _decode(self, token_ids: list[int]) -> str:
        # Skipped tokens never get here; asking the library to skip them too would only cost time.
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""

    def _last_plain(self, backwards: Iterable[int]) -> list[int]:
        """The last token that has text of its own, as a list of one; [] for none."""
        for token_id in backwards:
            if token_id not in self._skipped and self._pieces.text(token_id) and not self._is_byte(token_id):
                return [token_id]
        return []

    def _is_byte(self, token_id: int) -> bool:
        return self._pieces.is_fallback_byte(token_id)


def byte_level_bytes(piece: str) -> bytes:
    """The bytes behind a byte-level token. An added token may hold other characters: those are its text."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()


def _decoder_types(tokenizer: Tokenizer) -> list[str]:
    """Names of the steps of the tokenizer's decoder."""
    decoder: dict[str, Any] | None = json.loads(tokenizer.to_str())["decoder"]
    if decoder is None:
        return []
    return [step["type"] for step in decoder.get("decoders", [decoder])]
