"""Text of answers, whole and streamed: nothing lost, nothing leaked, nothing added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.clients import Stream, answer, choice, decoded, send, streamed, user
from tests.e2e.served import Served

ALPHABET = "Here is the English alphabet: ABC"
TOKENS = 24


def text_so_far(stream: Stream) -> list[str]:
    """The text that the client has after each event."""
    return ["".join(stream.pieces()[: i + 1]) for i in range(len(stream.pieces()))]


def test_random_bytes_of_a_chat_are_the_tokenizers_own_decoding(shared: Served) -> None:
    for seed in range(3):
        ask = {"messages": user("😀 你好"), "temperature": 2.0, "seed": seed, "max_tokens": 50}
        whole = choice(shared, **ask)
        stream = streamed(shared, **ask)
        assert stream.text() == whole["message"]["content"] == decoded(shared, whole["token_ids"])


@pytest.mark.parametrize("prompt", ["The capital of France is", "1 2 3 4", "def add(a, b):\n   ", "Bonjour,"])
def test_no_space_is_trimmed_or_cleaned_up(shared: Served, prompt: str) -> None:
    whole = choice(shared, prompt=prompt, max_tokens=12)
    assert whole["text"] == decoded(shared, whole["token_ids"])
    assert streamed(shared, prompt=prompt, max_tokens=12).text() == whole["text"]


def test_the_space_before_the_first_word_is_there(shared: Served) -> None:
    text = choice(shared, prompt="The capital of France is", max_tokens=8)["text"]
    assert text.startswith(" ") and not text.startswith("  ")


# --- stop strings -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alphabet(shared: Served) -> dict[str, Any]:
    """An answer without any stop."""
    return choice(shared, prompt=ALPHABET, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def stops(shared: Served, alphabet: dict[str, Any]) -> list[str]:
    """Parts of the answer that begin and end inside of tokens, and have at least one token between."""
    ids, text = alphabet["token_ids"], alphabet["text"]
    ends = [len(decoded(shared, ids[: i + 1])) for i in range(len(ids))]
    inside = [i for i in range(1, len(ends)) if ends[i] - ends[i - 1] > 1]
    spans = [(a, b) for a in inside for b in inside if a + 2 <= b <= a + 6]
    found = [text[ends[a] - 1 : ends[b] - 1] for a, b in spans]
    assert found, "no token of the answer has two characters"
    return list(dict.fromkeys(found))[:: max(1, len(found) // 3)][:3]


def test_a_stop_string_across_tokens_ends_the_text_before_it_and_never_leaks(shared, alphabet, stops):
    for stop in stops:
        expected = alphabet["text"][: alphabet["text"].index(stop)]
        for ask in ({"stop": [stop]}, {"stop": ["ZZZ", stop]}, {"stop": stop}):
            stream = streamed(shared, prompt=ALPHABET, max_tokens=TOKENS, **ask)
            assert stream.text() == expected
            assert all(expected.startswith(text) for text in text_so_far(stream))
            assert stream.finish_reasons() == ["stop"]
        whole = choice(shared, prompt=ALPHABET, max_tokens=TOKENS, stop=stop)
        assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == (expected, "stop", stop)


def test_the_beginning_of_a_stop_string_that_never_completes_is_flushed(shared, alphabet, stops):
    for stop in stops:
        stream = streamed(shared, prompt=ALPHABET, max_tokens=TOKENS, stop=[stop + "ZZZ"])
        assert stream.text() == alphabet["text"]
        assert stream.finish_reasons() == [alphabet["finish_reason"]]


def test_an_included_stop_string_is_the_end_of_the_text(shared, alphabet, stops):
    for stop in stops:
        ask = {"prompt": ALPHABET, "max_tokens": TOKENS, "stop": [stop], "include_stop_str_in_output": True}
        expected = alphabet["text"][: alphabet["text"].index(stop) + len(stop)]
        assert streamed(shared, **ask).text() == choice(shared, **ask)["text"] == expected


def test_a_stop_token_cuts_nothing_but_itself(shared, alphabet):
    ids = alphabet["token_ids"]
    for token in dict.fromkeys(ids[3:15:4]):
        before = ids[: ids.index(token)]
        ask = {"prompt": ALPHABET, "max_tokens": TOKENS, "stop_token_ids": [token]}
        for included in (False, True):
            whole = choice(shared, **ask, include_stop_str_in_output=included)
            assert whole["text"] == decoded(shared, before)
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", token)
            assert whole["token_ids"] == [*before, token]
        assert streamed(shared, **ask).text() == decoded(shared, before)


@pytest.mark.parametrize("question", ["Say hi.", "What is 2 + 2? Answer with a number."])
@pytest.mark.parametrize("skip", [True, False])
def test_the_models_own_end_token_makes_no_text_and_takes_none_away(shared, question, skip):
    ask = {"messages": user(question), "max_tokens": 200, "skip_special_tokens": skip}
    whole = choice(shared, **ask)
    assert whole["finish_reason"] == "stop"
    assert decoded(shared, whole["token_ids"][-1:], skip_special_tokens=False) == "<|im_end|>"
    content = whole["message"]["content"]
    assert content == decoded(shared, whole["token_ids"][:-1], skip_special_tokens=skip)
    assert content and "<|im_end|>" not in content
    assert streamed(shared, **ask).text() == content


# --- usage, choices, reasons --------------------------------------------------------------------------


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_has_no_usage_unless_asked_for(shared, options):
    stream = streamed(shared, messages=user("Hello"), max_tokens=5, stream_options=options)
    assert [event for event in stream.events if event.get("usage") is not None] == []


@pytest.mark.parametrize("ask", [{"messages": user("Hello")}, {"prompt": "Hello"}, {"prompt": ["Hello", "A b c"]}])
def test_usage_that_was_asked_for_comes_once_and_last(shared, ask):
    stream = streamed(shared, **ask, max_tokens=5, stream_options={"include_usage": True})
    assert stream.events[-1]["choices"] == []
    assert all(event["choices"] and event["usage"] is None for event in stream.events[:-1])
    usage, whole = stream.events[-1]["usage"], answer(shared, **ask, max_tokens=5)["usage"]
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[c] for c in counts] == [whole[c] for c in counts]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_stream_options_without_a_stream_are_refused(shared):
    response = send(shared, {"prompt": "Hi", "max_tokens": 1, "stream_options": {"include_usage": True}})
    assert response.status_code == 400 and response.json()["error"]["param"] == "stream_options"


def test_choices_of_several_prompts_are_numbered_and_counted(shared):
    texts = ["One two", "Red blue", "Hello"]
    lengths = [len(ids) for ids in (prompt_ids(shared, text) for text in texts)]
    by_text = check_choices(shared, texts, lengths)
    by_ids = check_choices(shared, [prompt_ids(shared, text) for text in texts], lengths)
    assert by_text == by_ids
    assert len(set(by_text)) == len(by_text)


def prompt_ids(served: Served, text: str) -> list[int]:
    ids: list[int] = served.post("/tokenize", {"prompt": text})["tokens"]
    return ids


def check_choices(served: Served, prompts: list[Any], lengths: list[int]) -> list[str]:
    """Two choices of each prompt, streamed and not; returns their texts."""
    ask = {"prompt": prompts, "n": 2, "temperature": 0.9, "seed": 3, "max_tokens": 6}
    whole = answer(served, **ask)
    assert [c["index"] for c in whole["choices"]] == list(range(6))
    assert whole["usage"]["prompt_tokens"] == sum(lengths)
    stream = streamed(served, **ask, stream_options={"include_usage": True}, return_token_ids=True)
    for index, one in enumerate(whole["choices"]):
        assert stream.text(index) == one["text"]
        assert stream.finish_reasons(index) == [one["finish_reason"]]
    tokens = sum(len(stream.token_ids(i)) for i in range(6))
    assert tokens == stream.events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    return [c["text"] for c in whole["choices"]]


def test_a_limit_that_cuts_is_told_from_a_natural_end(shared):
    messages = user("Say hi.")
    whole = answer(shared, messages=messages, max_tokens=200)
    natural, tokens = whole["choices"][0], whole["usage"]["completion_tokens"]
    assert natural["finish_reason"] == "stop" and tokens > 2
    for limit, reason in ((tokens, "stop"), (tokens - 1, "length"), (1, "length")):
        cut = answer(shared, messages=messages, max_tokens=limit)
        stream = streamed(shared, messages=messages, max_tokens=limit)
        assert cut["choices"][0]["finish_reason"] == reason
        assert cut["usage"]["completion_tokens"] == limit
        assert stream.finish_reasons() == [reason]
        assert next(reversed(list(stream.choices())))["finish_reason"] == reason
        assert stream.text() == cut["choices"][0]["message"]["content"]
        assert natural["message"]["content"].startswith(stream.text())
        assert json.dumps(stream.events).count('"finish_reason": null') == len(list(stream.choices())) - 1
