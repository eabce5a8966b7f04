"""What is asked about single tokens: their name in the vocabulary, their text, their bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText(msgspec.Struct, frozen=True):
    """A token by itself: what it is called, and the bytes that it adds to a text.

    A token may be part of a character: then `text` holds U+FFFD, and only `data` says which part.
    """

    text: str
    data: bytes


class Pieces:
    """The vocabulary of one tokenizer. What was looked up once is kept: one entry per token at most."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        steps = _decoder_types(tokenizer)
        self.byte_level = set(steps) in ({"ByteLevel"}, {"ByteLevel", "Fuse"})
        self.special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        self._tokenizer = tokenizer
        self._byte_fallback = "ByteFallback" in steps
        self._bytes: dict[int, bytes] = {}
        self._inside: dict[int, TokenText] = {}
        self.word = [] if self.byte_level else self._find_word()

    def name(self, token_id: int) -> str | None:
        """A token as it stands in the vocabulary; None for ids that it does not have."""
        piece: str | None = self._tokenizer.id_to_token(token_id)
        return piece

    def skipped(self, skip_special_tokens: bool) -> frozenset[int]:
        """The tokens that make no text."""
        return self.special if skip_special_tokens else frozenset()

    def level_bytes(self, token_id: int) -> bytes:
        """The bytes of a byte-level token, b"" for an id that the vocabulary does not have."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = byte_level_bytes(self.name(token_id) or "")
        return data

    def is_fallback_byte(self, token_id: int) -> bool:
        """Whether a token stands for a single byte of a character that has no token."""
        return self._byte_fallback and _BYTE_TOKEN.fullmatch(self.name(token_id) or "") is not None

    def last_plain(self, backwards: Iterable[int], skipped: frozenset[int]) -> list[int]:
        """The last token that is more than a byte, as a list of one; [] for none."""
        for token_id in backwards:
            if token_id not in skipped and self.name(token_id) and not self.is_fallback_byte(token_id):
                return [token_id]
        return []

    def inside(self, token_id: int) -> TokenText:
        """A token behind others."""
        known = self._inside.get(token_id)
        if known is None:
            known = self._inside[token_id] = self._token_text(token_id, self.word)
        return known

    def first(self, token_id: int) -> TokenText:
        """A token that begins a text: many decoders leave a space out there."""
        return self.inside(token_id) if self.byte_level else self._token_text(token_id, [])

    def decode(self, token_ids: list[int]) -> str:
        """All of them at once, special tokens included."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""

    def _token_text(self, token_id: int, before: list[int]) -> TokenText:
        if self.byte_level:
            data = self.level_bytes(token_id)
            return TokenText(data.decode(errors="replace"), data)
        if self.is_fallback_byte(token_id):
            data = bytes([int((self.name(token_id) or "")[3:5], 16)])
            return TokenText(data.decode(errors="replace"), data)
        text = self.decode([*before, token_id])[len(self.decode(before)) :] if self.name(token_id) is not None else ""
        return TokenText(text, text.encode())

    def _find_word(self) -> list[int]:
        """Some token with visible text, to stand in front of others, as a list of one."""
        for token_id in range(self._tokenizer.get_vocab_size()):
            plain = token_id not in self.special and not self.is_fallback_byte(token_id)
            if plain and self.decode([token_id]).strip():
                return [token_id]
        return []


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
