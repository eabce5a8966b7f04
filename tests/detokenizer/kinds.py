"""The kinds of tokenizer that all tests of texts are run with, and what their library makes of ids."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders

from engine.detokenizer.pieces import Pieces
from tests import factories

EMOJI = "👩‍👩‍👧‍👦 こんにちは 你好 ďábelské 😀😃"


def gemma_tokenizer() -> Tokenizer:
    """Gemma's kind: as Llama 2's, but no space is added in front of the text, nor taken away."""
    tokenizer = factories.llama_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


KINDS = {
    "byte level": factories.byte_level_tokenizer,
    "llama": factories.llama_tokenizer,
    "gemma": gemma_tokenizer,
    "wordpiece": factories.wordpiece_tokenizer,
    "metaspace": factories.metaspace_tokenizer,
    "smollm2": factories.default_tokenizer,
}
BYTE_LEVEL = ("byte level", "smollm2")
BYTE_FALLBACK = ("llama", "gemma")


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """With added tokens of all sorts, except for the real model's."""
    tokenizer = KINDS[kind]()
    if kind != "smollm2":
        tokenizer.add_tokens([AddedToken("added word"), AddedToken(" ▁x "), AddedToken("é😀")])
        tokenizer.add_special_tokens([AddedToken("<|turn end|>")])
    return tokenizer


@cache
def pieces_of(kind: str) -> Pieces:
    return Pieces(tokenizer_of(kind))


@cache
def interesting_ids(kind: str) -> list[int]:
    """Special, added and byte tokens first, so that random choices meet them often."""
    size = tokenizer_of(kind).get_vocab_size()
    rare = tokenizer_of(kind).encode(EMOJI).ids
    added = sorted(tokenizer_of(kind).get_added_tokens_decoder())
    return [*added, *range(min(size, 300)), *rare, *range(0, size, 97), size + 5]


def ids_of(kind: str, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Any tokens in any order."""
    return st.lists(st.sampled_from(interesting_ids(kind)), max_size=max_size)


def is_byte(kind: str, token_id: int) -> bool:
    return kind in BYTE_FALLBACK and (tokenizer_of(kind).id_to_token(token_id) or "").startswith("<0x")


def skipped_of(kind: str, skip: bool) -> set[int]:
    return {i for i, token in tokenizer_of(kind).get_added_tokens_decoder().items() if token.special and skip}


def in_context(kind: str, prompt: list[int], ids: list[int], skip: bool) -> str:
    """The reference: decode(prompt + ids) − decode(prompt), each decoded by the library at once.

    What the prompt has of an unfinished character or of a run of bytes is not continued by the ids: then it is
    as if the prompt ended in a word.
    """
    tokenizer = tokenizer_of(kind)
    if kind in BYTE_LEVEL:
        return tokenizer.decode(ids, skip_special_tokens=skip)
    text = [i for i in prompt if i not in skipped_of(kind, skip) and tokenizer.id_to_token(i) is not None]
    if text and is_byte(kind, text[-1]):
        prompt = [*prompt, tokenizer.token_to_id("he")]
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    assert whole.startswith(before)
    return whole[len(before) :]
