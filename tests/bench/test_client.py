from __future__ import annotations

import asyncio
import json
import socket

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from engine.bench.client import Client, RequestError, Target
from engine.bench.load import http_client
from tests.bench.fake_server import DONE, FakeServer, event, text, usage, well_behaved


async def complete(answer=well_behaved, tokens=4, timeout_s=5.0, **target):
    async with FakeServer(answer).running() as server:
        aim = Target(url=server.url, model="fake-1", timeout_s=timeout_s, **target)
        async with http_client(aim, 1) as http:
            return await Client(aim, http).complete("one two three", tokens), server


def chunks(*parts: bytes):
    async def answer(body):
        for part in parts:
            yield part
            await asyncio.sleep(0.01)

    return answer


async def test_a_good_answer_is_measured():
    result, _ = await complete()
    assert result.error == ""
    assert (result.prompt_tokens, result.output_tokens, result.finish_reason) == (6, 4, "length")
    assert sum(arrival.events for arrival in result.arrivals) == 4
    assert 0 < result.ttft_s < result.e2e_s
    assert len(result.inter_token_latencies_s()) == 4 - result.tokens_per_arrival()[0]


async def test_the_request_is_greedy_streaming_and_of_full_length():
    _, server = await complete(extra_body={"top_k": 1, "temperature": 0.5})
    assert server.bodies == [
        {
            "model": "fake-1",
            "prompt": "one two three",
            "max_tokens": 4,
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "top_k": 1,
        }
    ]


async def test_ignore_eos_can_be_left_out():
    _, server = await complete(ignore_eos=False)
    assert "ignore_eos" not in server.bodies[0]


async def test_a_chat_counts_from_its_first_content_and_not_from_the_role():
    role = event(choices=[{"delta": {"role": "assistant", "content": ""}}])
    content = event(choices=[{"delta": {"content": "Hi"}, "finish_reason": None}])
    end = event(choices=[{"delta": {}, "finish_reason": "stop"}])
    result, server = await complete(chunks(role, content, end + usage(9, 2) + DONE), chat=True)
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "one two three"}]
    assert len(result.arrivals) == 1
    assert result.error == ""


async def test_events_are_put_together_wherever_they_were_cut():
    wire = text("é") + text("b") + text("", "stop") + usage(3, 2) + DONE
    result, _ = await complete(chunks(*(wire[i : i + 25] for i in range(0, len(wire), 25))))
    assert (result.error, result.output_tokens, len(result.arrivals)) == ("", 2, 2)


async def test_an_event_of_several_tokens_is_counted_by_usage():
    result, _ = await complete(chunks(text("a b c"), text("d e f", "length"), usage(3, 6) + DONE))
    assert result.tokens_per_arrival() == [3, 3]
    assert len(result.inter_token_latencies_s()) == 3


async def test_token_ids_say_which_event_held_how_many():
    result, _ = await complete(
        chunks(text("a", token_ids=[1]), text("bcd", token_ids=[2, 3, 4]), text("", "length"), usage(3, 4) + DONE)
    )
    assert result.tokens_per_arrival() == [1, 3]


async def test_cached_tokens_are_read():
    result, _ = await complete(chunks(text("a", "length"), usage(30, 1, cached=16) + DONE))
    assert result.cached_tokens == 16


async def test_an_answer_without_text_is_timed_by_its_end():
    result, _ = await complete(chunks(text(""), text("", "length") + usage(3, 2) + DONE))
    assert (result.error, len(result.arrivals), result.output_tokens) == ("", 1, 2)


