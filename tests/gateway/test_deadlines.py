"""The clock of a request: 504 when it has run out, once, and the engine is told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.gateway.requests import RequestState
from engine.messages import Abort, Submit
from telemetry.events import FinishReason, FirstIncrement, RequestFinished, ResponseSent
from telemetry.gauges import Gauge
from tests.gateway.conftest import MakeRig
from tests.gateway.rig import FakeReplica, Rig, events, increment, until

LIMIT_S = 0.15


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_an_answer_in_time_is_a_504(rig: Rig, replica: FakeReplica, stream: bool) -> None:
    began = time.monotonic()
    response = await rig.complete(timeout=LIMIT_S, stream=stream)
    assert LIMIT_S <= time.monotonic() - began < LIMIT_S + 2
    assert response.status_code == 504
    assert response.json()["error"] == {
        "message": "the request was not done within 0.15 s",
        "type": "timeout",
        "param": None,
        "code": "deadline_exceeded",
    }
    await ended_by_its_deadline(rig, replica, 504)


async def ended_by_its_deadline(rig: Rig, replica: FakeReplica, status: int) -> None:
    """One terminal; the engine was told, and when it lets go all is free again."""
    await rig.record(ResponseSent)
    [finished] = rig.records(RequestFinished)
    assert (finished.finish_reason, finished.http_status) == (FinishReason.ERROR, status)
    assert finished.error_type == "deadline_exceeded"
    submit = await replica.saw(Submit)
    assert (await replica.saw(Abort)).request_id == submit.request_id
    replica.send(increment(submit.request_id, 0, finish_reason=FinishReason.ABORT))
    await until(lambda: rig.context.gauges.get(Gauge.REQUESTS_IN_FLIGHT) == 0)
    assert len(rig.records(RequestFinished)) == 1


async def test_a_stream_that_has_begun_ends_with_an_error_event(rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    response = await rig.chat(timeout=LIMIT_S, stream=True, stream_options={"include_usage": True})
    *chunks, error, done = events(response.text)
    assert response.status_code == 200 and done == "DONE"
    assert [c["choices"][0]["delta"]["content"] for c in chunks] == ["a"]
    assert (error["error"]["type"], error["error"]["code"]) == ("timeout", "deadline_exceeded")
    await ended_by_its_deadline(rig, replica, 200)


async def test_what_came_of_a_whole_answer_is_dropped(rig: Rig, replica: FakeReplica) -> None:
    replica.script = lambda s: replica.send(increment(s.request_id, 0, "a", (1,)))
    assert (await rig.complete(timeout=LIMIT_S)).status_code == 504
    await ended_by_its_deadline(rig, replica, 504)
    assert [s.output_tokens for s in rig.records(RequestFinished)[0].sequences] == [0]


@pytest.mark.parametrize(
    ("server", "client", "limit"), [(0.1, {}, 0.1), (0.1, {"timeout": 60}, 0.1), (60, {"timeout": 0.1}, 0.1)]
)
async def test_the_shorter_limit_counts(make_rig: MakeRig, server: float, client: Any, limit: float) -> None:
    rig = await make_rig(request_timeout=server)
    replica = rig.replica()
    replica.script = None
    await rig.direct(replica.entry())
    response = await rig.complete(**client)
    assert response.status_code == 504
    assert f"within {limit:g} s" in response.json()["error"]["message"]


async def test_an_answer_in_time_stops_the_clock(rig: Rig) -> None:
    assert (await rig.complete(timeout=LIMIT_S)).status_code == 200
    log: list[Any] = []
    state = RequestState("req-1", log)  # type: ignore[arg-type]
    state.expect(1, stream=False)
    state.set_deadline(LIMIT_S, time.monotonic_ns())
    state.offer(increment("req-1", 0, "x", (1,), finish_reason=FinishReason.STOP))
    state.finish(200)
    assert state._deadline is not None and state._deadline.cancelled()
    assert [type(r) for r in log] == [FirstIncrement, RequestFinished]


async def test_time_spent_on_the_way_in_counts(rig: Rig, replica: FakeReplica) -> None:
    """The clock runs from the arrival, so that a deadline already over ends the request at once."""
    response = await rig.complete(timeout=1e-9)
    assert response.status_code == 504


async def test_a_refused_request_has_no_clock(rig: Rig) -> None:
    response = await rig.client.post("/v1/completions", json={"model": "other", "prompt": "Hi", "timeout": 0.01})
    assert response.status_code == 404
    assert (await rig.record(RequestFinished)).http_status == 404
