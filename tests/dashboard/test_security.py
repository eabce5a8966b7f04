from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dashboard.security import COOKIE, SESSION_S, HostCheck, Sessions
from dashboard.web import STATIC
from engine.config import Config
from tests.dashboard.conftest import client_of
from tests.dashboard.factories import World

TOKEN = "open sesame"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[TestClient]:
    config = Config(data_dir=str(tmp_path / "data"), operator_token=TOKEN)
    with client_of(World(tmp_path, config)) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/api/requests", "/nope", "/static/vitrine.css", "/metrics", "/api/nope"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_even_a_failure_has_the_headers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.pages.replicas.view", lambda _: 1 / 0)
    client = client_of(world)
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    response = client.get("/replicas")
    assert response.status_code == 500
    assert "content-security-policy" in response.headers
    assert "ZeroDivisionError" not in response.text


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.com", "127.0.0.1.evil.com:8001", "", "[::1", "10.0.0.7"]
)
def test_foreign_hosts_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8001", "127.0.0.1", "[::1]:8001", "LOCALHOST"])
def test_loopback_names_are_ours(client: TestClient, host: str) -> None:
    assert client.get("/help", headers={"host": host}).status_code == 200


def test_hosts_follow_what_the_port_is_bound_to() -> None:
    named = HostCheck("ops.example", "bench-1")
    assert named.allows("ops.example:8001")
    assert named.allows("bench-1")
    assert not named.allows("10.0.0.7")
    everywhere = HostCheck("0.0.0.0", "bench-1")
    assert everywhere.allows("10.0.0.7:8001")
    assert not everywhere.allows("rebound.example")
    assert not everywhere.allows("")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://localhost.evil.com"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_unsafe_methods_from_other_sites_are_refused(guarded: TestClient, headers: dict[str, str]) -> None:
    assert guarded.post("/login", data={"token": TOKEN}, headers=headers).status_code == 403


def test_preflight_gets_no_permission(client: TestClient) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = client.options("/api/replicas", headers=asked)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


TRAVERSALS = (
    "/../../../../etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/%252e%252e/etc/passwd",
    "//etc/passwd",
    "/static/../../pyproject.toml",
    "/static/..%2f..%2fpyproject.toml",
    "/static/..%5c..%5cpyproject.toml",
    "/static/%2e%2e/web.py",
    "/static/%00",
    "/static/vendor/..%2f..%2fweb.py",
    "/static//etc/passwd",
    "/static",
    "/static/vendor",
    "/requests/..%2f..%2fetc%2fpasswd",
)


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out_of_the_static_folder(client: TestClient, path: str) -> None:
    # given as an object so that the client sends the path as it is
    request = client.build_request("GET", "/")
    request.url = request.url.copy_with(raw_path=path.encode())
    response = client.send(request)
    assert response.status_code in (307, 400, 404)
    assert "root:" not in response.text
    assert "vitrine.db" not in response.text


def test_links_out_of_the_static_folder_are_not_followed(client: TestClient, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("tweet")
    link = STATIC / "canary-link.txt"
    link.symlink_to(canary)
    try:
        assert client.get("/static/canary-link.txt").status_code == 404
    finally:
        link.unlink()


def test_pages_ask_for_the_token(guarded: TestClient) -> None:
    response = guarded.get("/requests?state=running")
    assert response.status_code == 303
    assert response.headers["location"] == "/login?next=%2Frequests%3Fstate%3Drunning"
    for path in ("/api/requests", "/metrics", "/api/events?page=overview"):
        assert guarded.get(path).status_code == 401


def test_the_right_token_opens_and_leaves_a_cookie_without_it(guarded: TestClient) -> None:
    response = guarded.post("/login", data={"token": TOKEN, "next": "/replicas"})
    assert (response.status_code, response.headers["location"]) == (303, "/replicas")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    assert guarded.get("/replicas").status_code == 200
    guarded.post("/logout")
    assert guarded.get("/replicas").status_code == 303


def test_a_wrong_token_does_not_open(guarded: TestClient) -> None:
    response = guarded.post("/login", data={"token": "guess"})
    assert response.status_code == 403
    assert "not the operator token" in response.text
    assert "set-cookie" not in response.headers


def test_bearer_tokens_open_the_api(guarded: TestClient) -> None:
    assert guarded.get("/api/replicas", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/api/replicas", headers={"authorization": "Bearer guess"}).status_code == 401


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", ""])
def test_login_leads_only_to_own_pages(guarded: TestClient, target: str) -> None:
    response = guarded.post("/login", data={"token": TOKEN, "next": target})
    assert response.headers["location"] == "/"


def test_sessions_end_and_cannot_be_made_up() -> None:
    now = 1000.0
    sessions = Sessions(TOKEN, clock=lambda: now)
    cookie = sessions.issue()
    expires, _, signature = cookie.partition(".")
    assert sessions.accepts(cookie)
    for forged in ("", "x", ".", f"{int(expires) + 1}.{signature}", f"{expires}.", "999999999999.0"):
        assert not sessions.accepts(forged)
    assert not Sessions("another", clock=lambda: now).accepts(cookie)
    now += SESSION_S + 1
    assert not sessions.accepts(cookie)


def test_a_damaged_cookie_is_no_session(guarded: TestClient) -> None:
    assert guarded.get("/", headers={"cookie": f"{COOKIE}=\x7f; ;;="}).status_code == 303
