"""``GET /api/export/…`` over a made-up world."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from dashboard import exports
from dashboard.sources import Sources
from tests.dashboard.conftest import client_of
from tests.dashboard.factories import INCARNATION, World, make_request


def make_step(step_id: int, planned_ts: float, **changes: Any) -> dict[str, Any]:
    step = {"incarnation_id": INCARNATION, "step_id": step_id, "planned_ts": planned_ts, "kind": "decode"}
    step |= {"num_seqs": 1, "num_tokens": 1, "waiting": 0, "blocks_free": 1, "blocks_active": 1, "blocks_cached": 0}
    step |= dict.fromkeys(("schedule_s", "execute_s", "sample_s", "publish_s", "idle_s"), 0.001)
    step |= {"duration_s": 0.01, "execute_at": 0.002, "plan": msgspec.msgpack.encode([["req-slow01", 0, 10, 1, 42]])}
    return step | changes


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_requests_are_all_there_oldest_first(client: TestClient) -> None:
    response = client.get("/api/export/requests")
    rows = lines_of(response.text)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["content-disposition"] == 'attachment; filename="vitrine-requests.jsonl"'
    assert len(rows) == 77
    assert [row["received_ts"] for row in rows] == sorted(row["received_ts"] for row in rows)
    assert {row["state"] for row in rows} == {"finished", "running", "waiting"}


def test_a_window_narrows(world: World, client: TestClient) -> None:
    rows = lines_of(client.get(f"/api/export/requests?since={world.now - 10}&until={world.now - 6}").text)
    assert [row["request_id"] for row in rows] == ["req-refused", "req-abort1"]


def test_csv(client: TestClient) -> None:
    response = client.get("/api/export/tokens?format=csv")
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    assert [row["request_id"] for row in rows] == ["req-slow01", "req-good01"]
    assert len(json.loads(rows[0]["output_token_ids"])) == 54


def test_tokens_are_the_lines_of_the_token_log(client: TestClient) -> None:
    first, second = lines_of(client.get("/api/export/tokens").text)
    assert first["request_id"] == "req-slow01"
    assert len(second["step_ids"]) == len(second["output_token_ids"]) == 54


def test_steps_as_a_trace_and_as_lines(world: World, client: TestClient) -> None:
    world.add("steps", make_step(1, world.now - 5), make_step(2, world.now - 500))
    trace = client.get("/api/export/steps").json()
    assert [e["args"]["step"] for e in trace["traceEvents"] if e["name"] == "decode"] == [2, 1]
    url = f"/api/export/steps?format=jsonl&since={world.now - 60}"
    (row,) = lines_of(client.get(url).text)
    assert row["plan"] == [["req-slow01", 0, 10, 1, 42]]


def test_traces_are_those_of_finished_requests(client: TestClient) -> None:
    traces = lines_of(client.get("/api/export/traces").text)
    assert len(traces) == 75
    spans = traces[-1]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert spans[0]["status"]["code"] == 2


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("nothing", 404, "choose requests, tokens, traces, steps"),
        ("requests?format=chrome", 400, "format is one of jsonl, csv, not 'chrome'"),
        ("steps?format=csv", 400, "format is one of chrome, jsonl, not 'csv'"),
        ("tokens?since=yesterday", 400, "seconds since the epoch"),
        ("tokens?limit=5", 400, "limit"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_words(client: TestClient, path: str, status: int, says: str) -> None:
    response = client.get("/api/export/" + path)
    assert response.status_code == status
    assert says in response.json()["error"]["message"]


def test_without_a_store_the_answer_says_so(tmp_path: Any) -> None:
    with client_of(World(tmp_path)) as client:
        response = client.get("/api/export/requests")
    assert response.status_code == 503
    assert "store" in response.json()["error"]["message"]


def test_an_export_does_not_grow_with_what_it_exports(tmp_path: Any) -> None:
    world = World(tmp_path)
    params = {"stop": ["x" * 8000]}
    world.add("requests", *(make_request(f"req-{i:06d}", world.now + i, params=params) for i in range(3000)))
    sources: Sources = world.sources()
    tracemalloc.start()
    kind = exports._EXPORTS["requests"]
    total = sum(map(len, exports._in_chunks(exports._stream(sources, kind, (None, None), "jsonl"))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 24_000_000
    assert peak < 14_000_000
