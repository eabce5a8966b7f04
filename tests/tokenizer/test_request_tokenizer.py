from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from engine.config import Config
from engine.messages import ChatMessage, IdsToText, SamplingParams, SequenceSpec, Submit, TextToIds
from engine.model_shape import ModelShape
from engine.tokenizer.chat_template import ChatTemplate, load_chat_template
from engine.tokenizer.limits import Limits, RequestRefusedError
from engine.tokenizer.request_tokenizer import RequestTokenizer
from tests.factories import byte_level_tokenizer, default_model, default_tokenizer, llama_tokenizer, wordpiece_tokenizer

BYTE_LEVEL = byte_level_tokenizer()
LLAMA = llama_tokenizer()
SIZE = BYTE_LEVEL.get_vocab_size()
ALTERNATING = ChatTemplate(
    "{{ bos_token }}{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    {"bos_token": "<s>"},
)


def make_tokenizer(tokenizer=BYTE_LEVEL, template=ALTERNATING, context=100, room=100) -> RequestTokenizer:
    return RequestTokenizer(tokenizer, template, Limits(tokenizer.get_vocab_size(), context, room))


def submit(n=1, max_tokens: int | None = 8, seed=None, **prompts) -> Submit:
    return Submit("req-1", 1, n, SamplingParams(max_tokens=max_tokens, seed=seed), **prompts)


def refusal(request, tokenizer=None) -> RequestRefusedError:
    with pytest.raises(RequestRefusedError) as caught:
        (tokenizer or make_tokenizer()).enqueue(request)
    assert not re.search(r"(?<!id )-\d", str(caught.value))  # a negative count means nothing to a client
    return caught.value


def turns(*texts: str) -> tuple[ChatMessage, ...]:
    roles = ["user", "assistant"] * len(texts)
    return tuple(ChatMessage(role, text) for role, text in zip(roles, texts, strict=False))


