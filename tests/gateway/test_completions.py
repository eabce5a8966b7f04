from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Submit
from telemetry.events import FinishReason, RequestFinished
from tests.gateway.rig import MODEL, FakeReplica, Rig, events, increment


async def test_a_completion_has_text_usage_and_finish_reason(rig: Rig) -> None:
    response = await rig.complete(prompt="Hello", max_tokens=3)
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "text_completion" and body["model"] == MODEL
    assert body["id"].startswith("cmpl-")
    choice = {"index": 0, "text": " 0 1 2", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert body["choices"] == [choice]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 3
    assert body["usage"]["total_tokens"] == 8


async def test_a_chat_answer_is_a_message_of_the_assistant(rig: Rig) -> None:
    body = (await rig.chat("Hello", max_tokens=2)).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": " 0 1", "refusal": None}
    assert body["usage"]["total_tokens"] == 7


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [["One two", "Red blue", "Hello"], [[1, 2], [3, 4, 5], [6]]])
async def test_choices_are_numbered_by_prompt_then_choice(rig: Rig, prompt: Any, stream: bool) -> None:
    response = await rig.complete(
        prompt=prompt, n=2, max_tokens=4, stream=stream, stream_options={"include_usage": True} if stream else None
    )
    if stream:
        texts, reasons, usage = joined(events(response.text))
    else:
        body = response.json()
        texts = {c["index"]: c["text"] for c in body["choices"]}
        reasons = {c["index"]: [c["finish_reason"]] for c in body["choices"]}
        usage = body["usage"]
    assert texts == dict.fromkeys(range(6), " 0 1 2 3")
    assert reasons == {i: ["length"] for i in range(6)}
    assert usage["prompt_tokens"] == sum(len(p) for p in prompt)
    assert usage["completion_tokens"] == 24


def joined(stream: list[Any]) -> tuple[dict[int, str], dict[int, list[str]], Any]:
    texts: dict[int, str] = {}
    reasons: dict[int, list[str]] = {}
    usage = None
    for event in stream[:-1]:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + content
            if choice["finish_reason"]:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    return texts, reasons, usage


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_a_stream_has_no_usage_unless_asked(rig: Rig, options: Any) -> None:
    stream = events((await rig.chat(stream=True, max_tokens=5, stream_options=options)).text)
    assert stream[-1] == "DONE"
    assert all(event.get("usage") is None for event in stream[:-1])


async def test_usage_is_the_last_chunk_of_a_stream_and_has_no_choices(rig: Rig) -> None:
    whole = (await rig.chat(max_tokens=5)).json()
    stream = events((await rig.chat(stream=True, max_tokens=5, stream_options={"include_usage": True})).text)
    *chunks, last, done = stream
    assert done == "DONE"
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)


async def test_a_chat_stream_names_the_role_once_and_keeps_its_id(rig: Rig) -> None:
    response = await rig.chat(stream=True, max_tokens=4)
    stream = events(response.text)[:-1]
    assert response.headers["content-type"].startswith("text/event-stream")
    deltas = [event["choices"][0]["delta"] for event in stream]
    assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(d["content"] for d in deltas) == " 0 1 2 3"
    assert len({event["id"] for event in stream}) == 1
    assert [event["choices"][0]["finish_reason"] for event in stream][-1] == "length"
    assert not any(event["choices"][0]["finish_reason"] for event in stream[:-1])


async def test_token_ids_of_a_completion_are_in_its_choice(rig: Rig) -> None:
    body = (await rig.complete(prompt=[5, 6], max_tokens=2, return_token_ids=True)).json()
    assert body["choices"][0]["token_ids"] == [10, 11]
    assert body["choices"][0]["prompt_token_ids"] == [5, 6]


async def test_prompt_token_ids_of_a_chat_are_at_the_top(rig: Rig) -> None:
    body = (await rig.chat("abc", max_tokens=2, return_token_ids=True)).json()
    assert body["prompt_token_ids"] == [1, 1, 1]
    assert body["choices"][0]["token_ids"] == [10, 11]


async def test_a_stream_gives_each_token_id_once_and_the_prompt_first(rig: Rig) -> None:
    for response, place in (
        (await rig.complete(prompt=[5, 6], max_tokens=3, stream=True, return_token_ids=True), "choice"),
        (await rig.chat("ab", max_tokens=3, stream=True, return_token_ids=True), "top"),
    ):
        stream = events(response.text)[:-1]
        assert [i for e in stream for i in e["choices"][0]["token_ids"]] == [10, 11, 12]
        holders = [e if place == "top" else e["choices"][0] for e in stream]
        assert len(holders[0]["prompt_token_ids"]) == 2
        assert all(holder.get("prompt_token_ids") is None for holder in holders[1:])


async def test_no_ids_unless_asked(rig: Rig) -> None:
    body = (await rig.complete()).json()
    assert "token_ids" not in body["choices"][0] and "prompt_token_ids" not in body["choices"][0]


async def test_the_engine_gets_what_the_client_asked_for(rig: Rig) -> None:
    await rig.complete(
        prompt="Hi",
        max_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        seed=-1,
        stop="END",
        stop_token_ids=[3],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    params = (await rig.replicas[0].saw(Submit)).params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.seed) == (2, 0.5, 0.9, 0, -1)
    assert (params.stop, params.stop_token_ids) == (("END",), (3,))
    assert params.ignore_eos and params.include_stop_str and not params.skip_special_tokens


async def test_default_lengths_are_sixteen_for_completions_and_the_room_left_for_chat(rig: Rig) -> None:
    await rig.complete()
    await rig.chat()
    assert (await rig.replicas[0].saw(Submit)).params.max_tokens == 16
    assert (await rig.replicas[0].saw(Submit, 2)).params.max_tokens is None


async def test_the_reason_of_a_request_is_length_if_one_sequence_has_it(rig: Rig, replica: FakeReplica) -> None:
    def script(submit: Submit) -> None:
        for index, reason in enumerate((FinishReason.LENGTH, FinishReason.STOP)):
            ended = increment(submit.request_id, index, "x", (1,), finish_reason=reason, stop_reason="END")
            replica.send(ended)

    replica.script = script
    body = (await rig.complete(n=2)).json()
    assert [c["finish_reason"] for c in body["choices"]] == ["length", "stop"]
    assert body["choices"][1]["stop_reason"] == "END"
    finished = await rig.record(RequestFinished)
    assert finished.finish_reason is FinishReason.LENGTH
    assert [s.finish_reason for s in finished.sequences] == [FinishReason.LENGTH, FinishReason.STOP]
