from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.dashboard.factories import World, make_request


def ids(client: TestClient, query: str) -> list[str]:
    return [row["request_id"] for row in client.get(f"/api/requests?{query}").json()["requests"]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=running", ["req-run001"]),
        ("finish_reason=abort", ["req-abort1"]),
        ("finish_reason=error", ["req-failed", "req-refused"]),
        ("finish_reason=error&replica=r0", ["req-failed"]),
        ("min_ttft_ms=1000", ["req-slow01"]),
        ("id=req-slow", ["req-slow01"]),
        ("error_type=server_error", ["req-failed"]),
        ("replica=r7", []),
    ],
)
def test_filters_narrow_the_list(client: TestClient, query: str, found: list[str]) -> None:
    assert ids(client, query) == found


def test_trace_id_finds_its_requests(world: World, client: TestClient) -> None:
    world.add("requests", make_request("req-t", world.now, trace_id="0af7651916cd43dd8448eb211c80319c"))
    assert ids(client, "trace_id=0AF7651916CD43DD8448EB211C80319C") == ["req-t"]


def test_window_narrows_the_list(world: World, client: TestClient) -> None:
    found = ids(client, f"since={world.now - 10}&until={world.now - 6}")
    assert found == ["req-abort1", "req-refused"]


def test_pages_of_any_size_cover_the_list_once(client: TestClient) -> None:
    seen: list[str] = []
    cursor = ""
    while True:
        page = client.get(f"/api/requests?limit=7&cursor={cursor}").json()
        seen += [row["request_id"] for row in page["requests"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == ids(client, "limit=200")
    assert len(seen) == len(set(seen)) == 77


@pytest.mark.parametrize(
    "query", ["text=fox", "token=x", "foo=1", "min_ttft_ms=soon", "since=x", "cursor=!", "limit=x"]
)
def test_what_cannot_be_used_is_refused_by_name(client: TestClient, query: str) -> None:
    response = client.get(f"/api/requests?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert client.get(f"/requests?{query}").status_code == 400


def test_filters_stay_in_the_form_and_in_the_links(client: TestClient) -> None:
    html = client.get("/requests?state=finished&min_ttft_ms=20").text
    assert "<option selected>finished</option>" in html
    assert 'value="20.0"' in html
    assert "state=finished&amp;min_ttft_ms=20" in html
    assert "/api/events?page=requests&amp;state=finished&amp;min_ttft_ms=20" in html


def test_no_match_says_so(client: TestClient) -> None:
    assert "No request matches these filters" in client.get("/requests?replica=r7").text
