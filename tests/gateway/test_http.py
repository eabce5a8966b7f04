"""Status, headers and errors as any HTTP client sees them; and the small endpoints."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import zmq
import zmq.asyncio

from engine.gateway import endpoints
from engine.gateway.responses import ResponseWriter
from engine.messages import DataMessage, IdsReply, IdsToText, Refused, TextReply, TextToIds
from engine.run_folder import metrics_address
from telemetry.events import RequestFinished, RequestReceived, ResponseSent
from telemetry.span_ids import server_span_id
from tests.gateway.conftest import MakeRig
from tests.gateway.rig import CONTEXT, LONGEST_TOKEN, MODEL, Rig, until

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- what all responses have


@pytest.mark.parametrize("path", ["/health", "/version", "/v1/models", "/nothing", "/v1/completions"])
async def test_every_response_has_the_common_headers(rig: Rig, path: str) -> None:
    headers = (await rig.client.get(path)).headers
    assert re.fullmatch("req-[0-9a-f]{24}", headers["x-request-id"])
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", headers["traceparent"])
    assert re.fullmatch(r"total;dur=\d+\.\d{3}", headers["server-timing"])
    assert headers["server"] == "vitrine"
    assert headers["x-content-type-options"] == "nosniff"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_times_its_first_token(rig: Rig, stream: bool) -> None:
    timing = (await rig.complete(stream=stream)).headers["server-timing"]
    ttft, total = (float(part) for part in re.findall(r"dur=([\d.]+)", timing))
    assert timing.startswith("ttft;") and 0 < ttft <= total


async def test_the_callers_request_id_is_echoed_and_recorded(rig: Rig) -> None:
    body = {"model": MODEL, "prompt": "Hi"}
    response = await rig.client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert (await rig.record(RequestReceived)).client_request_id == "mine-1"


@pytest.mark.parametrize("value", [b"two words", b"x" * 129, b"\xe4", b""])
async def test_a_strange_request_id_is_replaced(rig: Rig, value: bytes) -> None:
    headers = (await rig.client.get("/version", headers=[(b"X-Request-Id", value)])).headers
    assert headers["x-request-id"].startswith("req-")


async def test_the_callers_trace_goes_on_under_our_span(rig: Rig) -> None:
    body = {"model": MODEL, "prompt": "Hi"}
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": "a=1"}
    response = await rig.client.post("/v1/completions", json=body, headers=headers)
    received = await rig.record(RequestReceived)
    span = f"{server_span_id(received.request_id):016x}"
    assert response.headers["traceparent"] == f"00-{TRACE}-{span}-00"
    assert (received.trace_id, received.parent_span_id, received.trace_flags) == (TRACE, SPAN, 0)
    assert received.tracestate == "a=1"


# --- errors


async def test_errors_have_one_shape(rig: Rig) -> None:
    missing = await rig.client.get("/v1/nothing")
    wrong_method = await rig.client.get("/v1/completions")
    no_json = await rig.client.post("/v1/completions", content="{}", headers={"content-type": "text/plain"})
    bad = await rig.complete(temperature=-1)
    other = await rig.client.post("/v1/completions", json={"model": "gpt", "prompt": "Hi"})
    found = [(r.status_code, error_of(r)["code"], error_of(r)["param"]) for r in (missing, wrong_method, no_json)]
    assert found == [
        (404, "unknown_url", None),
        (405, "method_not_allowed", None),
        (415, "unsupported_media_type", None),
    ]
    assert wrong_method.headers["allow"] == "POST"
    assert (bad.status_code, error_of(bad)["param"]) == (400, "temperature")
    assert (other.status_code, error_of(other)["code"], error_of(other)["param"]) == (404, "model_not_found", "model")


async def test_refused_requests_are_recorded_too(rig: Rig) -> None:
    await rig.complete(temperature=-1)
    await rig.client.post("/v1/chat/completions", content="{}", headers={"content-type": "text/plain"})
    await rig.client.post("/v1/completions", json={"model": "gpt", "prompt": "Hi", "user": "ann"})
    await rig.record(ResponseSent, 3)
    assert [(r.endpoint, r.model) for r in rig.records(RequestReceived)] == [
        ("/v1/completions", ""),
        ("/v1/chat/completions", ""),
        ("/v1/completions", "gpt"),
    ]
    assert rig.records(RequestReceived)[2].params == {"user": "ann"}
    finished = rig.records(RequestFinished)
    assert [(f.finish_reason, f.http_status, f.error_type) for f in finished] == [
        ("error", 400, "invalid_value"),
        ("error", 415, "unsupported_media_type"),
        ("error", 404, "model_not_found"),
    ]


async def test_other_paths_are_no_requests(rig: Rig) -> None:
    for method, path in (("GET", "/x%22%5C%0Ay"), ("GET", "/v1/completions"), ("POST", "/x"), ("BREW", "/health")):
        response = await rig.client.request(method, path)
        assert response.status_code in (400, 404, 405)
    assert rig.records(RequestReceived) == []


@pytest.mark.parametrize("path", ["//etc/passwd", "/..%2f..%2fetc%2fpasswd", "/v1/models/", "/v1/models/x/../y"])
async def test_strange_paths_are_404(rig: Rig, path: str) -> None:
    assert (await rig.client.get(rig.url + path)).status_code == 404


async def test_a_bug_is_a_500_and_is_recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.service, "check_model", lambda name: 1 / 0)
    response = await rig.complete()
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "division" not in response.text
    assert (await rig.record(RequestFinished)).error_type == "internal_error"


async def test_a_bug_in_the_answer_is_a_500_and_is_recorded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ResponseWriter, "whole", lambda *args: 1 / 0)
    response = await rig.complete()
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    finished = await rig.record(RequestFinished)
    assert (finished.finish_reason, finished.http_status) == ("error", 500)


# --- large bodies


async def test_a_body_over_the_limit_is_413_whether_announced_or_not(make_rig: MakeRig) -> None:
    rig = await make_rig(max_body_bytes=100_000)
    body = b'{"model":"tiny","prompt":"' + b"x" * 5_000_000 + b'"}'

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 1 << 16):
            yield body[at : at + (1 << 16)]

    headers = {"content-type": "application/json"}
    for content in (body, chunks()):
        response = await rig.client.post("/v1/completions", content=content, headers=headers)
        assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert (await rig.client.get("/version")).status_code == 200


async def test_large_prompts_are_refused_without_holding_up_others(rig: Rig) -> None:
    longest = 0.0
    done = asyncio.Event()

    async def ask_for_health() -> None:
        nonlocal longest
        async with httpx.AsyncClient(base_url=rig.url) as other:
            while not done.is_set():
                start = time.monotonic()
                await other.get("/version")
                longest = max(longest, time.monotonic() - start)

    others = asyncio.create_task(ask_for_health())
    for prompt in ("x" * 27_000_000, [1] * 3_000_000):
        response = await rig.complete(prompt=prompt)
        assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")
    done.set()
    await others
    assert rig.replicas[0].seen == []
    assert longest < 1.0


# --- keys


async def test_with_a_key_set_only_its_bearer_gets_in(make_rig: MakeRig) -> None:
    rig = await make_rig(api_key="secret")
    await rig.direct(rig.replica().entry())
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")):
            response = await rig.client.request(method, path, headers=headers, json={})
            assert (response.status_code, error_of(response)["code"]) == (401, "invalid_api_key")
    for path in ("/health", "/ready", "/version"):
        assert (await rig.client.get(path)).status_code in (200, 503)
    rig.client.headers["authorization"] = "Bearer secret"
    assert (await rig.complete()).status_code == 200
    assert (await rig.record(RequestFinished)).http_status == 401


# --- models, tokens, versions


async def test_models_are_listed_and_described(rig: Rig) -> None:
    listed = (await rig.client.get("/v1/models")).json()
    assert [m["id"] for m in listed["data"]] == [MODEL] and listed["object"] == "list"
    assert (await rig.client.get(f"/v1/models/{MODEL}")).json() == listed["data"][0]
    assert (await rig.client.get("/v1/models/org/other")).status_code == 404
    assert (await rig.client.head("/v1/models")).status_code == 200


async def test_the_served_name_may_be_chosen(make_rig: MakeRig) -> None:
    rig = await make_rig(served_model_name="org/name")
    assert (await rig.client.get("/v1/models/org/name")).json()["id"] == "org/name"


def tokenizer(message: DataMessage) -> DataMessage | None:
    match message:
        case TextToIds(return_token_strs=strs):
            return IdsReply(message.request_id, message.gateway, [7, 8], ["a", "b"] if strs else None)
        case IdsToText(token_ids=(99,)):
            return Refused(message.request_id, message.gateway, 400, "invalid_request_error", "no id 99", "tokens")
        case IdsToText():
            return TextReply(message.request_id, message.gateway, "hello")
    return None


async def test_tokenize_and_detokenize_have_vllms_shapes(rig: Rig) -> None:
    rig.replicas[0].answers = tokenizer
    plain = await rig.client.post("/tokenize", json={"prompt": "ab"})
    assert plain.json() == {"count": 2, "max_model_len": CONTEXT, "tokens": [7, 8], "token_strs": None}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "return_token_strs": True}
    assert (await rig.client.post("/tokenize", json=body)).json()["token_strs"] == ["a", "b"]
    questions = [m for m in rig.replicas[0].seen if isinstance(m, TextToIds)]
    assert [q.add_special_tokens for q in questions] == [True, False]
    assert (await rig.client.post("/detokenize", json={"tokens": [7, 8]})).json() == {"prompt": "hello"}
    refused = await rig.client.post("/detokenize", json={"tokens": [99]})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "tokens")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": 1}, 400, "prompt"),
        ("/tokenize", {"prompt": "x" * (CONTEXT * LONGEST_TOKEN + 1)}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "other": 1}, 400, "other"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, 404, "model"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
    ],
)
async def test_bad_questions_about_tokens_are_refused(
    rig: Rig, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    response = await rig.client.post(path, json=body)
    assert (response.status_code, error_of(response)["param"]) == (status, param)


async def test_a_question_ends_with_the_replica_that_was_asked(rig: Rig) -> None:
    question = asyncio.create_task(rig.client.post("/tokenize", json={"prompt": "ab"}))
    await rig.replicas[0].saw(TextToIds)
    await rig.direct()
    assert (await question).status_code == 503


async def test_ready_says_whether_requests_are_taken(make_rig: MakeRig) -> None:
    rig = await make_rig()
    assert (await rig.client.get("/ready")).status_code == 503
    await rig.direct(rig.replica().entry())
    assert (await rig.client.get("/ready")).status_code == 200


# --- metrics


async def test_metrics_are_what_telemetry_answers(rig: Rig) -> None:
    context = zmq.asyncio.Context()
    telemetry = context.socket(zmq.ROUTER)
    telemetry.bind(metrics_address(rig.run.socket_dir))
    try:
        scrape = asyncio.create_task(rig.client.get("/metrics", headers={"accept": "application/openmetrics-text"}))
        peer, empty, accept = await telemetry.recv_multipart()
        assert accept == b"application/openmetrics-text"
        await telemetry.send_multipart([peer, empty, b"text/plain; version=0.0.4", b"up 1\n"])
        response = await scrape
    finally:
        context.destroy(linger=0)
    assert (response.status_code, response.text) == (200, "up 1\n")
    assert response.headers["content-type"] == "text/plain; version=0.0.4"


async def test_metrics_are_503_while_telemetry_is_away(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "METRICS_TIMEOUT_S", 0.05)
    response = await rig.client.get("/metrics")
    assert (response.status_code, error_of(response)["code"]) == (503, "metrics_unavailable")


async def test_a_client_that_leaves_during_a_question_disturbs_nobody(rig: Rig) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await rig.client.post("/tokenize", json={"prompt": "ab"}, timeout=0.1)
    assert (await rig.client.get("/version")).status_code == 200
    await until(lambda: len(rig.engine._questions) <= 1)