def test_texts_become_ids_and_sequences_for_each_prompt_and_choice():
    got = make_tokenizer().enqueue(submit(n=2, texts=("the fox", "dog")))
    assert got.prompts == [BYTE_LEVEL.encode("the fox").ids, BYTE_LEVEL.encode("dog").ids]
    assert got.sequences == [SequenceSpec(i, i // 2, None) for i in range(4)]
    assert got.params.max_tokens == 8


def test_choices_differ_in_seed_and_prompts_do_not():
    got = make_tokenizer().enqueue(submit(n=2, seed=2**63 - 1, texts=("a", "b")))
    assert [s.seed for s in got.sequences] == [2**63 - 1, 0, 2**63 - 1, 0]
    assert make_tokenizer().enqueue(submit(seed=-1, texts=("a",))).sequences[0].seed == 2**63 - 1


@pytest.mark.parametrize("bad", [-1, SIZE, 2**31, 2**63])
def test_ids_outside_the_vocabulary_are_refused(bad):
    error = refusal(submit(token_ids=((1, 2), (3, bad))))
    assert error.param == "prompt"
    assert str(bad) in str(error)


@pytest.mark.parametrize("prompts", [{"texts": ("",)}, {"texts": ("a", "")}, {"token_ids": ((1,), ())}])
def test_empty_prompts_are_refused(prompts):
    assert refusal(submit(**prompts)).param == "prompt"


def test_an_empty_text_is_a_prompt_where_a_start_token_is_added():
    assert make_tokenizer(LLAMA).enqueue(submit(texts=("",))).prompts == [[LLAMA.token_to_id("<s>")]]


def test_prompt_and_answer_may_just_fill_the_context():
    prompt = tuple(range(60))
    assert make_tokenizer().enqueue(submit(max_tokens=40, token_ids=(prompt,))).params.max_tokens == 40
    error = refusal(submit(max_tokens=41, token_ids=(prompt,)))
    assert (error.param, error.code) == ("max_tokens", "context_length_exceeded")
    assert all(number in str(error) for number in ("100", "60", "41", "40"))


def test_an_answer_without_limit_gets_the_room_left():
    assert make_tokenizer().enqueue(submit(max_tokens=None, chat=turns("a"))).params.max_tokens == 98


@pytest.mark.parametrize("length", [100, 5000])
def test_a_prompt_that_leaves_no_room_is_refused_whatever_was_asked_for(length):
    for max_tokens in (1, None):
        error = refusal(submit(max_tokens=max_tokens, token_ids=((1,) * length,)))
        assert (error.param, error.code) == ("prompt", "context_length_exceeded")


def test_the_first_text_that_is_too_long_ends_the_work():
    encoded = []
    tokenizer = RequestTokenizer(BYTE_LEVEL, None, Limits(SIZE, 100, 100), lambda: encoded.append(1))
    assert refusal(submit(texts=("a b " * 100,) * 50), tokenizer).code == "context_length_exceeded"
    assert len(encoded) == 1


def test_a_small_kv_cache_is_named_as_the_limit():
    error = refusal(submit(token_ids=((1,) * 50,)), make_tokenizer(room=48))
    assert "KV cache has room for 48 tokens" in str(error)


def test_a_templates_own_refusal_reaches_the_client():
    error = refusal(submit(chat=(ChatMessage("user", "a"), ChatMessage("user", "b"))))
    assert error.param == "messages"
    assert "roles must alternate" in str(error)


def test_a_model_without_template_refuses_chats():
    assert "no chat template" in str(refusal(submit(chat=turns("a")), make_tokenizer(template=None)))


def test_the_start_token_is_there_once():
    start = LLAMA.token_to_id("<s>")
    tokenizer = make_tokenizer(LLAMA)
    for request in (submit(chat=turns("the fox")), submit(texts=("the fox",))):
        assert tokenizer.enqueue(request).prompts[0].count(start) == 1


def test_chat_ids_are_those_of_hugging_face():
    tokenizer = default_tokenizer()
    folder = default_model().path
    template = load_chat_template(Path(folder), "")
    got = make_tokenizer(tokenizer, template).enqueue(submit(chat=turns("Hello 12")))
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello 12<|im_end|>\n<|im_start|>assistant\n"
    )
    assert got.prompts == [tokenizer.encode(text, add_special_tokens=False).ids]


def test_tokenize_answers_with_ids_and_their_strings():
    reply = make_tokenizer().ids_reply(TextToIds("r", 1, text="the dog", return_token_strs=True))
    assert BYTE_LEVEL.decode(reply.token_ids) == "the dog"
    assert reply.token_strs == [BYTE_LEVEL.id_to_token(i) for i in reply.token_ids]
    assert make_tokenizer().ids_reply(TextToIds("r", 1, text="")).token_ids == []


def test_tokenize_adds_special_tokens_when_asked_to():
    tokenizer = make_tokenizer(LLAMA)
    with_start = tokenizer.ids_reply(TextToIds("r", 1, text="a")).token_ids
    without = tokenizer.ids_reply(TextToIds("r", 1, text="a", add_special_tokens=False)).token_ids
    assert with_start == [LLAMA.token_to_id("<s>"), *without]


def test_tokenize_takes_chats_as_the_engine_would():
    tokenizer = make_tokenizer(LLAMA)
    assert (
        tokenizer.ids_reply(TextToIds("r", 1, chat=turns("a"))).token_ids
        == tokenizer.enqueue(submit(chat=turns("a"))).prompts[0]
    )


def test_detokenize_shows_special_tokens_and_refuses_unknown_ids():
    tokenizer = make_tokenizer()
    ids = tuple(BYTE_LEVEL.encode("a</s>").ids)
    assert tokenizer.text_reply(IdsToText("r", 1, ids)).text == "a</s>"
    with pytest.raises(RequestRefusedError) as caught:
        tokenizer.text_reply(IdsToText("r", 1, (SIZE,)))
    assert caught.value.param == "tokens"


def test_limits_come_from_model_and_configuration():
    shape = ModelShape("LlamaForCausalLM", 2, 16, 32, 4, 2, 4, 500, 128, (1,))
    assert Limits.of(shape, Config(kv_blocks=4, block_size=16)) == Limits(500, 128, 64)
    assert Limits.of(shape, Config(max_model_len=100)) == Limits(500, 100, 100)


# --- what sampling needs of the vocabulary


def with_params(n: int = 1, **params) -> Submit:
    return Submit("req-1", 1, n, SamplingParams(max_tokens=8, **params), texts=("the fox",))


@pytest.mark.parametrize("kind", [BYTE_LEVEL, LLAMA])
def test_bad_words_are_forbidden_with_and_without_a_space(kind):
    got = make_tokenizer(kind).enqueue(with_params(bad_words=("fox", "the fox"))).params
    expected = [tuple(kind.encode(t, add_special_tokens=False).ids) for t in ("fox", " fox", "the fox", " the fox")]
    assert set(expected) <= set(got.bad_word_ids)
    assert len(set(got.bad_word_ids)) == len(got.bad_word_ids)
    assert got.bad_words == ()
    assert kind.token_to_id("<s>") not in {i for ids in got.bad_word_ids for i in ids}


@pytest.mark.parametrize("kind", [LLAMA, wordpiece_tokenizer()], ids=["llama", "wordpiece"])
def test_bad_words_are_forbidden_within_longer_words(kind):
    """Where a word has other tokens at its beginning than within another one."""
    inside = kind.encode("xfox", add_special_tokens=False).ids[len(kind.encode("x", add_special_tokens=False).ids) :]
    got = make_tokenizer(kind).enqueue(with_params(bad_words=("fox",))).params
    assert tuple(inside) in got.bad_word_ids


def test_a_bad_word_is_forbidden_once():
    wordpiece = wordpiece_tokenizer()  # spaces are no part of its words
    got = make_tokenizer(wordpiece).enqueue(with_params(bad_words=("fox", "fox", " fox"))).params
    assert got.bad_word_ids[0] == tuple(wordpiece.encode("fox").ids)
    assert len(got.bad_word_ids) == 2


def test_a_bad_word_without_tokens_is_refused_by_name():
    error = refusal(with_params(bad_words=("fox", " ")), make_tokenizer(wordpiece_tokenizer()))
    assert error.param == "bad_words[1]" and "bad_words[1]" in str(error)


def test_biased_ids_are_those_of_the_vocabulary():
    assert make_tokenizer().enqueue(with_params(logit_bias=((SIZE - 1, 1.0),))).params.logit_bias == ((SIZE - 1, 1.0),)
    error = refusal(with_params(logit_bias=((0, 1.0), (SIZE, 1.0))))
    assert (error.param, error.code) == ("logit_bias", "invalid_token_id")
    assert "logit_bias" in str(error) and str(SIZE) in str(error)


def test_an_answer_cannot_have_to_be_longer_than_it_may():
    asked = SamplingParams(max_tokens=None, min_tokens=98)
    request = Submit("req-1", 1, 1, asked, token_ids=((1, 2),))
    assert make_tokenizer().enqueue(request).params.min_tokens == 98
    error = refusal(request, make_tokenizer(context=99, room=99))
    assert error.param == "min_tokens" and "98" in str(error) and "97" in str(error)


def test_priority_and_salt_are_passed_on():
    request = msgspec.structs.replace(with_params(), priority=-3, cache_salt="ann")
    got = make_tokenizer().enqueue(request)
    assert (got.priority, got.cache_salt) == (-3, "ann")
