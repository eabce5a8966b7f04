"""The store in a real PostgreSQL, by URL."""

from __future__ import annotations

import json

import httpx
import psycopg
import pytest

from tests.e2e.clients import COMPLETIONS, MODEL
from tests.e2e.served import vitrine
from tests.postgresql import PostgresqlServer

BODY = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True}


@pytest.fixture
def server():
    """One of our own: it is stopped and started."""
    with PostgresqlServer() as server:
        yield server


def finished(url: str) -> list[tuple]:
    with psycopg.connect(url) as connection:
        query = "SELECT request_id, output_tokens FROM requests WHERE state = 'finished' ORDER BY received_ts"
        return connection.execute(query).fetchall()


def test_requests_go_on_while_the_database_is_away_and_are_there_when_it_is_back(serve, server):
    url = server.new_database()
    served = serve("--device", "simulated", "--store-url", url)

    def ask() -> str:
        answer = httpx.post(served.url + COMPLETIONS, json=BODY, timeout=30)
        assert answer.status_code == 200
        return answer.headers["x-request-id"]

    ids = [ask()]
    served.eventually(lambda: len(finished(url)) == 1, 20, "the first request in the database")
    assert not (served.data / "vitrine.db").exists()
    server.stop()
    ids += [ask() for _ in range(20)]
    served.eventually(lambda: served.health()["status"] == "degraded", 20, "degraded")
    assert "the store cannot be written" in served.health()["reasons"][0]
    assert httpx.get(served.dashboard_url, timeout=20).status_code == 200  # says that there is no history
    server.start()
    served.eventually(lambda: len(finished(url)) == 21, 30, "everything in the database")
    served.eventually(lambda: served.health()["status"] == "ok", 20, "ok again")
    assert finished(url) == [(request_id, 5) for request_id in ids]
    assert served.metric("vitrine_telemetry_dropped_total", 'sink="store"') == 0
    listed = vitrine("requests", "--limit", "50", "--url", served.dashboard_url, "--json").communicate(timeout=30)[0]
    assert [row["request_id"] for row in json.loads(listed)["requests"]] == ids[::-1]
    exported = vitrine("export", "tokens", "--url", served.dashboard_url).communicate(timeout=30)[0]
    assert {json.loads(line)["request_id"] for line in exported.splitlines()} == set(ids)
    assert served.stop()[0] == 0


def test_a_database_that_is_not_there_is_a_start_that_fails_with_one_line_and_no_password(serve):
    served = serve(
        "--device", "simulated", "--store-url", "postgresql://ann:geheim@127.0.0.1:1/nowhere", wait=False
    )  # fmt: skip
    status, output = served.wait_exit(timeout_s=60)
    assert status == 1
    assert "cannot open the store postgresql" in output and "geheim" not in output
    assert not [path for path in served.data.rglob("*.jsonl") if "geheim" in path.read_text()]


def test_the_password_is_shown_nowhere():
    out, _ = vitrine("config", "--store-url", "postgresql://ann:geheim@h/d").communicate(timeout=30)
    assert "store_url" in out and "geheim" not in out
