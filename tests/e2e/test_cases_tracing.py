"""Faults that others had with tracing (TR-…), with the results that are right."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from telemetry.events import Stage
from tests.e2e.clients import COMPLETIONS, MODEL, user
from tests.e2e.served import Served, free_port
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan

SIMULATED = ("--device", "simulated", "--simulated-step", "2000,20,10")
SLOW = ("--device", "simulated", "--simulated-step", "20000,200,10")
CHAIN = {"route", "tokenize", "queue", "prefill", "decode", "detokenize"}
MS = 1_000_000


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


def ask(served: Served, headers: dict[str, str] | None = None, **more) -> httpx.Response:
    body = {"model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": 8, "ignore_eos": True, **more}
    path = COMPLETIONS
    if "messages" in more:
        path = "/v1/chat/completions"
        del body["prompt"]
    return httpx.post(served.url + path, json=body, headers=headers, timeout=60)


def wait_for_roots(served: Served, receiver: OtlpReceiver, count: int, timeout_s: float = 20) -> list[ReceivedSpan]:
    """The SERVER spans, once there are as many."""
    served.eventually(lambda: len(roots(receiver)) >= count, timeout_s, f"{count} requests traced")
    return roots(receiver)


def roots(receiver: OtlpReceiver) -> list[ReceivedSpan]:
    return [span for span in list(receiver.spans) if span.kind == 2]


def check_family(spans: list[ReceivedSpan], root: ReceivedSpan) -> None:
    """Every parent is there, every child within it (1 ms for rounding), no time runs backwards."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans), "a span arrived twice"
    for span in spans:
        assert span.end_ns >= span.start_ns
        if span is not root:
            parent = by_id[span.parent_id]
            assert parent.start_ns - MS <= span.start_ns and span.end_ns <= parent.end_ns + MS, span


def test_all_spans_of_a_request_are_one_tree_under_the_callers_span(serve, receiver):
    """TR-01, TR-07: with and without a caller's context, streaming and not, two replicas, twenty at once."""
    served = serve(*SIMULATED, "--replicas", "2", "--otlp-endpoint", receiver.endpoint)
    contexts = [f"00-{i:032x}-{i:016x}-01" for i in range(1, 11)]
    headers = [{"traceparent": one, "tracestate": "vendor=x"} for one in contexts] + [None] * 10

    def one(i: int) -> httpx.Response:
        content = {"messages": user("Hello")} if i % 3 == 0 else {}
        return ask(served, headers[i], stream=i % 2 == 0, **content)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, range(20)))
    assert {answer.status_code for answer in answers} == {200}
    found = {root.attributes["vitrine.request_id"]: root for root in wait_for_roots(served, receiver, 20)}
    traces = receiver.traces()
    assert len(traces) == 20
    assert len({root.attributes["vitrine.replica"] for root in found.values()}) == 2
    for i, answer in enumerate(answers):
        root = found[answer.headers["x-request-id"]]
        caller = f"{i + 1:032x}" if i < 10 else root.trace_id
        assert (root.trace_id, root.parent_id) == (caller, f"{i + 1:016x}" if i < 10 else "")
        assert root.trace_state == ("vendor=x" if i < 10 else "")
        own = traces[root.trace_id]
        assert {span.name for span in own} >= CHAIN
        assert {span.attributes["vitrine.request_id"] for span in own} == {root.attributes["vitrine.request_id"]}
        check_family(own, root)
        parts = {span.name: span for span in own}
        assert parts["queue"].end_ns <= parts["prefill"].start_ns + MS
        engine_ns = parts["decode"].end_ns - parts["queue"].start_ns
        of_parts = sum(parts[name].end_ns - parts[name].start_ns for name in ("queue", "prefill", "decode"))
        assert 0.9 * engine_ns <= of_parts <= engine_ns + MS


