"""What one request leaves behind: one trace, one log line, one row, one page."""

from __future__ import annotations

import itertools
import json
import time

import httpx
import pytest

from tests.e2e.served import Served
from tests.otlp_receiver import OtlpReceiver

CHAT = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 40,
    "return_token_ids": True,
}
CALLER = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}


@pytest.fixture(scope="module")
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module", params=["off", "on"], ids=["plain", "overlapped"])
def engine(tmp_path_factory, receiver, request):
    receiver.spans.clear()
    flags = ("--otlp-endpoint", receiver.endpoint, "--overlap", request.param)
    with Served(tmp_path_factory.mktemp("seen"), *flags) as served:
        yield served


@pytest.fixture(scope="module")
def answer(engine):
    answer = httpx.post(f"{engine.url}/v1/chat/completions", json=CHAT, headers=CALLER, timeout=60)
    assert answer.status_code == 200
    return answer


@pytest.fixture(scope="module")
def spans(engine, receiver, answer):
    trace = "ab" * 16

    def mine():
        return [s for s in receiver.spans if s.trace_id == trace]

    wanted = {"tokenize", "queue", "prefill", "decode", "detokenize"}
    engine.eventually(lambda: wanted <= {s.name for s in mine()}, 20, "the whole trace")
    return mine()


def test_one_trace_holds_all_stages_under_the_callers_span(spans):
    root = next(s for s in spans if s.name == "POST /v1/chat/completions")
    assert root.parent_id == "cd" * 8
    children = {s.name: s for s in spans if s.parent_id == root.span_id}
    assert {"route", "tokenize", "queue", "prefill", "decode", "detokenize"} <= set(children)
    services = {name: span.service for name, span in children.items()}
    assert services["tokenize"] == "vitrine-tokenizer" and services["queue"] == "vitrine-scheduler"
    assert services["prefill"] == services["decode"] == "vitrine-runner"
    assert services["detokenize"] == "vitrine-detokenizer" and root.service == "vitrine-gateway"
    ids = {s.span_id for s in spans}
    assert all(s.parent_id in ids for s in spans if s is not root)


def test_spans_lie_within_their_parents_and_follow_each_other(spans):
    by_id = {s.span_id: s for s in spans}
    for span in spans:
        assert span.end_ns >= span.start_ns
        parent = by_id.get(span.parent_id)
        if parent is not None:
            assert parent.start_ns - 1_000_000 <= span.start_ns and span.end_ns <= parent.end_ns + 1_000_000
    line = [next(s for s in spans if s.name == n) for n in ("tokenize", "queue", "prefill", "decode")]
    for a, b in itertools.pairwise(line):
        assert a.end_ns <= b.start_ns + 1_000_000, (
            f"{a.name} ends {(a.end_ns - b.start_ns) / 1e6} ms after {b.name} began"
        )


def test_the_parts_add_up_to_the_whole(engine, answer):
    engine.eventually(lambda: finished_row(engine, answer) is not None, 10)
    row = finished_row(engine, answer)
    parts = ("tokenize_s", "queue_s", "prefill_s", "decode_s", "drain_s", "transport_s")
    assert sum(row[part] for part in parts) == pytest.approx(row["e2e_s"], rel=0.02)


def test_the_log_line_has_the_ids_of_the_response(engine, answer):
    request_id = finished_row(engine, answer)["request_id"]
    engine.eventually(lambda: any(line["request_id"] == request_id for line in engine.token_lines()), 5)
    lines = [line for line in engine.token_lines() if line["request_id"] == request_id]
    assert len(lines) == 1
    body = answer.json()
    assert lines[0]["output_token_ids"] == body["choices"][0]["token_ids"]
    assert lines[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert lines[0]["trace_id"] == "ab" * 16


def finished_row(engine: Served, answer: httpx.Response) -> dict | None:
    rows = [r for r in engine.request_rows().values() if r["trace_id"] == "ab" * 16]
    return rows[0] if rows and rows[0]["state"] == "finished" else None


def test_metrics_count_what_was_asked(engine, answer):
    engine.eventually(lambda: finished_row(engine, answer) is not None, 10)
    tokens = answer.json()["usage"]

    def metric(name: str) -> float:
        lines = engine.get("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    engine.eventually(lambda: metric("vitrine_generation_tokens_total") >= tokens["completion_tokens"], 5)
    assert metric("gen_ai_server_time_to_first_token_seconds_count") >= 1
    assert metric("vitrine_requests_running") == 0


def test_the_page_of_the_request_shows_its_stages_and_tokens(engine, answer):
    row = finished_row(engine, answer)
    page = httpx.get(f"{engine.dashboard_url}/requests/{row['request_id']}")
    assert page.status_code == 200
    for text in ("tokenize", "queue", "prefill", "decode", "detokenize", "Paris"):
        assert text in page.text
    record = httpx.get(f"{engine.dashboard_url}/api/requests/{row['request_id']}").json()
    assert json.dumps(record).count(row["request_id"]) >= 1


def test_a_refused_request_is_seen_too(engine, receiver):
    refused = httpx.post(f"{engine.url}/v1/chat/completions", json=CHAT | {"temperature": -1})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "temperature"
    trace = refused.headers["traceparent"].split("-")[1]
    engine.eventually(lambda: any(s.trace_id == trace for s in receiver.spans), 10, "its span")
    root = next(s for s in receiver.spans if s.trace_id == trace)
    assert root.is_error
    engine.eventually(lambda: any(r["trace_id"] == trace for r in engine.request_rows().values()), 5)


def test_spans_of_the_last_requests_survive_sigterm(serve):
    with OtlpReceiver() as receiver:
        served = serve("--otlp-endpoint", receiver.endpoint)
        traces = set()
        for _ in range(10):
            body = {"model": "smollm2-135m-instruct", "prompt": "Hi", "max_tokens": 3}
            answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)
            traces.add(answer.headers["traceparent"].split("-")[1])
        began = time.monotonic()
        assert served.stop()[0] == 0
        assert time.monotonic() - began < 15
        assert traces == {s.trace_id for s in receiver.spans if s.name == "POST /v1/completions"}
