from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from engine.config import Config
from tests.dashboard.conftest import client_of
from tests.dashboard.factories import MODEL, World, make_request, make_sequence, make_unfinished

REQUESTS = tuple(f"/requests/req-{name}" for name in ("slow01", "run001", "refused"))
PAGES = ("/", "/requests", *REQUESTS, "/replicas", "/help")


def text_of(html: str) -> str:
    """What a reader sees, roughly: no tags, single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html).replace("\u00a0", " "))


@pytest.mark.parametrize("path", PAGES)
def test_every_page_answers_in_time(client: TestClient, path: str) -> None:
    client.get(path)
    best = 1.0
    for _ in range(4):
        start = time.perf_counter()
        response = client.get(path)
        best = min(best, time.perf_counter() - start)
    assert response.status_code == 200
    assert best < 0.1


@pytest.mark.parametrize("path", PAGES)
def test_no_page_needs_inline_script_or_style(client: TestClient, path: str) -> None:
    html = client.get(path).text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)


def test_overview_names_the_bottleneck_and_the_objectives(client: TestClient) -> None:
    text = text_of(client.get("/").text)
    assert "The runner is the bottleneck" in text
    assert "95 % of requests have their first token within this. Objective 1 s" in text


def test_overview_carries_its_window_to_the_other_pages(client: TestClient) -> None:
    html = client.get("/?window=1h").text
    assert 'href="/requests?window=1h"' in html
    assert 'aria-current="true">1h</a>' in html


def test_overview_ignores_an_unknown_window(client: TestClient) -> None:
    assert 'aria-current="true">15m</a>' in client.get("/?window=2y").text


def test_requests_of_every_kind_are_listed(client: TestClient) -> None:
    text = text_of(client.get("/requests").text)
    for shown in ("running", "waiting", "error 502", "error 400", "abort", "req-slow01 stop"):
        assert shown in text


def test_newest_requests_come_first(client: TestClient) -> None:
    ids = [row["request_id"] for row in client.get("/api/requests").json()["requests"]]
    assert ids[:2] == ["req-wait01", "req-run001"]


def test_load_more_goes_on_where_the_page_ended(client: TestClient) -> None:
    first = client.get("/requests").text
    more = re.search(r'hx-get="([^"]+)"', first)
    assert more
    rows = client.get(more[1].replace("&amp;", "&"), headers={"hx-request": "true"}).text
    shown, later = (set(re.findall(r'id="row-([^"]+)"', html)) for html in (first, rows))
    assert len(shown) == 50
    assert later
    assert not shown & later
    assert "<html" not in rows


def test_request_says_why_it_was_slow_with_parts_that_add_up(client: TestClient) -> None:
    text = text_of(client.get("/requests/req-slow01").text)
    assert "1.84 s (60 %) waiting for free KV blocks" in text
    assert "preempted, once: its KV blocks went to other sequences" in text
    why = client.get("/api/requests/req-slow01").json()
    assert sum(part["share"] for part in why["parts"]) == pytest.approx(1, abs=0.02)


def test_request_shows_its_tokens_with_the_bytes_of_split_characters(client: TestClient) -> None:
    html = client.get("/requests/req-slow01").text
    assert '<span class="piece">·vitrine</span>' in html
    assert '<span class="piece">\\xf0</span>' in html


def test_request_marks_slow_gaps(client: TestClient) -> None:
    assert "1 slow" in text_of(client.get("/requests/req-slow01").text)


def test_running_request_shows_what_is_known_so_far(client: TestClient) -> None:
    text = text_of(client.get("/requests/req-run001").text)
    assert "Running now: 31 tokens so far" in text
    assert "The parts are known once the request has finished" in text


def test_refused_request_shows_its_error(client: TestClient) -> None:
    text = text_of(client.get("/requests/req-refused").text)
    assert "Refused by the tokenizer after 3.1 ms" in text
    assert "the prompt has 1,990 and max_tokens is 256" in text


def test_sequences_of_one_request_can_be_chosen(world: World, client: TestClient) -> None:
    row = make_request("req-multi", world.now, num_sequences=3)
    world.add("requests", row)
    world.add("sequences", *(make_sequence(row, i) for i in range(3)))
    html = client.get("/requests/req-multi?sequence=2").text
    assert re.search(r'sequence=2#tokens" aria-current="true">#2', html)
    assert "decode #2" in html


def test_long_answers_are_shown_in_pages_of_tokens(world: World, client: TestClient) -> None:
    world.add_finished(make_request("req-long", world.now), answer="In the vitrine stood a small glass. " * 150)
    html = client.get("/requests/req-long?from=500").text
    assert "501–1000 of" in html
    assert '/requests/req-long?from=1000#table">later</a>' in html
    assert '/requests/req-long#table">earlier</a>' in html


def test_unknown_request_is_404_and_says_so(client: TestClient) -> None:
    response = client.get("/requests/req-nobody")
    assert response.status_code == 404
    assert "There is no request with this id" in response.text


def test_replicas_show_processes_and_versions(client: TestClient) -> None:
    text = text_of(client.get("/replicas").text)
    for shown in ("r0 ready", "tokenizer", "540", "9f1c2f6c0b7d", "killed by SIGKILL"):
        assert shown in text


def test_pages_read_without_a_store(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add_pages()
    with client_of(world) as client:
        assert "There is no history to show" in client.get("/").text
        assert "No requests yet" in client.get("/requests").text
        assert "r0" in client.get("/replicas").text
        assert client.get("/requests/x").status_code == 503
        assert client.get("/api/requests").status_code == 503


def test_empty_pages_teach(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.engine
    with client_of(world) as client:
        for path in ("/", "/requests"):
            html = client.get(path).text
            assert "curl -N http://127.0.0.1:8000/v1/chat/completions" in html
            assert MODEL in html


def test_tokens_say_when_the_log_is_off(tmp_path: Path) -> None:
    world = World(tmp_path, Config(data_dir=str(tmp_path / "data"), token_log="off"))
    row = make_request("req-1", world.now)
    world.add("requests", row)
    world.add("sequences", make_sequence(row))
    with client_of(world) as client:
        assert "The token log is off" in client.get("/requests/req-1").text


def test_a_waiting_request_can_be_opened(world: World, client: TestClient) -> None:
    world.add("requests", make_unfinished("req-w", world.now, "waiting"))
    assert "Waiting in the scheduler" in client.get("/requests/req-w").text