def test_the_last_spans_arrive_when_the_server_is_stopped(serve, receiver):
    """TR-03: SIGTERM right after the last answer, while one stream is still drained."""
    served = serve(*SLOW, "--otlp-endpoint", receiver.endpoint, "--drain-timeout", "20")
    begun = threading.Event()

    def stream() -> None:
        body = {"model": MODEL, "prompt": [5, 6], "max_tokens": 60, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", served.url + COMPLETIONS, json=body, timeout=60) as response:
            for _ in response.iter_lines():
                begun.set()

    draining = threading.Thread(target=stream)
    draining.start()
    assert begun.wait(20)
    for _ in range(10):
        assert ask(served, max_tokens=1).status_code == 200
    started = time.monotonic()
    status, _ = served.stop(timeout_s=40)
    draining.join(10)
    assert status == 0 and time.monotonic() - started < 20 + 5
    by_tokens = Counter(root.attributes["gen_ai.usage.output_tokens"] for root in roots(receiver))
    assert by_tokens == {1: 10, 60: 1}
    for trace in receiver.traces().values():
        check_family(trace, next(span for span in trace if span.kind == 2))


@pytest.mark.parametrize("trouble", ["closed", "hangs", "refuses"])
def test_a_dead_collector_costs_nothing_but_spans(serve, trouble):
    """TR-04: closed port, no answer, status 500; then it comes back, then SIGTERM."""
    port = free_port()
    with OtlpReceiver(port if trouble != "closed" else 0) as receiver:
        if trouble == "hangs":
            receiver.hang.set()
        receiver.status = 500
        served = serve(*SIMULATED, "--otlp-endpoint", f"http://127.0.0.1:{port}")
        with ThreadPoolExecutor(8) as pool:
            assert {a.status_code for a in pool.map(lambda _: ask(served), range(60))} == {200}
        served.eventually(lambda: served.health()["status"] == "degraded", 30, "degraded")
        assert "spans cannot be delivered" in served.health()["reasons"][0]
        if trouble == "refuses":
            receiver.status = 200
            ask(served)
            wait_for_roots(served, receiver, 1, 30)
            served.eventually(lambda: served.health()["status"] == "ok", 30, "ok again")
        started = time.monotonic()
        assert served.stop(timeout_s=30)[0] == 0
        assert time.monotonic() - started < 10
    warnings = [line for line in served.log_lines() if line["event"] == "spans cannot be delivered"]
    assert 1 <= len(warnings) <= 2
    assert not [line for line in served.log_lines() if "Traceback" in str(line)]


def test_spans_flow_again_after_the_collector_was_started_late(serve):
    """TR-04, last part."""
    port = free_port()
    served = serve(*SIMULATED, "--otlp-endpoint", f"http://127.0.0.1:{port}")
    assert ask(served).status_code == 200
    served.eventually(lambda: served.health()["status"] == "degraded", 30, "degraded")
    with OtlpReceiver(port) as receiver:
        wait_for_roots(served, receiver, 1, 40)  # what was queued meanwhile
        assert ask(served).status_code == 200
        wait_for_roots(served, receiver, 2, 40)
    assert served.metric("vitrine_telemetry_dropped_total", 'sink="spans"') == 0


def leave_early(served: Served, after_s: float, **more) -> None:
    """A client that walks away."""
    with pytest.raises(httpx.ReadTimeout):
        body = {"model": MODEL, "prompt": [5, 6, 7, 8], "max_tokens": 3000, "ignore_eos": True, **more}
        httpx.post(served.url + COMPLETIONS, json=body, timeout=after_s)


def test_whatever_went_wrong_has_one_ended_root_span_and_the_stages_it_reached(serve, receiver):
    """TR-06: refused (400, 404, 429), aborted while queued, in prefill and in decode, failed with the runner."""
    slower = ("--device", "simulated", "--simulated-step", "20000,1000,10")  # a millisecond per prompt token
    served = serve(*slower, "--otlp-endpoint", receiver.endpoint, "--max-num-seqs", "1", "--max-queue", "2")
    assert ask(served, temperature=-1).status_code == 400
    assert ask(served, model="nobody").status_code == 404
    assert httpx.get(served.url + "/no/such/path").status_code == 404
    leave_early(served, 1.0)  # in decode
    served.eventually(served.idle, 20)
    leave_early(served, 1.0, prompt=[5] * 1900)  # in prefill
    served.eventually(served.idle, 20)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(ask, served, max_tokens=3000)
        served.eventually(lambda: served.metric("vitrine_requests_running") == 1, 20)
        queued = pool.submit(leave_early, served, 5.0)
        served.eventually(lambda: served.metric("vitrine_requests_waiting") == 1, 20)
        assert ask(served).status_code == 429
        queued.result(30)
        os.kill(served.pid(Stage.RUNNER), signal.SIGKILL)
        assert running.result(60).status_code >= 500
    found = wait_for_roots(served, receiver, 7, 30)
    traces = receiver.traces()
    seen = []
    for root in found:
        assert root.attributes.get("error.type") and root.is_error, root
        own = traces[root.trace_id]
        check_family(own, root)
        seen.append((root.attributes.get("http.response.status_code"), frozenset(span.name for span in own) & CHAIN))
    stages = Counter(seen)
    reached = {"route", "tokenize", "queue"}
    assert stages[429, frozenset()] == 1
    assert stages[400, frozenset()] == 1 and stages[404, frozenset()] >= 1
    aborted = [root for root in found if root.attributes["error.type"] == "client_disconnected"]
    parts = [frozenset(span.name for span in traces[root.trace_id]) & CHAIN for root in aborted]
    assert sorted(map(len, parts)) == sorted(
        [len(reached), len(reached | {"prefill"}), len(reached | {"prefill", "decode", "detokenize"})]
    ), parts
    failed = [root for root in found if (root.attributes.get("http.response.status_code") or 0) >= 500]
    assert len(failed) == 1 and {span.name for span in traces[failed[0].trace_id]} >= reached


BAD_CONTEXTS = [
    {"traceparent": "garbage"},
    {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"},
    {"traceparent": f"ff-{'a' * 32}-{'b' * 16}-01"},
    {"traceparent": f"00-{'A' * 32}-{'B' * 16}-01"},
    [("traceparent", f"00-{'a' * 32}-{'b' * 16}-01"), ("traceparent", f"00-{'c' * 32}-{'d' * 16}-01")],
]


def test_the_callers_flag_decides_and_bad_headers_begin_a_fresh_trace(serve, receiver):
    """TR-09."""
    served = serve(*SIMULATED, "--otlp-endpoint", receiver.endpoint, "--trace-ratio", "0")
    assert ask(served, {"traceparent": f"00-{'12' * 16}-{'34' * 8}-01"}).status_code == 200
    for _ in range(30):
        assert ask(served, {"traceparent": f"00-{'56' * 16}-{'34' * 8}-00"}).status_code == 200
    for headers in BAD_CONTEXTS:
        answer = httpx.post(
            served.url + COMPLETIONS, json={"model": MODEL, "prompt": [5], "max_tokens": 1}, headers=headers, timeout=60
        )
        assert answer.status_code == 200
        trace_id = re.fullmatch(r"00-([0-9a-f]{32})-[0-9a-f]{16}-0[01]", answer.headers["traceparent"])[1]
        assert trace_id not in {"a" * 32, "c" * 32, "0" * 32}
    long_state = {"traceparent": f"00-{'78' * 16}-{'34' * 8}-01", "tracestate": ",".join(["k=" + "v" * 250] * 40)}
    assert ask(served, long_state).status_code == 200
    assert ask(served, max_tokens=0, temperature=-1).status_code == 400  # an error: kept, whatever the ratio
    wait_for_roots(served, receiver, 3)
    assert served.stop()[0] == 0  # flushed: nothing more will come
    assert sorted(root.trace_id for root in roots(receiver) if not root.is_error) == ["12" * 16, "78" * 16]
    assert len(roots(receiver)) == 3
    assert len(served.request_rows()) == 30 + 3 + len(BAD_CONTEXTS)  # recorded all the same
    assert len([line for line in served.log_lines() if line["level"] in ("warning", "error")]) <= 2


def test_a_slow_request_and_its_late_steps_are_kept_whatever_the_ratio(serve, receiver):
    served = serve(
        *SLOW, "--otlp-endpoint", receiver.endpoint, "--trace-ratio", "0", "--objective-itl", "0.015",
        "--objective-ttft", "30",
    )  # fmt: skip
    assert ask(served, max_tokens=1).status_code == 200
    slow = ask(served, max_tokens=20)
    (root,) = wait_for_roots(served, receiver, 1)
    assert root.attributes["vitrine.request_id"] == slow.headers["x-request-id"]
    served.eventually(lambda: sum(s.name == "step" for s in list(receiver.spans)) >= 19, 20, "its steps")
    decode = next(s for s in receiver.spans if s.name == "decode" and s.trace_id == root.trace_id)
    steps = {(s.trace_id, s.span_id): s for s in receiver.spans if s.name == "step"}
    assert len(decode.links) == 19 and set(decode.links) <= set(steps)
    for link in decode.links:
        assert (root.trace_id, root.span_id) in steps[link].links
        parts = {s.name for s in receiver.spans if s.parent_id == steps[link].span_id}
        assert parts == {"schedule", "execute", "sample", "publish"}


def test_nobody_listens_and_no_socket_is_left_open(serve):
    """A receiver that takes connections and reads nothing is no reason to wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = serve(*SIMULATED, "--otlp-endpoint", f"grpc://127.0.0.1:{listener.getsockname()[1]}")
        assert ask(served).status_code == 200
        served.eventually(lambda: served.health()["status"] == "degraded", 40, "degraded")
        started = time.monotonic()
        assert served.stop(timeout_s=30)[0] == 0
        assert time.monotonic() - started < 10
