from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer.logprob_texts import LogprobTexts
from engine.messages import TextLogprob, TokenLogprobs
from tests.detokenizer.kinds import BYTE_LEVEL, EMOJI, KINDS, ids_of, in_context, is_byte, pieces_of, tokenizer_of


def texts_of(kind: str, skip: bool = True) -> LogprobTexts:
    pieces = pieces_of(kind)
    return LogprobTexts(pieces, pieces.skipped(skip))


def read(texts: LogprobTexts, ids: list[int]) -> list[TextLogprob]:
    return [texts.read(i, TokenLogprobs(-1.0, 2, [], [])).token for i in ids]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_the_bytes_of_the_tokens_are_those_of_the_text(kind, data, skip):
    prompt, output = data.draw(ids_of(kind)), data.draw(ids_of(kind))
    output = [i for i in output if not is_byte(kind, i)]  # invalid runs have no text of their own
    texts = texts_of(kind, skip)
    texts.pass_over(prompt)
    joined = b"".join(token.data for token in read(texts, output))
    assert joined.decode(errors="replace") == in_context(kind, prompt, output, skip)


@pytest.mark.parametrize("kind", ["byte level", "llama", "gemma", "smollm2"])
def test_parts_of_characters_keep_their_bytes(kind):
    ids = tokenizer_of(kind).encode(EMOJI).ids
    tokens = read(texts_of(kind), ids)
    assert b"".join(token.data for token in tokens).decode().lstrip() == EMOJI
    parts = [token for token in tokens if "\ufffd" in token.text]
    assert parts and all(len(token.data) < 5 for token in parts)


def test_a_token_that_makes_no_text_has_a_name_and_no_bytes():
    end = tokenizer_of("smollm2").token_to_id("<|im_end|>")
    [hidden] = read(texts_of("smollm2"), [end])
    assert (hidden.text, hidden.data) == ("<|im_end|>", b"")
    [shown] = read(texts_of("smollm2", skip=False), [end])
    assert (shown.text, shown.data) == ("<|im_end|>", b"<|im_end|>")
    last = texts_of("smollm2", skip=False).read(end, TokenLogprobs(-1.0, 1, [end], [-1.0]), ends=True)
    assert (last.token.data, last.top[0].data) == (b"", b"<|im_end|>")


def test_alternatives_are_ranked_and_stand_where_the_token_stands():
    tokenizer = tokenizer_of("llama")
    the, fox = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("▁f")
    texts = texts_of("llama")
    first = texts.read(the, TokenLogprobs(-0.1, 1, [the, fox], [-0.1, -3.0]))
    assert [(t.text, t.rank, t.logprob) for t in first.top] == [("the", 1, -0.1), ("f", 2, -3.0)]
    second = texts.read(fox, TokenLogprobs(-3.0, 2, [the, fox], [-0.1, -3.0]))
    assert second.token == TextLogprob(fox, " f", b" f", -3.0, 2)
    assert [t.text for t in second.top] == [" the", " f"]


def test_the_first_token_of_all_has_no_logprob():
    the = tokenizer_of("llama").token_to_id("▁the")
    unknown = texts_of("llama").unknown(the)
    assert (unknown.token, unknown.top) == (TextLogprob(the, "the", b"the", 0.0, 0), [])


def test_an_id_without_a_token_has_no_text():
    for kind in KINDS:
        [token] = read(texts_of(kind), [tokenizer_of(kind).get_vocab_size() + 9])
        assert (token.text, token.data) == ("", b"")


def test_byte_level_kinds_are_recognised():
    assert [kind for kind in KINDS if pieces_of(kind).byte_level] == list(BYTE_LEVEL)
