from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from dashboard.pieces import Pieces, PieceShelf
from tests.dashboard.factories import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("model"))


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\\"), max_size=40))
def test_the_bytes_of_all_pieces_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    pieces = Pieces(tokenizer)
    joined = "".join(pieces.of(token_id) for token_id in tokenizer.encode(text).ids).encode()
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda escape: bytes.fromhex(escape[1].decode()), joined)
    assert raw.decode() == text


def test_a_split_character_is_shown_as_bytes(tokenizer: Tokenizer) -> None:
    pieces = Pieces(tokenizer)
    assert [pieces.of(i) for i in tokenizer.encode("🦊").ids] == ["\\xf0", "\\x9f", "\\xa6", "\\x8a"]


def test_special_and_unknown_ids_have_a_name(tokenizer: Tokenizer) -> None:
    pieces = Pieces(tokenizer)
    assert pieces.of(0) == "<|im_end|>"
    assert pieces.of(10**6) == "<1000000?>"
    assert pieces.of(-1) == "<-1?>"


def test_sentencepiece_marks_become_spaces_and_bytes() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁the": 0, "<0xE2>": 1, "<0x0A>": 2}, unk_token="▁the"))
    tokenizer.decoder = decoders.Metaspace()
    pieces = Pieces(tokenizer)
    assert [pieces.of(i) for i in range(3)] == [" the", "\\xe2", "\n"]


def test_without_a_tokenizer_ids_stand_for_themselves(tmp_path: Path) -> None:
    assert PieceShelf(str(tmp_path)).pieces([5, 7], None) == ["<5>", "<7>"]
