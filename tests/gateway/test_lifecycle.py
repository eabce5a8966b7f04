"""Clients leave, replicas die, servers stop: at every moment a request ends once, and what it held comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engine.gateway import delivery
from engine.messages import Abort, Drain, Drained, Refused, Submit
from telemetry.events import (
    FinishReason,
    FirstIncrement,
    ReplicaState,
    RequestFinished,
    RequestReceived,
    RequestRouted,
    ResponseSent,
)
from telemetry.gauges import Gauge
from tests.gateway.conftest import MakeRig
from tests.gateway.rig import MODEL, FakeReplica, Rig, events, increment, until

LENGTH = FinishReason.LENGTH


class RawClient:
    """A connection that a test closes when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def post(self, body: dict[str, object], path: str = "/v1/completions", cut: int = 0) -> None:
        data = json.dumps({"model": MODEL, "prompt": "Hi", **body}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.writer.write(head.encode() + data[: len(data) - cut])

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def connected(rig: Rig) -> AsyncIterator[RawClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


async def ended(rig: Rig) -> RequestFinished:
    """The terminal, once all is over: there is exactly one, between the first record and the last."""
    await rig.record(ResponseSent)
    kinds = [type(r) for r in rig._records if hasattr(r, "request_id")]
    assert kinds[0] is RequestReceived and kinds[-2:] == [RequestFinished, ResponseSent]
    assert kinds.count(RequestFinished) == 1
    return rig.records(RequestFinished)[0]


def in_flight(rig: Rig) -> int:
    return rig.context.gauges.get(Gauge.REQUESTS_IN_FLIGHT)


# --- the client leaves


async def test_leaving_while_the_body_is_sent_is_an_abort(rig: Rig, replica: FakeReplica) -> None:
    async with connected(rig) as client:
        client.post({}, cut=5)
        await client.writer.drain()
        await until(lambda: rig.gateway._http.server_state.tasks != set())
        await client.leave()
        finished = await ended(rig)
    assert (finished.finish_reason, finished.http_status) == (FinishReason.ABORT, 0)
    assert replica.seen == []


async def test_a_request_that_is_complete_after_the_drain_began_is_refused(rig: Rig, replica: FakeReplica) -> None:
    async with connected(rig) as client:
        client.post({"user": "abcde"}, cut=5)
        await client.writer.drain()
        await until(lambda: rig.gateway._http.server_state.tasks != set())
        await rig.tell(Drain(deadline_ns=2**62))
        await rig.hear(Drained)
        client.writer.write(b'cde"}')
        await client.reader.readuntil(b"draining")
        assert (await ended(rig)).http_status == 503
    assert replica.seen == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 2])
async def test_leaving_aborts_and_credit_returns_when_the_replica_lets_go(
    rig: Rig, replica: FakeReplica, stream: bool, tokens: int
) -> None:
    async with connected(rig) as client:
        client.post({"stream": stream, "n": 2})
        submit = await replica.saw(Submit)
        for token in range(tokens):
            replica.send(increment(submit.request_id, 0, "a", (token,)))
        if tokens and stream:
            await client.reader.readuntil(b"data: ")
        await client.leave()
        finished = await ended(rig)
    assert finished.finish_reason is FinishReason.ABORT
    assert finished.error_type == "client_disconnected"
    assert finished.http_status == (200 if stream and tokens else 0)
    assert (await replica.saw(Abort)).request_id == submit.request_id
    assert in_flight(rig) == 1
    replica.send(increment(submit.request_id, 0, finish_reason=FinishReason.ABORT))
    replica.send(increment(submit.request_id, 1, finish_reason=FinishReason.ABORT))
    await until(lambda: in_flight(rig) == 0)
    assert rig.context.gauges.get(Gauge.TOKENS_IN_FLIGHT) == 0
    assert len(rig.records(RequestFinished)) == 1


async def test_an_answered_request_is_not_aborted(rig: Rig) -> None:
    await rig.complete()
    await ended(rig)
    assert not [m for m in rig.replicas[0].seen if isinstance(m, Abort)]
    assert in_flight(rig) == 0


