"""Whatever happens in whatever order: one terminal, before the last byte; and all credit comes back."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import Config
from engine.gateway.answer_options import AnswerOptions
from engine.gateway.delivery import Delivery
from engine.gateway.engine_client import EngineClient
from engine.gateway.errors import ApiError, unavailable
from engine.gateway.exchange import Exchange
from engine.gateway.generation_request import GenerationRequest
from engine.gateway.prompts import Prompts
from engine.gateway.requests import RequestState
from engine.gateway.responses import CompletionShape, ResponseHead, ResponseWriter
from engine.messages import Directory, Increments, Refused, ReplicaEntry, SamplingParams, Submit
from telemetry.events import FinishReason, ReplicaState, RequestFinished, Stage
from telemetry.gauges import Gauge, GaugePage, PageOwner
from tests.gateway.rig import GATEWAY, events, increment

RANK = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR]
SEQUENCES = 2


class Log:
    """Journal and ASGI send in one: what happened in which order."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.open = asyncio.Event()
        self.open.set()

    def append(self, record: Any) -> None:
        self.entries.append(record)

    async def send(self, message: Any) -> None:
        await self.open.wait()
        self.entries.append(message)

    @property
    def terminals(self) -> list[RequestFinished]:
        return [e for e in self.entries if isinstance(e, RequestFinished)]

    @property
    def body(self) -> str:
        return b"".join(e["body"] for e in self.entries if isinstance(e, dict) and "body" in e).decode()


def request_of(n: int, stream: bool) -> GenerationRequest:
    options = AnswerOptions(n=n, best_of=n, token_ids=True)
    prompts = Prompts(texts=("a",))
    return GenerationRequest(
        model="m", prompts=prompts, params=SamplingParams(), options=options, stream=stream, given={}
    )


def writer_of(request: GenerationRequest) -> ResponseWriter:
    return ResponseWriter(CompletionShape(), ResponseHead("cmpl-1", 0, "m"), request.options)


async def never() -> Any:
    await asyncio.Event().wait()


index = st.integers(0, SEQUENCES - 1)
event = st.one_of(
    st.tuples(st.just("token"), index),
    st.tuples(st.just("end"), index, st.sampled_from(RANK)),
    st.tuples(st.just("fail")),
    st.tuples(st.just("abort")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("block")),
    st.tuples(st.just("unblock")),
    st.tuples(st.just("restart")),
)


def apply(state: RequestState, log: Log, name: str, args: tuple[Any, ...]) -> None:
    match name, args:
        case "token", (i,):
            state.offer(increment("req-1", i, "x", (1,)))
        case "end", (i, reason):
            state.offer(increment("req-1", i, "y", (2,), finish_reason=reason))
        case "fail", ():
            state.fail(unavailable("lost", "engine_error"))
        case "abort", ():
            state.abort("client_disconnected")
        case "block", ():
            log.open.clear()
        case "unblock", ():
            log.open.set()
        case "restart", () if not state.committed and not state.over:
            state.restart()


@given(st.booleans(), st.lists(event, max_size=25))
@settings(max_examples=150, deadline=None)
def test_a_request_ends_once_with_the_gravest_reason(stream: bool, plan: list[tuple[Any, ...]]) -> None:
    asyncio.run(run_plan(stream, plan))


async def run_plan(stream: bool, plan: list[tuple[Any, ...]]) -> None:
    log = Log()
    state = RequestState("req-1", log)  # type: ignore[arg-type]
    state.expect(SEQUENCES, stream)
    exchange = Exchange({"headers": []}, never, log.send, sampled=True)
    request = request_of(SEQUENCES, stream)
    writer = writer_of(request)
    task = asyncio.create_task(Delivery(exchange, state).run(request, writer))
    expected: FinishReason | None = None
    for name, *args in [*plan, ("unblock",), ("end", 0, RANK[0]), ("end", 1, RANK[1])]:
        if name == "turn":
            await asyncio.sleep(0)
        else:
            apply(state, log, name, tuple(args))
        if state.over and not state.finished:
            expected = state.outcome
    await asyncio.wait_for(task, 5)
    check(log, state, expected, stream)


