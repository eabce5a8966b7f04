"""The real client library of OpenAI."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from telemetry.events import FinishReason, RequestFinished
from tests.gateway.rig import MODEL, FakeReplica, Rig, increment


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