async def test_only_what_was_written_counts_as_delivered(rig: Rig, replica: FakeReplica) -> None:
    async with connected(rig) as client:
        client.post({"stream": False})
        submit = await replica.saw(Submit)
        replica.send(increment(submit.request_id, 0, "a", (1, 2)))
        await rig.record(FirstIncrement)
        await client.leave()
        finished = await ended(rig)
    assert [(s.finish_reason, s.output_tokens) for s in finished.sequences] == [(FinishReason.ABORT, 0)]


# --- the engine refuses or fails


async def test_a_refusal_of_the_tokenizer_reaches_the_client_as_it_is(rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send_message(
        Refused(s.request_id, s.gateway, 400, "invalid_request_error", "too long: 70 of 64", "prompt", "too_long")
    )
    response = await rig.complete(stream=True)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "too long: 70 of 64",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "too_long",
    }
    assert (await ended(rig)).error_type == "too_long"
    assert in_flight(rig) == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_sequence_ends_the_request_with_500(rig: Rig, replica: FakeReplica, stream: bool) -> None:
    replica.script = lambda s: replica.send(
        increment(s.request_id, 0, finish_reason=FinishReason.ERROR, error="out of blocks")
    )
    response = await rig.complete(stream=stream, n=2)
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "out of blocks"
    assert (await ended(rig)).finish_reason is FinishReason.ERROR
    await replica.saw(Abort)


