from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from dashboard.hub import Hub
from tests.dashboard.factories import World, make_request, make_sample, make_unfinished
from tests.dashboard.serve import serving


@pytest.fixture
def hub() -> Hub:
    return Hub(tick_s=0.1, queue_limit=4)


@pytest.fixture
def url(world: World, hub: Hub) -> Iterator[str]:
    with serving(world, hub) as url:
        yield url


def events(response: httpx.Response) -> Iterator[tuple[str, str]]:
    name, data = "", []
    for line in response.iter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not line and data:
            yield name, "\n".join(data)
            name, data = "", []


def wait_for(stream: Iterator[tuple[str, str]], wanted: str, part: str = "") -> str:
    return next(data for name, data in stream if name == wanted and part in data)


def test_the_overview_streams_fragments_and_points(world: World, url: str) -> None:
    with httpx.stream("GET", f"{url}/api/events?page=overview&window=5m", timeout=10) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        stream = events(response)
        assert "p95" in wait_for(stream, "tiles")
        world.add("samples", make_sample(int(time.time()) + 1, generation_tokens=98765))
        assert wait_for(stream, "points", "98765")


def test_the_list_streams_new_requests_that_match(world: World, url: str) -> None:
    with httpx.stream("GET", f"{url}/api/events?page=requests&state=running", timeout=10) as response:
        stream = events(response)
        assert "req-good01" not in wait_for(stream, "rows")
        world.add("requests", make_unfinished("req-new", time.time(), "running"))
        assert "req-new" in wait_for(stream, "rows", "req-new")


def test_a_running_request_streams_until_it_ends(world: World, url: str) -> None:
    with httpx.stream("GET", f"{url}/api/events?page=request&id=req-run001", timeout=10) as response:
        stream = events(response)
        assert "31 tokens so far" in wait_for(stream, "head")
        world.add("requests", make_request("req-run001", time.time()))
        assert wait_for(stream, "finished")


def test_an_unknown_page_is_refused(url: str) -> None:
    assert httpx.get(f"{url}/api/events?page=nothing").status_code == 400


def test_streams_end_when_the_viewer_leaves(url: str, hub: Hub) -> None:
    with httpx.stream("GET", f"{url}/api/events?page=replicas", timeout=10) as response:
        wait_for(events(response), "replicas")
    deadline = time.monotonic() + 5
    while hub.viewers and time.monotonic() < deadline:
        httpx.get(f"{url}/help")
    assert hub.viewers == 0


def test_a_viewer_that_never_reads_is_dropped_while_others_see_on(url: str, hub: Hub) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        query = "page=requests&limit=50"  # a topic of its own, about 70 kB each time something changes
        stuck.sendall(f"GET /api/events?{query} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        with httpx.stream("GET", f"{url}/api/events?page=requests", timeout=10) as response:
            stream = events(response)
            deadline = time.monotonic() + 30
            while not hub.dropped_viewers and time.monotonic() < deadline:
                wait_for(stream, "tick")
        assert hub.dropped_viewers == 1
