from __future__ import annotations

import msgspec
import pytest
from starlette.testclient import TestClient

from dashboard.app import create_app
from dashboard.hub import Hub
from tests.dashboard.factories import INCARNATION, World, make_request


def test_overview_has_equal_columns(client: TestClient) -> None:
    answer = client.get("/api/overview?window=5m").json()
    lengths = {len(column) for column in answer["series"].values()}
    assert len(lengths) == 1
    assert 290 <= lengths.pop() <= 301
    assert answer["health"]["word"] == "Healthy"
    assert {tile["name"] for tile in answer["overview"]["tiles"]} >= {"First token", "Between tokens", "Errors"}


@pytest.mark.parametrize("window", ["5m", "15m", "1h"])
def test_no_window_has_more_than_a_screen_of_points(client: TestClient, window: str) -> None:
    assert len(client.get(f"/api/overview?window={window}").json()["series"]["ts"]) <= 302


def test_request_has_all_there_is(client: TestClient) -> None:
    answer = client.get("/api/requests/req-slow01").json()
    sequence = answer["sequences"][0]
    assert answer["request"]["preemptions"] == 1
    assert [wait[2] for wait in sequence["wait_spans"]] == ["max_running", "kv_blocks", "preempted"]
    assert sequence["tokens"]["output"][0]["gap_s"] is None
    assert len(sequence["tokens"]["output"]) == 54
    assert [lane["label"] for lane in answer["stages"]][:3] == ["request", "tokenize", "queue"]


def test_steps_of_a_window(world: World, client: TestClient) -> None:
    step = {"incarnation_id": INCARNATION, "step_id": 1, "planned_ts": world.now - 5, "kind": "decode", "num_seqs": 1}
    step |= {"num_tokens": 1, "waiting": 0, "blocks_free": 1, "blocks_active": 1, "blocks_cached": 0}
    step |= dict.fromkeys(("schedule_s", "execute_s", "sample_s", "publish_s", "idle_s", "duration_s"), 0.001)
    step |= {"plan": msgspec.msgpack.encode([["req-slow01", 0, 10, 1, 42]])}
    world.add("steps", step, {**step, "step_id": 2, "planned_ts": world.now - 500})
    assert [s["step_id"] for s in client.get("/api/steps").json()["steps"]] == [1]
    url = f"/api/steps?since={world.now - 600}&until={world.now - 400}"
    assert client.get(url).json()["steps"][0]["plan"] == [["req-slow01", 0, 10, 1, 42]]
    assert client.get("/api/steps?since=x").status_code == 400


def test_replicas(client: TestClient) -> None:
    answer = client.get("/api/replicas").json()
    replica = answer["replicas"][0]
    assert replica["load"]["waiting"]["kv_blocks"] == 2
    assert [process["stage"] for process in replica["processes"]] == ["tokenizer", "scheduler", "runner", "detokenizer"]
    assert replica["processes"][0]["usage"]["rss_bytes"] > 1 << 20
    assert replica["info"]["model_sha256"]


def test_errors_are_json(client: TestClient) -> None:
    for path in ("/api/requests/nobody", "/api/nothing"):
        response = client.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"]["message"]


class Metrics:
    async def ask(self, accept: str) -> tuple[str, bytes] | None:
        return accept, b"# EOF\n"


def test_metrics_are_passed_on_with_the_format_asked_for(world: World) -> None:
    app = create_app(world.sources(Metrics()), Hub())
    with TestClient(app, base_url="http://localhost") as client:
        response = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert response.content == b"# EOF\n"
    assert response.headers["content-type"] == "application/openmetrics-text"


def test_metrics_say_that_telemetry_is_away(client: TestClient) -> None:
    assert client.get("/metrics").status_code == 503


def test_values_that_are_one_of_few_are_checked_and_named(client: TestClient) -> None:
    refused = client.get("/api/requests?state=foo")
    assert refused.status_code == 400
    assert "state is one of finished, running, tokenizing, waiting, not 'foo'" in refused.text
    assert "min_ttft_ms must be a number, not 'abc'" in client.get("/api/requests?min_ttft_ms=abc").text


def test_a_request_is_found_by_the_id_of_its_answer_and_by_a_unique_beginning(world: World, client: TestClient) -> None:
    world.add("requests", make_request("req-00aa11", world.now), make_request("req-00aa22", world.now))
    for text in ("req-00aa11", "chatcmpl-00aa11", "cmpl-00aa11", "req-00aa1"):
        assert client.get(f"/api/requests/{text}").json()["request"]["request_id"] == "req-00aa11"
        assert client.get(f"/requests/{text}").status_code == 200
    assert client.get("/api/requests/req-00aa").status_code == 404
    found = client.get("/api/requests?id=chatcmpl-00aa").json()["requests"]
    assert {row["request_id"] for row in found} == {"req-00aa11", "req-00aa22"}


def test_a_request_whose_end_was_lost_does_not_count_on(world: World, client: TestClient) -> None:
    ended = {"e2e_s": None, "sent_at": None, "finished_at": None, "updated_ts": world.now - 3500}
    lost = make_request("req-lost01", world.now - 3600, finish_reason="error", http_status=None) | ended
    world.add("requests", lost | {"error_type": "records_lost", "error_message": "how it ended was not recorded"})
    page = client.get("/requests/req-lost01").text.replace("\u00a0", " ")
    assert "Ended, nobody knows when." in page and "how it ended was not recorded" in page
    assert "1 min 40 s" in page and "1 h" not in page.split("Waterfall")[1].split("</section>")[0]
    row = client.get("/requests?id=req-lost01").text.split('id="row-req-lost01"')[1].split("</tr>")[0]
    assert "…" not in row
