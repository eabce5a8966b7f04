from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.dashboard.factories import World, make_request

HOSTILE = (
    '<img src=x onerror="window.__x=1">',
    "</script><script>window.__x=1</script>",
    '"><svg onload=window.__x=1>',
    "[c](javascript:window.__x=1)",
    "\u202eevil\u0000\u001b[31m",
)


def add_hostile(world: World, text: str, request_id: str = "req-hostile") -> None:
    """A failed request with `text` wherever a client can put some."""
    row = make_request(request_id, world.now, model=text, client_request_id=text, finish_reason="error")
    row |= {"error_type": text, "error_message": text, "params": {text: text, "stop": [text], "user": text}}
    world.add_finished(row, prompt=text, answer=text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_shown(world: World, client: TestClient, text: str) -> None:
    add_hostile(world, text)
    for path in ("/", "/requests", "/requests/req-hostile", "/replicas"):
        html = client.get(path).text
        for markup in ("<img src=x", "<svg onload", "<script>", 'href="javascript', "\u202e", "\x1b", "\x00"):
            assert markup not in html


def test_template_syntax_in_text_is_not_evaluated(world: World, client: TestClient) -> None:
    add_hostile(world, "{{ 7 * 7191 }}")
    html = client.get("/requests/req-hostile").text
    assert "{{ 7 * 7191 }}" in html
    assert "50337" not in html


def test_hostile_text_stays_itself_in_json(world: World, client: TestClient) -> None:
    add_hostile(world, HOSTILE[1])
    response = client.get("/api/requests/req-hostile")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["request"]["error_message"] == HOSTILE[1]


def test_hostile_ids_in_urls_are_only_shown(client: TestClient) -> None:
    for url in (
        '/requests?id="><svg onload=x>',
        "/requests?state=<script>",
        '/requests/"><svg onload=x>',
        '/login?next="><script>',
    ):
        html = client.get(url).text
        assert "<svg onload" not in html
        assert "<script>" not in html