async def test_an_error_after_the_headers_is_an_event_of_the_stream(rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    async with rig.client.stream("POST", "/v1/completions", json=stream_body()) as response:
        submit = await replica.saw(Submit)
        replica.send(increment(submit.request_id, 0, finish_reason=FinishReason.ERROR, error="gone"))
        stream = events((await response.aread()).decode())
    assert response.status_code == 200
    assert stream[-2]["error"]["code"] == "engine_error" and stream[-1] == "DONE"
    finished = await ended(rig)
    assert (finished.finish_reason, finished.http_status) == (FinishReason.ERROR, 200)
    assert [(s.finish_reason, s.output_tokens) for s in finished.sequences] == [(FinishReason.ERROR, 1)]


def stream_body() -> dict[str, object]:
    return {"model": MODEL, "prompt": "Hi", "stream": True}


async def test_strangers_and_stale_senders_are_not_listened_to(rig: Rig, replica: FakeReplica) -> None:
    def script(submit: Submit) -> None:
        stale = FakeReplica.__new__(FakeReplica)
        stale.__dict__.update(replica.__dict__)
        stale.incarnation = 99
        stale.send(increment(submit.request_id, 0, "stale", (1,), finish_reason=LENGTH))
        replica.send(increment("req-nobody", 0, "stranger", (1,), finish_reason=LENGTH))
        replica.send(increment(submit.request_id, 0, "old gateway", (1,), gateway=1, finish_reason=LENGTH))
        replica.send(increment(submit.request_id, 5, "no such sequence", (1,), finish_reason=LENGTH))
        replica.send(increment(submit.request_id, 0, "right", (1,), finish_reason=LENGTH))
        replica.send(increment(submit.request_id, 0, "twice", (1,), finish_reason=LENGTH))

    replica.script = script
    body = (await rig.complete()).json()
    assert body["choices"][0]["text"] == "right"


# --- replicas come and go


async def test_without_a_replica_requests_are_refused_with_503(make_rig: MakeRig) -> None:
    rig = await make_rig()
    response = await rig.complete()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_replica_ready"
    assert response.headers["retry-after"]
    assert (await ended(rig)).http_status == 503


@pytest.mark.parametrize("state", [ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.UNHEALTHY])
async def test_only_ready_replicas_get_requests(rig: Rig, replica: FakeReplica, state: ReplicaState) -> None:
    other = rig.replica("r1")
    await rig.direct(replica.entry(state), other.entry())
    assert (await rig.complete()).status_code == 200
    assert replica.seen == []


async def test_a_draining_replica_finishes_what_it_has(rig: Rig, replica: FakeReplica) -> None:
    answer = asyncio.create_task(rig.complete())
    submit = await replica.saw(Submit)
    await rig.direct(replica.entry(ReplicaState.DRAINING))
    replica.send(increment(submit.request_id, 0, "done", (1,), finish_reason=LENGTH))
    assert (await answer).json()["choices"][0]["text"] == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_losing_the_only_replica_before_the_first_byte_is_a_503(
    rig: Rig, replica: FakeReplica, stream: bool
) -> None:
    answer = asyncio.create_task(rig.complete(stream=stream))
    await replica.saw(Submit)
    await rig.direct(replica.entry(ReplicaState.UNHEALTHY))
    response = await answer
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_error"
    assert (await ended(rig)).finish_reason is FinishReason.ERROR
    assert in_flight(rig) == 0


@pytest.mark.parametrize("tokens", [0, 1])
async def test_what_was_not_written_runs_again_elsewhere_once(rig: Rig, replica: FakeReplica, tokens: int) -> None:
    answer = asyncio.create_task(rig.complete(max_tokens=2))
    submit = await replica.saw(Submit)
    for _ in range(tokens):
        replica.send(increment(submit.request_id, 0, "lost", (1,), prompt_token_ids=[1]))
        await rig.record(FirstIncrement)
    other = rig.replica("r1")
    await rig.direct(other.entry())
    body = (await answer).json()
    assert body["choices"][0]["text"] == " 0 1"
    assert body["usage"]["completion_tokens"] == 2
    assert [(r.attempt, r.replica) for r in rig.records(RequestRouted)] == [(1, "r0"), (2, "r1")]
    assert (await ended(rig)).finish_reason is LENGTH
    assert in_flight(rig) == 0


async def test_a_request_is_not_tried_a_third_time(rig: Rig, replica: FakeReplica) -> None:
    answer = asyncio.create_task(rig.complete())
    await replica.saw(Submit)
    second, third = rig.replica("r1"), rig.replica("r2")
    second.script = third.script = None
    await rig.direct(second.entry())
    await second.saw(Submit)
    await rig.direct(third.entry())
    assert (await answer).status_code == 503
    assert third.seen == []


async def test_losing_a_replica_in_the_middle_of_a_stream_ends_it_with_an_error(rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    async with rig.client.stream("POST", "/v1/completions", json=stream_body()) as response:
        await rig.direct(rig.replica("r1").entry())
        stream = events((await response.aread()).decode())
    assert [e["choices"][0]["text"] for e in stream[:-2]] == ["a"]
    assert stream[-2]["error"]["code"] == "engine_error" and stream[-1] == "DONE"
    assert (await ended(rig)).finish_reason is FinishReason.ERROR


async def test_the_next_incarnation_takes_requests_and_the_last_ones_page_is_gone(
    rig: Rig, replica: FakeReplica
) -> None:
    assert list(rig.folder.gauges.glob("*-r0.1.gauges"))
    await rig.direct(rig.replica("r0", 2).entry())
    assert (await rig.complete()).status_code == 200
    assert not list(rig.folder.gauges.glob("*-r0.1.gauges"))
    assert list(rig.folder.gauges.glob("*-r0.2.gauges"))


async def test_requests_are_spread_over_the_replicas(rig: Rig, replica: FakeReplica) -> None:
    other = rig.replica("r1")
    other.script = None
    await rig.direct(replica.entry(), other.entry())
    waiting = [asyncio.create_task(rig.complete()) for _ in range(6)]
    await replica.saw(Submit, 3)
    await other.saw(Submit, 3)
    for task in waiting:
        task.cancel()


# --- credit


async def test_beyond_the_credit_is_429_until_something_is_over(make_rig: MakeRig) -> None:
    rig = await make_rig(max_queue=1)
    replica = rig.replica()
    replica.script = None
    await rig.direct(replica.entry())
    first = asyncio.create_task(rig.complete())
    submit = await replica.saw(Submit)
    refused = await rig.complete()
    assert refused.status_code == 429 and refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    replica.send(increment(submit.request_id, 0, "x", (1,), finish_reason=LENGTH))
    assert (await first).status_code == 200
    second = asyncio.create_task(rig.complete())
    await replica.saw(Submit, 2)
    second.cancel()


async def test_tokens_in_flight_are_limited_but_one_request_alone_always_goes(make_rig: MakeRig) -> None:
    rig = await make_rig(max_tokens_in_flight=20)
    replica = rig.replica()
    replica.script = None
    await rig.direct(replica.entry())
    first = asyncio.create_task(rig.complete(prompt=[1] * 30))
    await replica.saw(Submit)
    assert (await rig.complete(prompt=[1])).status_code == 429
    first.cancel()


# --- the server stops


async def test_draining_finishes_what_runs_and_refuses_what_comes(rig: Rig, replica: FakeReplica) -> None:
    running = asyncio.create_task(rig.complete())
    submit = await replica.saw(Submit)
    await rig.tell(Drain(deadline_ns=2**62))
    await until(lambda: rig.service.draining)
    refused = await rig.complete()
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
    assert (await rig.client.get("/ready")).status_code == 503
    replica.send(increment(submit.request_id, 0, "x", (1,), finish_reason=LENGTH))
    assert (await running).status_code == 200
    await rig.hear(Drained)


async def test_the_deadline_of_a_drain_ends_what_still_runs(rig: Rig, replica: FakeReplica) -> None:
    running = asyncio.create_task(rig.complete())
    await replica.saw(Submit)
    await rig.tell(Drain(deadline_ns=0))
    await rig.hear(Drained)
    assert (await running).json()["error"]["code"] == "shutting_down"
    await replica.saw(Abort)


async def test_stopping_does_not_wait_for_idle_connections(rig: Rig) -> None:
    async with connected(rig) as client:
        client.writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        await client.reader.readuntil(b"}")
        rig.gateway._stop()
        await asyncio.wait_for(asyncio.shield(rig.task), 1.5)


# --- slow readers


async def test_a_slow_reader_gets_all_of_its_stream_in_fewer_events(rig: Rig, replica: FakeReplica) -> None:
    text = "x" * 2000
    async with connected(rig) as client:
        client.post({"stream": True, "max_tokens": 2000})
        submit = await replica.saw(Submit)
        for i in range(2000):
            replica.send(increment(submit.request_id, 0, text, (i,), finish_reason=LENGTH if i == 1999 else None))
        await until(lambda: in_flight(rig) == 0)
        received = b""
        while b"[DONE]" not in received:
            received += await client.reader.read(1 << 16)
    payloads = [line[6:] for line in received.decode().splitlines() if line.startswith("data: {")]
    assert len(payloads) < 2000
    assert sum(len(json.loads(p)["choices"][0]["text"]) for p in payloads) == 2000 * len(text)
    assert (await ended(rig)).finish_reason is LENGTH


async def test_a_reader_that_never_reads_is_aborted(
    rig: Rig, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivery, "SLOW_AFTER_S", 0.1)
    text = "x" * 10_000
    async with connected(rig) as client:
        client.post({"stream": True, "max_tokens": 2000})
        submit = await replica.saw(Submit)
        for _ in range(2000):
            replica.send(increment(submit.request_id, 0, text, (1,)))
        finished = await ended(rig)
        assert (finished.finish_reason, finished.error_type) == (FinishReason.ABORT, "slow_reader")
        await replica.saw(Abort)
        await until(lambda: not rig.gateway._http.server_state.connections)
    assert not caplog.records


async def test_messages_of_each_link_are_counted(rig: Rig) -> None:
    await rig.complete(max_tokens=4)
    link = next(iter(rig.engine._links.values()))
    assert link._page.get(Gauge.SENT_TOKENIZER) == 1
    assert link._page.get(Gauge.TAKEN) == 4
