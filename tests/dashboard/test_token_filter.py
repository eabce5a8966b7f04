"""Requests by the token ids in them, from plain and compressed token log files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import delete
from starlette.testclient import TestClient

from dashboard import token_filter
from telemetry import schema
from telemetry.gzip_blocks import pack
from tests.dashboard.factories import World, make_request

GLASS = "glass glass"


@pytest.fixture
def glass(world: World) -> str:
    """Two requests with it in the prompt, one in the answer; the ids, as a filter."""
    world.add_finished(make_request("req-p1", world.now - 4, replica="r1"), prompt=f"see: {GLASS}", answer="in")
    world.add_finished(make_request("req-a2", world.now - 3), prompt="see", answer=f"the {GLASS}")
    world.add_finished(make_request("req-p3", world.now - 2), prompt=f"show {GLASS} in", answer="the")
    world.add_finished(make_request("req-n4", world.now - 1), prompt="the glass", answer="in a glass")
    ids = world.tokenizer.encode(f" {GLASS}").ids
    assert len(ids) > 1
    return ",".join(map(str, ids))


def ids(client: TestClient, query: str) -> list[str]:
    return [row["request_id"] for row in client.get(f"/api/requests?{query}").json()["requests"]]


def pages_of(client: TestClient, **params: str | int) -> Iterator[list[str]]:
    cursor = None
    while cursor != "":
        page = client.get("/api/requests", params={**params, "cursor": cursor or ""}).json()
        yield [row["request_id"] for row in page["requests"]]
        cursor = page["cursor"]


def compress(world: World) -> None:
    """As telemetry does it, in small blocks."""
    plain = world.data / schema.TOKEN_FOLDER / "tokens.jsonl"
    data = plain.read_bytes()
    blocks = [pack(data[i : i + 500]) for i in range(0, len(data) + 1, 500)]
    plain.with_name(plain.name + ".gz").write_bytes(b"".join(blocks))
    plain.unlink()


def test_requests_with_these_ids_newest_first(client: TestClient, glass: str) -> None:
    assert ids(client, f"token={glass}") == ["req-p3", "req-a2", "req-p1"]
    assert ids(client, f"token={glass},{glass}") == []


def test_other_filters_narrow_it_further(client: TestClient, world: World, glass: str) -> None:
    assert ids(client, f"token={glass}&replica=r1") == ["req-p1"]
    assert ids(client, f"token={glass}&since={world.now - 3.5}&until={world.now - 2.5}") == ["req-a2"]


@pytest.mark.parametrize("compressed", [False, True])
def test_pages_cover_all_once(client: TestClient, world: World, glass: str, compressed: bool) -> None:
    if compressed:
        compress(world)
    assert list(pages_of(client, token=glass, limit=1)) == [["req-p3"], ["req-a2"], ["req-p1"]]


def test_a_long_search_is_continued_by_its_cursor(
    client: TestClient, glass: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(world)
    monkeypatch.setattr(token_filter, "_SEARCH_S", -1.0)  # each page is one block
    pages = list(pages_of(client, token=glass))
    assert [one for page in pages for one in page] == ["req-p3", "req-a2", "req-p1"]
    assert len(pages) > 3


def test_a_request_whose_row_is_gone_is_left_out(client: TestClient, glass: str, world: World) -> None:
    with world.engine.begin() as connection:
        connection.execute(delete(schema.requests).where(schema.requests.c.request_id == "req-a2"))
    assert ids(client, f"token={glass}") == ["req-p3", "req-p1"]


@pytest.mark.parametrize("token", ["x", "-1", "1,,2", "1;2", "1.5", "99999999999"])
def test_what_is_no_token_id_is_refused(client: TestClient, token: str) -> None:
    answer = client.get("/api/requests", params={"token": token})
    assert answer.status_code == 400
    assert repr(token) in answer.json()["error"]["message"]


def test_a_cursor_of_the_other_list_is_refused(client: TestClient, glass: str) -> None:
    cursor = client.get("/api/requests?limit=1").json()["cursor"]
    assert client.get("/api/requests", params={"token": glass, "cursor": cursor}).status_code == 400


def test_a_request_is_shown_with_its_tokens_from_a_compressed_file(client: TestClient, world: World) -> None:
    before = client.get("/api/requests/req-good01").json()["sequences"][0]["tokens"]
    compress(world)
    assert client.get("/api/requests/req-good01").json()["sequences"][0]["tokens"] == before
    assert before["output"]
