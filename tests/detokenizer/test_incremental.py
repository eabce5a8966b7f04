from __future__ import annotations

from itertools import dropwhile

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.detokenizer.incremental import start_detokenizer
from tests.detokenizer.kinds import (
    EMOJI,
    KINDS,
    ids_of,
    in_context,
    is_byte,
    pieces_of,
    skipped_of,
    tokenizer_of,
)


def pieces(kind: str, prompt: list[int], ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = start_detokenizer(pieces_of(kind), prompt, skip)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_increments_add_up_to_the_decoding_of_all_ids(kind, data, skip):
    prompt, output = data.draw(ids_of(kind)), data.draw(ids_of(kind))
    assert "".join(pieces(kind, prompt, output, skip)) == in_context(kind, prompt, output, skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_without_a_broken_character_at_the_border_the_text_is_simply_the_rest(kind, data, skip):
    prompt, output = data.draw(ids_of(kind)), data.draw(ids_of(kind))
    tokenizer = tokenizer_of(kind)
    while (before := tokenizer.decode(prompt, skip_special_tokens=skip)).endswith("\ufffd"):
        prompt = prompt[:-1]
    output = list(dropwhile(lambda i: not begins_a_character(kind, i, skip), output))
    whole = tokenizer.decode(prompt + output, skip_special_tokens=skip)
    assert before + "".join(pieces(kind, prompt, output, skip)) == whole


def begins_a_character(kind: str, token_id: int, skip: bool) -> bool:
    """Whether a token has a text, and not a byte that may go on with what is in front of it."""
    visible = token_id not in skipped_of(kind, skip) and tokenizer_of(kind).id_to_token(token_id) is not None
    return visible and not is_byte(kind, token_id)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_piece_ends_within_a_character(kind, data):
    """Random characters, in the tokens of the vocabulary or one byte after another: never U+FFFD."""
    tokenizer = tokenizer_of(kind)
    text = data.draw(st.text(st.sampled_from(EMOJI + "the fox.\n"), max_size=12))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assume("\ufffd" not in tokenizer.decode(ids))
    assert not any("\ufffd" in piece for piece in pieces(kind, [], ids))


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


@pytest.mark.parametrize("kind", ["llama", "metaspace", "wordpiece"])
def test_the_space_before_the_first_word_is_there_if_the_prompt_has_text(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("the fox", add_special_tokens=False).ids
    assert "".join(pieces(kind, tokenizer.encode("dog").ids, ids)) == " the fox"
    assert "".join(pieces(kind, [], ids)) == "the fox"
    assert "".join(pieces(kind, [tokenizer.token_to_id("<s>")], ids)) == "the fox"


def test_a_prompt_of_bytes_is_text_too():
    tokenizer = tokenizer_of("llama")
    ids = tokenizer.encode("the", add_special_tokens=False).ids
    assert "".join(pieces("llama", [tokenizer.token_to_id("<0x41>")], ids)) == " the"


def test_a_character_that_the_prompt_broke_off_is_not_finished_by_the_answer():
    first, *rest = [tokenizer_of("llama").token_to_id(f"<0x{byte:02X}>") for byte in "你".encode()]
    assert "".join(pieces("llama", [first], rest)) == "\ufffd\ufffd"
    ids = tokenizer_of("byte level").encode("😀").ids
    assert "\ufffd" in "".join(pieces("byte level", ids[:1], ids[1:]))


def test_an_unfinished_character_appears_at_the_end_as_one_replacement():
    ids = tokenizer_of("byte level").encode("😀").ids
    assert pieces("byte level", [], ids[:-1])[-1] == "\ufffd"


def test_special_tokens_show_only_when_asked_for():
    ids = tokenizer_of("smollm2").encode("a<|im_end|>b").ids
    assert "".join(pieces("smollm2", [], ids)) == "ab"
    assert "".join(pieces("smollm2", [], ids, skip=False)) == "a<|im_end|>b"


def test_the_cost_of_a_token_does_not_grow_with_the_answer():
    detokenizer = start_detokenizer(pieces_of("llama"), [], True)
    word = tokenizer_of("llama").token_to_id("▁the")
    for _ in range(10_000):
        detokenizer.push(word)
    assert len(detokenizer._pending) == 0
    assert len(detokenizer._context) == 1
