"""What a token id stands for, one token at a time.

Decoding a list of ids joins tokens to text and hides where one ends; here each token keeps its own piece. A
token may hold only some bytes of a character: those are shown as ``\\xe2``, not as a replacement sign.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_MARK = "▁"

log = structlog.get_logger()


class Pieces:
    """The pieces of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._id_to_token: Callable[[int], str | None] = tokenizer.id_to_token
        self._added = set(tokenizer.get_added_tokens_decoder())
        self._byte_level = _is_byte_level(tokenizer)
        self.of = functools.lru_cache(maxsize=65536)(self._of)

    def _of(self, token_id: int) -> str:
        """The piece of one id; ``<id?>`` for one that is not in the vocabulary."""
        token = self._id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return f"<{token_id}?>"
        if token_id in self._added:
            return token
        raw = _byte_level_bytes(token) if self._byte_level else _marked_bytes(token)
        return raw.decode("utf-8", errors="backslashreplace")


class PieceShelf:
    """Tokenizers by model folder, loaded when first needed and kept; few models are served by one system."""

    def __init__(self, fallback: str = "") -> None:
        self._fallback = fallback
        self._load = functools.lru_cache(maxsize=4)(_load)

    def pieces(self, token_ids: Sequence[int], model_path: str | None) -> list[str]:
        """The piece of each id; ``<id>`` for all where the model's tokenizer cannot be read."""
        tokenizer = self._load(model_path or self._fallback)
        if tokenizer is None:
            return [f"<{token_id}>" for token_id in token_ids]
        return [tokenizer.of(token_id) for token_id in token_ids]


def _load(model_path: str) -> Pieces | None:
    file = Path(model_path) / "tokenizer.json"
    try:
        return Pieces(Tokenizer.from_file(str(file)))
    except Exception as e:  # the library raises bare Exception for a file that is missing or damaged
        log.warning("no tokenizer to show pieces with", file=str(file), error=str(e))
        return None


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return "ByteLevel" in repr(tokenizer.decoder)


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Character → byte of the byte-level alphabet: printable Latin-1 stands for itself, the rest moves to 256….

    The mapping of GPT-2's byte-level BPE (Radford et al., 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _byte_level_bytes(token: str) -> bytes:
    alphabet = _byte_alphabet()
    return b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)


def _marked_bytes(token: str) -> bytes:
    """SentencePiece's way: a mark for the space, and tokens of their own for single bytes."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()
