"""The real client library of OpenAI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from engine.messages import Submit
from telemetry.events import FinishReason, RequestFinished
from tests.gateway.rig import MODEL, FakeReplica, Rig, answer_with_logprobs, increment


@pytest_asyncio.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=rig.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2)
    assert [choice.text for choice in answer.choices] == [" 0 1", " 0 1"]
    assert answer.usage is not None and answer.usage.completion_tokens == 4


async def test_chat_with_all_plain_parameters(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_completion_tokens=2,
        temperature=0,
        top_p=1,
        seed=1,
        n=1,
        stop=["END"],
        presence_penalty=0,
        frequency_penalty=0,
        user="ann",
    )
    assert answer.choices[0].message.content == " 0 1"
    assert answer.choices[0].finish_reason == "length"


async def test_a_chat_goes_on_with_the_servers_own_message(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    message = first.choices[0].message.model_dump()
    turns = [{"role": "user", "content": "Hi"}, message, {"role": "user", "content": "More"}]
    await client.chat.completions.create(model=MODEL, messages=turns)  # type: ignore[arg-type]


async def test_streamed_chat_with_usage_and_ids(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == " 0 1 2"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 5
    assert [i for c in chunks[:-1] for i in c.choices[0].token_ids] == [10, 11, 12]  # type: ignore[attr-defined]


async def test_streamed_completions(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=3, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " 0 1 2"


async def test_errors_become_the_clients_exceptions(client: openai.AsyncOpenAI, rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model=MODEL, prompt="Hi", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="gpt", prompt="Hi")
    await rig.direct()
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model=MODEL, prompt="Hi")


async def test_an_error_within_a_stream_is_raised(client: openai.AsyncOpenAI, rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    stream = await client.completions.create(model=MODEL, prompt="Hi", stream=True)
    await rig.direct()
    with pytest.raises(openai.APIError, match="r0 ended"):
        async for _ in stream:
            pass


async def test_a_client_that_closes_its_stream_ends_the_request(
    client: openai.AsyncOpenAI, rig: Rig, replica: FakeReplica
) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    stream = await client.completions.create(model=MODEL, prompt="Hi", stream=True)
    await stream.close()
    assert (await rig.record(RequestFinished)).finish_reason is FinishReason.ABORT


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "vitrine"


# --- log probabilities, echo, the best of several, biases


@pytest.fixture
def telling(rig: Rig) -> Rig:
    rig.replicas[0].script = answer_with_logprobs(rig.replicas[0])
    return rig


async def test_logprobs_of_a_completion(client: openai.AsyncOpenAI, telling: Rig) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=2, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.token_logprobs) == ([" 0", " 1"], [-1.0, -1.1])
    assert logprobs.top_logprobs == [{" 0": -1.0, " alt0": -3.0}, {" 1": -1.1, " alt0": -3.0}]
    assert logprobs.text_offset == [0, 2]


async def test_logprobs_of_a_chat_streamed_and_not(client: openai.AsyncOpenAI, telling: Rig) -> None:
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = await client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    whole = answer.choices[0].logprobs
    assert whole is not None and whole.content is not None and whole.refusal is None
    assert b"".join(bytes(t.bytes or []) for t in whole.content).decode() == answer.choices[0].message.content
    assert [[a.token for a in t.top_logprobs] for t in whole.content] == [[" 0", " alt0"], [" 1", " alt0"]]
    stream = await client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, stream=True)
    choices = [chunk.choices[0] async for chunk in stream]
    assert [t for c in choices if c.logprobs for t in c.logprobs.content or []] == whole.content


async def test_an_echo_with_logprobs(client: openai.AsyncOpenAI, telling: Rig) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Hey", max_tokens=1, echo=True, logprobs=1)
    choice = answer.choices[0]
    assert choice.text == "Hey 0" and choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -1.0]
    none = await client.completions.create(model=MODEL, prompt="Hey", max_tokens=0, echo=True)
    assert none.choices[0].text == "Hey"
    assert none.usage is not None and none.usage.completion_tokens == 0


async def test_the_best_of_several(client: openai.AsyncOpenAI, telling: Rig) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Hi", max_tokens=2, best_of=3, logprobs=0)
    assert [c.logprobs.token_logprobs for c in answer.choices if c.logprobs] == [[0.0, -0.1]]
    assert answer.usage is not None and answer.usage.completion_tokens == 6


async def test_biases_and_penalties_reach_the_engine(client: openai.AsyncOpenAI, rig: Rig) -> None:
    await client.completions.create(
        model=MODEL,
        prompt="Hi",
        logit_bias={"50": -100, "7": 5},
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        extra_body={"repetition_penalty": 1.1, "min_p": 0.1, "bad_words": ["no"], "priority": 3, "cache_salt": "ann"},
    )
    submit = await rig.replicas[0].saw(Submit)
    assert submit.params.logit_bias == ((50, -100.0), (7, 5.0))
    assert (submit.params.presence_penalty, submit.params.frequency_penalty) == (0.5, -0.5)
    assert (submit.params.repetition_penalty, submit.params.min_p) == (1.1, 0.1)
    assert (submit.params.bad_words, submit.priority, submit.cache_salt) == (("no",), 3, "ann")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model=MODEL, prompt="Hi", logit_bias={"x": 1})
    assert bad.value.param == "logit_bias"


async def test_a_deadline_becomes_the_clients_exception(
    client: openai.AsyncOpenAI, rig: Rig, replica: FakeReplica
) -> None:
    with pytest.raises(openai.InternalServerError) as late:
        await client.completions.create(model=MODEL, prompt="Hi", extra_body={"timeout": 0.05})
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