async def test_a_missing_usage_block_leaves_events_to_count():
    result, _ = await complete(chunks(text("a"), text("b", "length"), DONE))
    assert (result.usage_tokens, result.output_tokens) == (None, 2)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (lambda body: JSONResponse({"error": {"message": "too\nlong"}}, 400), "http_400", "too long"),
        (lambda body: JSONResponse({"error": "busy"}, 503), "http_503", "busy"),
        (lambda body: JSONResponse({"object": "error", "message": "busy"}, 503), "http_503", "busy"),
        (lambda body: JSONResponse({"detail": "busy"}, 503), "http_503", "busy"),
        (lambda body: JSONResponse({"detail": [1]}, 422), "http_422", '{"detail":[1]}'),
        (lambda body: PlainTextResponse("<!doctype html> …", 404), "http_404", "Not Found"),
        (lambda body: PlainTextResponse("", 502), "http_502", "Bad Gateway"),
        (lambda body: PlainTextResponse("come back later", 429), "http_429", "come back later"),
        (lambda body: PlainTextResponse("hello"), "not_a_stream", "text/plain"),
        (chunks(text("a"), event(error={"message": "the replica died"}) + DONE), "stream_error", "the replica died"),
        (chunks(text("a"), event(error="boom") + DONE), "stream_error", "boom"),
        (chunks(text("a"), b"data: {oops\n\n"), "bad_event", "OpenAI"),
        (chunks(text("a"), b"data: [1]\n\n"), "bad_event", "OpenAI"),
        (chunks(text("a"), text("b")), "disconnected", "without a finish reason"),
        (chunks(DONE), "empty", "neither text"),
    ],
)
async def test_failures_have_a_kind_and_words(answer, kind, words):
    result, _ = await complete(answer)
    assert result.error == kind
    assert words in result.message


async def test_a_long_message_is_cut_between_words():
    result, _ = await complete(lambda body: JSONResponse({"error": {"message": "wordy " * 100}}, 400))
    assert result.message.endswith("wordy …") and len(result.message) <= 302


async def test_a_server_that_dies_half_way():
    async def dies(body):
        yield text("a")
        raise RuntimeError("the server's own failure")

    result, _ = await complete(dies)
    assert (result.error, len(result.arrivals)) == ("disconnected", 1)


async def test_a_server_that_falls_silent():
    async def silent(body):
        yield text("a")
        await asyncio.sleep(60)

    result, _ = await complete(silent, timeout_s=0.2)
    assert result.error == "timeout"


async def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    target = Target(url=f"http://127.0.0.1:{port}", model="m")
    async with http_client(target, 1) as http:
        result = await Client(target, http).complete("Hi", 1)
        assert result.error == "connection"
        with pytest.raises(RequestError) as failure:
            await Client(target, http).choose_model()
    assert failure.value.kind == "connection"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_url_may_be_written_with_or_without_v1(suffix):
    async with FakeServer().running() as server:
        target = Target(url=server.url + suffix)
        async with http_client(target, 1) as http:
            assert await Client(target, http).choose_model() == "fake-1"


async def choose(models, model=""):
    async with FakeServer(models=models).running() as server:
        target = Target(url=server.url, model=model)
        async with http_client(target, 1) as http:
            return await Client(target, http).choose_model()


async def test_the_model_is_the_one_asked_for_or_the_first():
    assert await choose(["a", "b"]) == "a"
    assert await choose(["a", "b"], "b") == "b"


async def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(RequestError, match="no model 'x'; the server has 0, 1, 2, 3, 4, …"):
        await choose([str(i) for i in range(9)], "x")
    with pytest.raises(RequestError, match="lists no model"):
        await choose([], "x")


async def test_a_server_that_lists_no_models_is_believed_to_have_the_one_asked_for():
    assert await choose(None, "x") == "x"
    with pytest.raises(RequestError, match="Not Found"):
        await choose(None)


async def test_the_key_is_sent_as_a_bearer_token():
    async with FakeServer().running() as server:
        target = Target(url=server.url)
        async with http_client(target, 1, api_key="secret") as http:
            await Client(target, http).complete("Hi", 1)
        assert server.headers[0]["authorization"] == "Bearer secret"


def test_the_key_is_no_part_of_what_is_reported():
    assert "key" not in json.dumps(list(Target.__struct_fields__))
