from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.factories import make_answer, make_request, make_sequence, make_tokens

REPLICA = {
    "replica": "r0",
    "incarnation": 2,
    "state": "ready",
    "reason": "all stages are ready",
    "in_state_s": 12.0,
    "restarts": 1,
    "info": {"model": "m", "dtype": "bfloat16", "device": "cpu"},
    "load": {"running": 3, "waiting": {"kv_blocks": 2, "preempted": 1}, "blocks_active": 40, "blocks_total": 100},
}
API_ERROR = {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "unknown_url"}}


class FakeDashboard:
    """Answers GET by path, with (status, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object]] = {}
        self.queries: list[dict[str, list[str]]] = []
        self.authorization: str | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                fake.queries.append(parse_qs(url.query))
                fake.authorization = self.headers["authorization"]
                status, body = fake.answers.get(url.path, (404, {"error": {"message": "There is no such thing"}}))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def dashboard():
    fake = FakeDashboard()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


def test_requests_are_listed(vitrine, dashboard):
    running = make_request(request_id="req-2", state="running", finish_reason=None, ttft_s=None, replica=None)
    dashboard.answers["/api/requests"] = (200, {"requests": [running, make_request()], "cursor": ""})
    status, out, _ = vitrine("requests", "--url", dashboard.url)
    assert status == 0
    header, first, second = out.splitlines()
    assert header.split()[:3] == ["received", "id", "state"]
    assert first.split()[2:4] == ["req-2", "running"]
    assert second.split()[2:] == (
        ["req-1", "length", "/v1/completions", "r0", "1,234", "16", "3", "101", "ms", "200", "ms", "503", "ms"]
    )


def test_an_error_is_listed_with_its_status_and_several_sequences_with_their_number(vitrine, dashboard):
    failed = make_request(finish_reason="error", http_status=404, num_sequences=6)
    dashboard.answers["/api/requests"] = (200, {"requests": [failed], "cursor": ""})
    dashboard.answers["/api/requests/req-1"] = (200, make_answer(failed, make_sequence()))
    for arguments in (["requests"], ["requests", "req-1"]):
        _, out, _ = vitrine(*arguments, "--url", dashboard.url)
        assert " error 404 " in out and "/v1/completions ×6 " in out


def test_filters_are_passed_on(vitrine, dashboard):
    dashboard.answers["/api/requests"] = (200, {"requests": [], "cursor": ""})
    flags = ["--limit", "5", "--state", "finished", "--min-ttft-ms", "10", "--finish-reason", "stop", "--replica", "r1"]
    flags += ["--token", "12,7,9"]
    _, out, _ = vitrine("requests", "--url", dashboard.url, *flags)
    assert out == "no such requests yet\n"
    assert dashboard.queries[-1] == {
        "limit": ["5"],
        "state": ["finished"],
        "min_ttft_ms": ["10.0"],
        "finish_reason": ["stop"],
        "replica": ["r1"],
        "token": ["12,7,9"],
    }


def test_one_request_shows_stages_parts_waits_and_tokens(vitrine, dashboard):
    dashboard.answers["/api/requests/req-1"] = (200, make_answer(make_request(), make_sequence()))
    status, out, _ = vitrine("requests", "req-1", "--url", dashboard.url)
    assert status == 0
    assert out.index("tokenize") < out.index("prefill") < out.index("drain")
    assert "Took 503 ms" in out
    assert "end to end" in out and "79.5%" in out
    assert "waited 47.0 ms from 3.00 ms on: kv_blocks" in out
    assert "5 tokens in, 3 out" in out
    assert "'[b]'" in out and r"'\n'" in out


def test_a_long_answer_is_cut_and_says_so(vitrine, dashboard):
    sequence = make_sequence(tokens=make_tokens(*"x" * 60))
    dashboard.answers["/api/requests/req-1"] = (200, make_answer(make_request(), sequence))
    _, out, _ = vitrine("requests", "req-1", "--url", dashboard.url)
    assert "and 10 more" in out


def test_a_refused_request_shows_its_error_and_no_stage(vitrine, dashboard):
    nothing = dict.fromkeys(name for name in make_request() if name.endswith("_at"))
    refused = make_request(
        **nothing,
        finish_reason="error",
        http_status=400,
        error_type="invalid_value",
        error_message="n: [too]\x1b[2J big",
    )
    answer = make_answer(refused) | {"parts": []}
    dashboard.answers["/api/requests/req-1"] = (200, answer)
    status, out, _ = vitrine("requests", "req-1", "--url", dashboard.url)
    assert status == 0
    assert r"400 invalid_value: n: [too]\x1b[2J big" in out


def test_without_a_token_log_there_are_no_tokens(vitrine, dashboard):
    dashboard.answers["/api/requests/req-1"] = (200, make_answer(make_request(), make_sequence(tokens=None)))
    status, out, _ = vitrine("requests", "req-1", "--url", dashboard.url)
    assert status == 0
    assert "piece" not in out


@pytest.mark.parametrize(
    ("arguments", "path", "answer"),
    [
        (["requests"], "/api/requests", {"requests": [], "cursor": ""}),
        (["requests", "req-1"], "/api/requests/req-1", make_answer(make_request(), make_sequence())),
        (["replicas"], "/api/replicas", {"replicas": [REPLICA]}),
    ],
)
def test_json_is_the_dashboards_answer(vitrine, dashboard, arguments, path, answer):
    dashboard.answers[path] = (200, answer)
    _, out, _ = vitrine(*arguments, "--url", dashboard.url, "--json")
    assert json.loads(out) == answer


def test_an_id_cannot_lead_elsewhere(vitrine, dashboard):
    dashboard.answers["/api/replicas"] = (200, {})
    assert "404" in vitrine.refusal("requests", "../replicas", "--url", dashboard.url)


def test_replicas_are_listed(vitrine, dashboard):
    starting = REPLICA | {"replica": "r1", "state": "starting", "info": None, "load": None, "reason": "loading weights"}
    dashboard.answers["/api/replicas"] = (200, {"replicas": [REPLICA, starting]})
    _, out, _ = vitrine("replicas", "--url", dashboard.url)
    _, first, second = out.splitlines()
    assert first.split()[:9] == ["r0", "#2", "ready", "12.0", "s", "1", "3", "3", "40/100"]
    assert "m bfloat16 cpu" in first
    assert "loading weights" in second


def test_the_operator_token_is_sent(vitrine, dashboard, monkeypatch):
    monkeypatch.setenv("VITRINE_OPERATOR_TOKEN", "hush")
    dashboard.answers["/api/replicas"] = (200, {"replicas": []})
    vitrine("replicas", "--url", dashboard.url)
    assert dashboard.authorization == "Bearer hush"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, {"error": {"message": "no"}}), "--operator-token"),
        ((503, {"error": {"message": "the store is away"}}), "503: the store is away"),
        ((200, b"<html>"), "does not answer like"),
        ((404, API_ERROR), "is the API; the dashboard is usually on port 8001"),
        ((401, API_ERROR), "is the API"),
    ],
)
def test_what_the_dashboard_refuses_is_one_line(vitrine, dashboard, answer, says):
    dashboard.answers["/api/requests"] = answer
    assert says in vitrine.refusal("requests", "--url", dashboard.url)


@pytest.mark.parametrize("command", ["requests", "replicas"])
def test_an_absent_dashboard_is_one_line_that_says_what_to_do(vitrine, command):
    assert "vitrine serve" in vitrine.refusal(command, "--url", "http://127.0.0.1:9")


@pytest.mark.parametrize("command", ["requests", "replicas"])
def test_the_dashboard_is_found_by_its_variable(vitrine, dashboard, monkeypatch, command):
    dashboard.answers[f"/api/{command}"] = (200, {command: [], "cursor": ""})
    monkeypatch.setenv("VITRINE_DASHBOARD_URL", dashboard.url)
    assert vitrine(command)[0] == 0


def test_the_dashboard_is_found_by_the_servers_settings(vitrine, dashboard, monkeypatch, tmp_path):
    dashboard.answers["/api/requests"] = (200, {"requests": [], "cursor": ""})
    file = tmp_path / "vitrine.toml"
    file.write_text(f'dashboard-port = {dashboard.server.server_port}\noperator-token = "hush"')
    assert vitrine("requests", "--config", str(file))[0] == 0
    assert dashboard.authorization == "Bearer hush"
    monkeypatch.setenv("VITRINE_DASHBOARD_PORT", str(dashboard.server.server_port))
    assert vitrine("requests")[0] == 0


def test_a_token_from_the_file_goes_to_no_other_server(vitrine, dashboard, tmp_path):
    dashboard.answers["/api/requests"] = (200, {"requests": [], "cursor": ""})
    file = tmp_path / "vitrine.toml"
    file.write_text('operator-token = "hush"')
    assert vitrine("requests", "--config", str(file), "--url", dashboard.url)[0] == 0
    assert dashboard.authorization is None


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "http://127.0.0.1:9"), ("::", "http://[::1]:9"), ("localhost", "http://localhost:9")],
)
def test_a_server_on_all_addresses_is_asked_on_this_machine(vitrine, monkeypatch, host, reached):
    for name, value in {"HOST": host, "DASHBOARD_PORT": "9", "API_KEY": "a", "OPERATOR_TOKEN": "b"}.items():
        monkeypatch.setenv(f"VITRINE_{name}", value)
    assert f"the dashboard at {reached} cannot be reached" in vitrine.refusal("requests")


def test_a_wrong_setting_of_the_server_is_one_line(vitrine, monkeypatch):
    monkeypatch.setenv("VITRINE_DASHBOARD_PORT", "abc")
    assert "VITRINE_DASHBOARD_PORT: 'abc' is not a whole number" in vitrine.refusal("requests")
