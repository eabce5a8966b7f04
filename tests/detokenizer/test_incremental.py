from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.detokenizer.incremental import DetokenizerFactory
from tests import factories

KINDS = {
    "byte level": factories.byte_level_tokenizer,
    "llama": factories.llama_tokenizer,
    "wordpiece": factories.wordpiece_tokenizer,
    "metaspace": factories.metaspace_tokenizer,
    "smollm2": factories.default_tokenizer,
}
EMOJI = "👩‍👩‍👧‍👦 こんにちは 你好 ďábelské 😀😃"


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind]()


@cache
def factory_of(kind: str) -> DetokenizerFactory:
    return DetokenizerFactory(tokenizer_of(kind))


def pieces(kind: str, prompt: list[int], ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = factory_of(kind).start(prompt, skip)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@cache
def interesting_ids(kind: str) -> list[int]:
    """Special and byte tokens first, so that random choices meet them often."""
    size = tokenizer_of(kind).get_vocab_size()
    rare = tokenizer_of(kind).encode(EMOJI).ids
    return [*range(min(size, 300)), *rare, *range(0, size, 97), size + 5]


def in_context(kind: str, prompt: list[int], ids: list[int], skip: bool) -> str:
    """What the ids add to the text of the prompt, by decoding all at once."""
    tokenizer = tokenizer_of(kind)
    if kind in ("byte level", "smollm2"):
        return tokenizer.decode(ids, skip_special_tokens=skip)
    skipped = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special and skip}
    while prompt and (prompt[-1] in skipped or (tokenizer.id_to_token(prompt[-1]) or "<0x").startswith("<0x")):
        prompt = prompt[:-1]  # bytes at the end of the prompt are not continued
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    assert whole.startswith(before)
    return whole[len(before) :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_increments_add_up_to_the_decoding_of_all_ids(kind, data, skip):
    ids = st.lists(st.sampled_from(interesting_ids(kind)), max_size=12)
    prompt, output = data.draw(ids), data.draw(ids)
    if kind == "llama":
        prompt = tokenizer_of(kind).encode("a").ids + prompt  # a text begins with a space that is stripped once
    assert "".join(pieces(kind, prompt, output, skip)) == in_context(kind, prompt, output, skip)


@pytest.mark.parametrize("kind", ["byte level", "llama", "smollm2"])
def test_characters_of_several_tokens_come_whole(kind):
    tokenizer = tokenizer_of(kind)
    prompt = tokenizer.encode("a").ids
    ids = tokenizer.encode("a" + EMOJI, add_special_tokens=False).ids[
        len(tokenizer.encode("a", add_special_tokens=False).ids) :
    ]
    got = pieces(kind, prompt, ids)
    assert "".join(got) == EMOJI
    assert not any("\ufffd" in piece for piece in got)


def test_spaces_in_front_of_punctuation_survive():
    text = "    .\n a , b 's n't  ?"
    assert "".join(pieces("smollm2", [], tokenizer_of("smollm2").encode(text).ids)) == text


def test_the_space_before_the_first_word_survives():
    tokenizer = tokenizer_of("llama")
    ids = tokenizer.encode("the fox", add_special_tokens=False).ids
    assert "".join(pieces("llama", tokenizer.encode("see").ids, ids)) == " the fox"


def test_an_unfinished_character_appears_at_the_end_as_one_replacement():
    ids = tokenizer_of("byte level").encode("😀").ids
    assert pieces("byte level", [], ids[:-1])[-1] == "\ufffd"


def test_special_tokens_show_only_when_asked_for():
    ids = tokenizer_of("smollm2").encode("a<|im_end|>b").ids
    assert "".join(pieces("smollm2", [], ids)) == "ab"
    assert "".join(pieces("smollm2", [], ids, skip=False)) == "a<|im_end|>b"


def test_the_cost_of_a_token_does_not_grow_with_the_answer():
    detokenizer = factory_of("llama").start([], True)
    word = tokenizer_of("llama").token_to_id("▁the")
    for _ in range(10_000):
        detokenizer.push(word)
    assert len(detokenizer._pending) == 0
    assert len(detokenizer._context) == 1