def check(log: Log, state: RequestState, expected: FinishReason | None, stream: bool) -> None:
    assert len(log.terminals) == 1
    terminal = log.terminals[0]
    assert terminal.finish_reason is expected
    grave = [s.finish_reason for s in terminal.sequences]
    assert RANK.index(terminal.finish_reason) >= max(map(RANK.index, grave))
    last = [i for i, e in enumerate(log.entries) if isinstance(e, dict) and e.get("more_body") is False]
    assert len(last) == 1 or (state.abort_reason and not last)
    assert all(log.entries.index(terminal) < i for i in last)
    if terminal.http_status == 200 and stream:
        delivered = [c for e in events(log.body) if e != "DONE" and "error" not in e for c in e["choices"]]
        for sequence in terminal.sequences:
            written = sum(len(c["token_ids"]) for c in delivered if c["index"] == sequence.index)
            assert written == sequence.output_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_writer_that_is_cancelled_leaves_a_terminal(stream: bool) -> None:
    log = Log()
    state = RequestState("req-1", log)  # type: ignore[arg-type]
    state.expect(1, stream)
    exchange = Exchange({"headers": []}, never, log.send, sampled=True)
    request = request_of(1, stream)
    writer = writer_of(request)
    task = asyncio.create_task(Delivery(exchange, state).run(request, writer))
    state.offer(increment("req-1", 0, "x", (1,)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [t.finish_reason for t in log.terminals] == [FinishReason.ERROR]


def test_a_second_terminal_is_a_programming_error() -> None:
    log = Log()
    state = RequestState("req-1", log)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        state.finish(200)
    state.fail(unavailable("x", "y"))
    state.finish(503)
    with pytest.raises(RuntimeError):
        state.finish(503)


# --- credit

REPLICAS = ("r0", "r1")
action = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 3)),
    st.tuples(st.just("token"), st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 2)),
    st.tuples(st.just("refuse"), st.integers(0, 9)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("restart replica"), st.sampled_from(REPLICAS)),
)


class World:
    """An engine client with two replicas that never answer by themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: zmq.Context[Any] = zmq.Context()
        self.gauges = GaugePage(folder / "own.gauges", PageOwner(Stage.GATEWAY, "", GATEWAY, 1))
        self.client = EngineClient(self.context, folder, GATEWAY, Config(max_queue=4), Log(), self.gauges)  # type: ignore[arg-type]
        self.incarnations = dict.fromkeys(REPLICAS, 1)
        self.states: list[RequestState] = []
        self.direct()

    def direct(self, *without: str) -> None:
        entries = [
            ReplicaEntry(
                name, number, ReplicaState.READY, "", 0, 0, {Stage.TOKENIZER: f"ipc://{self.folder}/{name}.{number}"}
            )
            for name, number in self.incarnations.items()
            if name not in without
        ]
        self.client.on_directory(Directory(GATEWAY, "", entries))

    def submit(self, sequences: int) -> None:
        state = RequestState(f"req-{len(self.states)}", Log())  # type: ignore[arg-type]
        state.expect(sequences, stream=True)
        message = Submit(state.request_id, GATEWAY, sequences, SamplingParams(), texts=("a",))
        try:
            self.client.submit(state, message, 10, sequences)
        except ApiError as error:
            state.fail(error)
        self.states.append(state)

    def answer(self, number: int, index: int, reason: FinishReason | None) -> None:
        """Both replicas say so: only the one that has the request is listened to."""
        item = increment(f"req-{number}", index, "x", (1,), finish_reason=reason)
        for name, incarnation in self.incarnations.items():
            self.client.on_messages([Increments(name, incarnation, [item])])

    def act(self, name: str, *args: Any) -> None:
        match name, args:
            case "submit", (sequences,):
                self.submit(sequences)
            case "token", (number, i):
                self.answer(number, i, None)
            case "end", (number, i):
                self.answer(number, i, FinishReason.STOP)
            case "refuse", (number,):
                self.client.on_messages([Refused(f"req-{number}", GATEWAY, 400, "x", "no")])
            case "leave", (number,) if number < len(self.states):
                self.states[number].abort("client_disconnected")
                self.client.leave(self.states[number])
            case "restart replica", (replica,):
                self.direct(replica)
                self.incarnations[replica] += 1
                self.direct()

    def in_flight(self) -> list[tuple[int, int]]:
        return [(link.credit.requests, link.credit.tokens) for link in self.client._links.values()]


@given(st.lists(action, max_size=30))
@settings(max_examples=50, deadline=None)
def test_credit_comes_back_whatever_happens(plan: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="vg") as folder:
        world = World(Path(folder))
        for step in plan:
            world.act(*step)
            held = world.client._holds.values()
            assert sum(requests for requests, _ in world.in_flight()) == len(held)
            assert all(requests <= 4 for requests, _ in world.in_flight())
            assert world.gauges.get(Gauge.REQUESTS_IN_FLIGHT) == len(held)
        for number in range(len(world.states)):
            for i in range(3):
                world.act("end", number, i)
        assert world.in_flight() == [(0, 0), (0, 0)]
        assert all(state.over for state in world.states)
        world.client.close()
        world.context.destroy(linger=0)


def test_records_of_a_request_can_be_encoded() -> None:
    log = Log()
    state = RequestState("req-1", log)  # type: ignore[arg-type]
    state.expect(2, stream=False)
    state.offer(increment("req-1", 0, "x", (1,), finish_reason=FinishReason.STOP))
    state.abort("client_disconnected")
    state.finish(0)
    assert msgspec.msgpack.encode(log.terminals[0])
