"""``vitrine export`` against a real dashboard, and against journals on disk."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime

import click
import pytest

from dashboard import exports
from dashboard.store import StoreAwayError
from engine.commands.moments import Moment
from tests.dashboard.factories import full_world
from tests.dashboard.serve import serving
from tests.dashboard.test_exports import make_step
from tests.telemetry.test_flight_recorder import story_of_a_killed_system, write_journals


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = full_world(tmp_path_factory.mktemp("world"))
    changes = {"waiting": 3, "head_request_id": "req-wait01", "head_reason": "kv_blocks"}
    world.add("steps", *(make_step(i, world.now - 60 + i, **changes) for i in range(50)))
    return world


@pytest.fixture(scope="module")
def url(world):
    with serving(world) as url:
        yield url


@pytest.fixture
def recording(tmp_path):
    folder = tmp_path / "recording"
    write_journals(folder, story_of_a_killed_system())
    return str(folder)


def lines_of(out):
    return [json.loads(line) for line in out.splitlines()]


def test_requests_tokens_and_traces_are_written_out(vitrine, url, world):
    status, out, _ = vitrine("export", "requests", "--url", url)
    assert status == 0 and len(lines_of(out)) == 77
    _, out, _ = vitrine("export", "tokens", "--url", url, "--format", "csv")
    assert [row["request_id"] for row in csv.DictReader(io.StringIO(out))] == ["req-slow01", "req-good01"]
    _, out, _ = vitrine("export", "traces", "--url", url, "--since", str(world.now - 15))
    assert all(line["resourceSpans"] for line in lines_of(out))
    assert len(lines_of(out)) == 4


def test_a_window_may_be_told_in_three_ways(vitrine, url, world):
    then = world.now - 8
    for since in (f"{time.time() - then:.3f}s", str(then), datetime.fromtimestamp(then).isoformat()):
        _, out, _ = vitrine("export", "requests", "--url", url, "--since", since, "--until", str(world.now - 6))
        assert [row["request_id"] for row in lines_of(out)] == ["req-abort1"]


def test_a_time_that_is_none_is_refused_with_examples():
    with pytest.raises(click.BadParameter, match=r"'soon' is no time: 10m \(ago\)"):
        Moment().convert("soon", None, None)


def test_steps_go_to_a_file_as_a_trace_or_to_the_terminal_as_a_table(vitrine, url, tmp_path):
    file = tmp_path / "steps.json"
    status, out, _ = vitrine("export", "steps", "--url", url, "-o", str(file))
    assert (status, out) == (0, "")
    assert sum(event["name"] == "decode" for event in json.loads(file.read_text())["traceEvents"]) == 50
    _, out, _ = vitrine("export", "steps", "--url", url, "--table", "--last", "5")
    header, *rows = out.splitlines()
    assert header.split()[:5] == ["planned", "replica", "step", "kind", "rows"]
    assert [row.split()[3] for row in rows] == ["45", "46", "47", "48", "49"]
    assert rows[0].split()[1:3] == ["r0", "#1"] and rows[0].endswith("kv_blocks req-wait01")


def test_a_refusal_is_one_line_and_leaves_an_older_file_alone(vitrine, url, tmp_path):
    file = tmp_path / "old.jsonl"
    file.write_text("precious")
    says = vitrine.refusal("export", "requests", "--url", "http://127.0.0.1:9", "-o", str(file))
    assert "vitrine serve" in says
    assert file.read_text() == "precious"
    assert "cannot be written" in vitrine.refusal("export", "requests", "--url", url, "-o", str(tmp_path / "no" / "x"))


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(vitrine, url, monkeypatch, tmp_path):
    def lines(*_):
        yield b"x" * (1 << 20)
        raise StoreAwayError("the disk is gone")

    monkeypatch.setitem(exports._EXPORTS, "requests", exports._Export(("jsonl",), lines))
    status, _, err = vitrine("export", "requests", "--url", url, "-o", str(tmp_path / "cut.jsonl"))
    assert status == 1 and "broke off its answer" in err


def test_steps_of_a_recording_need_no_server(vitrine, recording):
    _, out, _ = vitrine("export", "steps", "--from", recording)
    assert sum(event["ph"] == "X" for event in json.loads(out)["traceEvents"]) == 6 * 5
    _, out, _ = vitrine("export", "steps", "--from", recording, "--table", "--last", "2")
    assert [row.split()[3] for row in out.splitlines()[1:]] == ["5", "6"]


def test_unfinished_requests_of_a_recording(vitrine, recording):
    _, out, _ = vitrine("export", "requests", "--from", recording)
    assert len(lines_of(out)) == 7
    _, out, _ = vitrine("export", "requests", "--from", recording, "--table")
    rows = {row.split()[0]: row for row in out.splitlines()[1:]}
    assert rows["req-waiting"].split()[3:] == (
        ["r0", "#1", "scheduler", "waiting", "4", "0", "0", "0", "30.2", "ms", "kv_blocks"]
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["requests", "--from", ".", "--format", "csv"], "--from knows neither"),
        (["requests", "--table"], "--table needs --from"),
        (["steps", "--since", "soon"], "'soon' is no time"),
    ],
)
def test_what_does_not_go_together_is_refused(vitrine, arguments, says):
    assert says in vitrine.refusal("export", *arguments)


def test_a_folder_without_journals_is_one_line(vitrine, tmp_path):
    assert "holds no journals" in vitrine.refusal("export", "steps", "--from", str(tmp_path))
