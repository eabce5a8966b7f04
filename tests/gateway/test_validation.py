"""Every field of the two bodies: what is accepted, and what is refused with a 400 that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gateway.errors import ApiError
from engine.gateway.generation_request import GenerationRequest, read_chat_completion, read_completion
from engine.gateway.prompts import ContextLimit
from engine.gateway.schemas import INT64_MAX, INT64_MIN

LIMIT = ContextLimit(tokens=100, token_chars=10)


def completion(**body: Any) -> GenerationRequest:
    return read_completion(json.dumps({"model": "m", "prompt": "Hi", **body}).encode(), LIMIT)


def chat(messages: Any = None, **body: Any) -> GenerationRequest:
    messages = [{"role": "user", "content": "Hi"}] if messages is None else messages
    return read_chat_completion(json.dumps({"model": "m", "messages": messages, **body}).encode(), LIMIT)


def refused(read: Any, *args: Any, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as e:
        read(*args, **body)
    assert e.value.status == 400 and e.value.kind == "invalid_request_error"
    return e.value


INTEGERS = ["5", True, 1.5, 1.0, [], {}]
WRONG = {
    "model": [None, 1, "", "x" * 257],
    "max_tokens": [-1, 0, 2**63, *INTEGERS],
    "temperature": [-0.1, 1e7, "1", True, []],
    "top_p": [0, -0.1, 1.1, "1", True],
    "top_k": [-2, 2**31, *INTEGERS],
    "seed": [INT64_MIN - 1, INT64_MAX + 1, 2**64, "42", 1.5, True],
    "n": [0, -1, 17, 10**6, *INTEGERS],
    "stop": ["", [""], ["a", ""], ["a"] * 17, ["a"] * 10_000, "x" * 1001, "x" * 2**20, [1], 1],
    "stop_token_ids": [[-1], [2**31], [True], ["1"], [1] * 129, 1],
    "ignore_eos": [1, "true"],
    "include_stop_str_in_output": [1],
    "skip_special_tokens": [0],
    "stream": [1, "true"],
    "stream_options": [{"include_usage": 1}, {"other": True}, []],
    "return_token_ids": [1],
    "user": [1, "x" * 1001],
    "presence_penalty": ["0", True, -2.1, 2.1],
    "frequency_penalty": [-2.1, 3],
    "repetition_penalty": [0, -1, 0.001, 101],
    "min_p": [1.1, -0.1],
    "min_tokens": [-1, 2**63, *INTEGERS],
    "echo": [0, "true"],
    "best_of": [0, 17, 10**6, *INTEGERS],
    "logit_bias": [
        [],
        *({key: 1} for key in ("", "a", "-1", "05", " 5", "1.0", str(2**31), "9" * 5000, "\u0663")),
        *({"5": bias} for bias in (101, -100.5, "1", None, True)),
        {str(i): 1 for i in range(1025)},
    ],
    "bad_words": ["word", [""], [1], ["x" * 201], ["x"] * 129],
    "logprobs": [-1, 21, 10**6, 1.5, "1", []],
    "prompt_logprobs": [-1, 21, True, 1.5],
    "priority": [-101, 101, True, 1.0],
    "cache_salt": ["", "x" * 257, 1],
    "timeout": [0, -1, 86_401, "5", True],
    "metadata": [{"a": "b"}],
    "store": [True],
    "response_format": [{"type": "json_object"}, {"type": "text", "x": 1}],
    "use_beam_search": [True],
    "truncate_prompt_tokens": [5],
    "unheard_of": [None, 1],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values])
def test_a_wrong_value_is_refused_and_the_field_named(field: str, value: Any) -> None:
    for read in (completion, chat):
        error = refused(read, **{field: value})
        assert error.param is not None and error.param.startswith(field)
        assert field in error.message
        if field == "max_tokens":
            assert "-" not in error.message.split(", got ")[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": "5"}, 'max_tokens: a whole number of at least 0 is needed, got "5"'),
        ({"max_tokens": 2**63}, f"max_tokens: a whole number between 0 and {2**63 - 1} is needed, got {2**63}"),
        ({"max_tokens": 0}, "max_tokens: 0 is only for echo; at least 1 is needed"),
        ({"logit_bias": {"x": 1}}, "logit_bias: keys are token ids like \"50\", got 'x'"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]: a number between -100 and 100 is needed"),
        ({"timeout": 0}, "timeout: a number above 0 and at most 86400 is needed, got 0"),
        ({"logprobs": True}, "logprobs: a whole number between 0 and 20 is needed, got true"),
        ({"min_tokens": 17}, "min_tokens: 17 is more than max_tokens, 16"),
        ({"n": 2, "best_of": 1}, "best_of: 1 is less than n, 2"),
        ({"top_p": 0}, "top_p: a number above 0 and at most 1 is needed, got 0"),
        ({"n": None, "seed": True}, "seed: a whole number of 64 bits is needed, got true"),
        ({"stop": [""]}, 'stop[0]: a text of 1 to 1000 characters is needed, got ""'),
        ({"stop": "x" * 1001}, "stop: a text of 1 to 1000 characters or a list of at most 16 texts is needed, "),
        ({"prompt": ["a", 5]}, "prompt[1]: a text is needed, got 5"),
        ({"stream": 1}, "stream: true or false is needed, got 1"),
    ],
)
def test_a_refusal_says_in_words_what_is_needed(body: dict[str, Any], message: str) -> None:
    assert refused(completion, **body).message.startswith(message)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: a list of one or more messages is needed, got []"),
        (["Hi"], 'messages[0]: an object is needed, got "Hi"'),
        ([{"role": "wizard"}], "messages[0].role: one of assistant, developer, system, tool, user is needed, got "),
        ([{"role": "user", "content": 5}], "messages[0].content: a text or a list of objects is needed, got 5"),
    ],
)
def test_a_refusal_of_a_chat_says_in_words_what_is_needed(messages: Any, message: str) -> None:
    assert refused(chat, messages).message.startswith(message)


def test_what_a_refusal_repeats_is_short_and_printable() -> None:
    assert len(refused(completion, stop=["a"] * 10_000).message) < 120
    assert len(refused(completion, user="x" * 2**20).message) < 120
    assert refused(completion, n="\x1b[2J\u202e").message.isprintable()


RIGHT = {
    "max_tokens": [None, 1, 10**12],
    "temperature": [None, 0, 1, 2.0, 1e6],
    "top_p": [None, 1, 0.1],
    "top_k": [None, 0, -1, 50],
    "seed": [None, 0, -1, INT64_MAX, INT64_MIN],
    "n": [None, 1, 16],
    "stop": [None, [], "END", ["a"] * 16, "x" * 1000],
    "stop_token_ids": [None, [], [0, 1]],
    "ignore_eos": [None, True, False],
    "include_stop_str_in_output": [None, True],
    "skip_special_tokens": [None, False],
    "stream": [None, False, True],
    "return_token_ids": [None, True],
    "user": [None, "somebody"],
    "presence_penalty": [None, 0, 0.0, -2, 2, 0.5],
    "frequency_penalty": [None, 0, -2, 2],
    "repetition_penalty": [None, 1, 0.01, 100],
    "min_p": [None, 0, 1, 0.1],
    "min_tokens": [None, 0, 1],
    "bad_words": [None, [], ["word", " "], ["x" * 200] * 128],
    "prompt_logprobs": [None, 0, 20],
    "priority": [None, 0, -100, 100],
    "cache_salt": [None, "x", "x" * 256],
    "timeout": [None, 0.001, 5, 86_400],
    "echo": [None, False],
    "logprobs": [None, False],
    "best_of": [None, 1, 16],
    "logit_bias": [None, {}, {"0": -100, "5": 100.0, str(2**31 - 1): 0}, {str(i): 1 for i in range(1024)}],
    "response_format": [None, {"type": "text"}],
    "metadata": [None, {}],
    "store": [None, False],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in RIGHT.items() for v in values])
def test_a_right_or_neutral_value_is_accepted(field: str, value: Any) -> None:
    completion(**{field: value})
    chat(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("suffix", "x"), ("logprobs", True), ("top_logprobs", 1), ("max_completion_tokens", 5)],
)
def test_completions_refuse_what_they_do_not_have(field: str, value: Any) -> None:
    assert refused(completion, **{field: value}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("logprobs", 1),
        ("top_logprobs", 1),
        ("top_logprobs", 21),
        ("echo", True),
        ("modalities", ["audio"]),
        ("max_completion_tokens", 0),
        ("max_completion_tokens", True),
        ("continue_final_message", True),
        ("chat_template", "{{ x }}"),
        ("prompt", "Hi"),
        ("prediction", {}),
    ],
)
def test_chat_refuses_what_it_does_not_have(field: str, value: Any) -> None:
    assert refused(chat, **{field: value}).param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("tools", []), ("tool_choice", "none"), ("modalities", ["text"]), ("parallel_tool_calls", True)],
)
def test_chat_accepts_what_changes_nothing(field: str, value: Any) -> None:
    chat(**{field: value})


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
def test_numbers_that_are_none_are_refused(field: str, literal: str) -> None:
    body = f'{{"model":"m","prompt":"Hi","{field}":{literal}}}'
    refused(lambda: read_completion(body.encode(), LIMIT))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b"{}x", b'{"model":"m","prompt":"\xff"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refused(lambda: read_completion(body, LIMIT))


@pytest.mark.parametrize("field", ["seed", "temperature", "max_tokens", "prompt", "unheard_of", "logit_bias"])
@pytest.mark.parametrize("digits", [20, 5000, 500_000])
def test_endless_numbers_are_refused(field: str, digits: int) -> None:
    body = b'{"model":"m","prompt":"Hi","%s":%s}' % (field.encode(), b"1" * digits)
    if (field, digits) != ("temperature", 20):
        refused(lambda: read_completion(body, LIMIT))


def test_deep_nesting_and_lone_surrogates_are_refused() -> None:
    for value in (b"[" * 100_000, b'"\\ud800"'):
        refused(lambda value=value: read_completion(b'{"model":"m","prompt":' + value + b"}", LIMIT))


@given(st.floats(0, 1e-4))
def test_tiny_temperatures_mean_greedy(temperature: float) -> None:
    assert completion(temperature=temperature).params.temperature == 0


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(), st.lists, max_leaves=8))
def test_any_prompt_is_read_or_refused_by_name(prompt: Any) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    try:
        request = read_completion(body, LIMIT)
    except ApiError as error:
        assert error.status == 400
    else:
        assert bool(request.prompts.texts) != bool(request.prompts.token_ids)


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, {}, 5, True, [], [[]], [[1], []]),
        *([-1], [2**31], [2**63], [2**70], [1.0], [True], [None]),
        *(["1", 2], [1, "2"], [[1, 2], [-1]], [[[1]]], [1, [2]]),
        *(["a"] * 257, [[1]] * 257),
    ],
)
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    error = refused(completion, prompt=prompt)
    assert error.param is not None and error.param.startswith("prompt")


def test_a_missing_prompt_is_refused() -> None:
    assert refused(lambda: read_completion(b'{"model":"m"}', LIMIT)).param == "prompt"


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""], "x" * 1000, [1] * 100, [[1], [2, 3]]])
def test_prompts_that_the_tokenizer_decides_about_pass(prompt: Any) -> None:
    completion(prompt=prompt)


@pytest.mark.parametrize("prompt", ["x" * 1001, ["ok", "x" * 1001], [1] * 101, [[1], [1] * 101]])
def test_what_cannot_fit_the_context_is_refused_before_tokenization(prompt: Any) -> None:
    error = refused(completion, prompt=prompt)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert "100" in error.message


def test_a_chat_that_cannot_fit_is_refused() -> None:
    turns = [{"role": "user", "content": "x" * 600}] * 2
    assert refused(chat, turns).param == "messages"
    assert refused(chat, [{"role": "user", "content": ""}] * 101).param == "messages"


def test_too_many_sequences_are_refused() -> None:
    completion(prompt=["a"] * 16, n=16)
    assert refused(completion, prompt=["a"] * 17, n=16).param == "n"


def test_stream_options_belong_to_streams() -> None:
    assert refused(completion, stream_options={"include_usage": True}).param == "stream_options"
    assert refused(completion, stream=False, stream_options={}).param == "stream_options"


def test_two_names_of_one_limit_must_agree() -> None:
    assert chat(max_tokens=5, max_completion_tokens=5).params.max_tokens == 5
    assert chat(max_completion_tokens=5).params.max_tokens == 5
    assert refused(chat, max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"


# --- fields that depend on each other


@pytest.mark.parametrize("read", [completion, chat])
def test_the_best_of_several_cannot_be_streamed(read: Any) -> None:
    read(n=2, best_of=2, stream=True)
    assert refused(read, n=2, best_of=3, stream=True).param == "best_of"


@pytest.mark.parametrize("read", [completion, chat])
def test_prompt_logprobs_cannot_be_streamed(read: Any) -> None:
    for count in (0, 1):
        assert refused(read, prompt_logprobs=count, stream=True).param == "prompt_logprobs"


def test_only_an_echo_may_have_no_answer() -> None:
    request = completion(max_tokens=0, echo=True)
    assert request.options.prompt_only and request.params.max_tokens == 1
    assert refused(completion, max_tokens=0).param == "max_tokens"
    assert refused(completion, max_tokens=0, echo=True, min_tokens=1).param == "min_tokens"
    assert refused(chat, max_tokens=0).param == "max_tokens"


def test_no_answer_may_have_to_be_longer_than_it_may() -> None:
    assert refused(completion, max_tokens=5, min_tokens=6).param == "min_tokens"
    assert refused(chat, max_completion_tokens=5, min_tokens=6).param == "min_tokens"
    assert completion(max_tokens=5, min_tokens=5).params.min_tokens == 5
    assert chat(min_tokens=6).params.min_tokens == 6


def test_alternatives_of_a_chat_belong_to_logprobs() -> None:
    assert refused(chat, top_logprobs=1).param == "top_logprobs"
    assert refused(chat, top_logprobs=1, logprobs=False).param == "top_logprobs"
    assert chat(top_logprobs=0).params.logprobs is None
    assert chat(logprobs=False).params.logprobs is None
    assert chat(logprobs=True).params.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).params.logprobs == 20


def test_zero_alternatives_are_not_none() -> None:
    assert [completion(logprobs=k).params.logprobs for k in (None, False, 0, 20)] == [None, None, 0, 20]
    assert [completion(prompt_logprobs=k).params.prompt_logprobs for k in (None, 0, 20)] == [None, 0, 20]


def test_an_echo_asks_for_the_prompts_logprobs_if_those_of_the_answer_are_wanted() -> None:
    assert completion(echo=True).params.prompt_logprobs is None
    assert completion(echo=True, logprobs=0).params.prompt_logprobs == 0
    assert completion(echo=True, logprobs=2, prompt_logprobs=1).params.prompt_logprobs == 2
    assert completion(logprobs=2, prompt_logprobs=1).params.prompt_logprobs == 1


def test_a_choice_of_the_best_asks_for_logprobs_by_itself() -> None:
    request = completion(n=2, best_of=3, prompt=["a", "b"])
    assert (request.params.logprobs, request.options.logprobs) == (0, None)
    assert request.num_sequences == 6 and request.submit("r", 1).n == 3
    assert completion(n=2, best_of=2).params.logprobs is None
    assert completion(best_of=3, logprobs=4).params.logprobs == 4


def test_values_that_are_zero_or_empty_mean_what_they_say() -> None:
    params = completion(
        presence_penalty=0, frequency_penalty=0.0, min_p=0, min_tokens=0, logit_bias={"0": 0}, bad_words=[]
    ).params
    assert params.logit_bias == ((0, 0.0),)
    assert not params.needs_history and params.bad_words == ()
    assert completion(priority=0).priority == 0


def test_the_engine_gets_what_changes_the_logits() -> None:
    params = completion(
        min_p=0.1,
        presence_penalty=-2,
        frequency_penalty=0.5,
        repetition_penalty=1.2,
        logit_bias={"50": -100, "7": 1.5},
        bad_words=["one", "two words"],
        min_tokens=3,
    ).params
    assert (params.min_p, params.presence_penalty, params.frequency_penalty) == (0.1, -2, 0.5)
    assert (params.repetition_penalty, params.min_tokens) == (1.2, 3)
    assert params.logit_bias == ((50, -100.0), (7, 1.5))
    assert params.bad_words == ("one", "two words")


def test_priority_and_salt_are_sent_with_the_request() -> None:
    submit = completion(priority=-7, cache_salt="ann").submit("r", 1)
    assert (submit.priority, submit.cache_salt) == (-7, "ann")
    assert completion().submit("r", 1).cache_salt == ""


# --- what one response may hold


LARGE = ContextLimit(tokens=8192, token_chars=10)


def large(path: Any = read_completion, **body: Any) -> GenerationRequest:
    content = {"prompt": "Hi"} if path is read_completion else {"messages": [{"role": "user", "content": "Hi"}]}
    return path(json.dumps({"model": "m", **content, **body}).encode(), LARGE)


def test_log_probabilities_that_would_fill_the_memory_are_refused() -> None:
    long = [1] * 8000
    assert refused(large, prompt=[long] * 100, echo=True, logprobs=20).param == "logprobs"
    assert refused(large, prompt=[long] * 100, prompt_logprobs=20).param == "prompt_logprobs"
    assert refused(large, n=16, max_tokens=8000, logprobs=20).param == "logprobs"
    assert refused(large, read_chat_completion, n=16, logprobs=True, top_logprobs=20).param == "logprobs"
    assert refused(large, prompt=["a"] * 16, best_of=16, max_tokens=8000).param == "best_of"


def test_log_probabilities_of_one_long_prompt_or_answer_are_given() -> None:
    large(prompt=[1] * 8000, echo=True, logprobs=5, max_tokens=0)
    large(prompt="word " * 2000, echo=True, logprobs=20, max_tokens=1)
    large(max_tokens=10**12, logprobs=20)
    large(read_chat_completion, logprobs=True, top_logprobs=20)


# --- messages


def test_text_parts_are_one_text() -> None:
    plain, parts, two = ("Hi", [{"type": "text", "text": "Hi"}], [{"type": "text", "text": t} for t in ("a", "b")])
    contents = [chat([{"role": "user", "content": c}]).prompts.chat[0].content for c in (plain, parts, two)]
    assert contents == ["Hi", "Hi", "a\nb"]


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "system", "content": None}, "messages[1].content"),
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0]"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "messages[1].function_call"),
        ({"role": "user", "content": "x", "other": 1}, "messages[1].other"),
        ("Hi", "messages[1]"),
    ],
)
def test_a_bad_turn_is_refused_and_its_place_named(turn: Any, param: str) -> None:
    assert refused(chat, [{"role": "user", "content": "x"}, turn]).param == param


def test_an_image_part_is_refused_by_its_type() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    assert "image_url" in refused(chat, [{"role": "user", "content": [part]}]).message


def test_no_turns_are_refused() -> None:
    assert refused(chat, []).param == "messages"


def test_the_servers_own_answer_may_be_sent_back() -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "refusal": None, "annotations": []},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": [{"type": "text", "text": "So"}]},
    ]
    read = chat(turns).prompts.chat
    assert [turn.role for turn in read] == ["system", "user", "assistant", "tool", "assistant"]
    assert [turn.content for turn in read] == ["Be brief.", "Hi", None, "4", "So"]


# --- what is recorded, and estimated


def test_given_parameters_are_recorded_by_their_names() -> None:
    request = completion(temperature=0, user="ann", stop=["x"], stream=True, stream_options={"include_usage": True})
    assert request.given == {
        "temperature": 0.0,
        "user": "ann",
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_estimate_counts_all_sequences_and_never_more_than_fits() -> None:
    assert completion(prompt=[1] * 10, max_tokens=5, n=2).estimated_tokens(100) == 30
    assert completion(prompt=["x" * 40, "y" * 40], max_tokens=5).estimated_tokens(100) == 32
    assert chat().estimated_tokens(100) == 100
    assert completion(max_tokens=10**12).estimated_tokens(100) == 100
