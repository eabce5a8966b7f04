"""``vitrine bench --overhead`` with real servers."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.served import vitrine


def test_two_servers_are_measured_in_turn_and_nothing_of_them_stays(tmp_path):
    file = tmp_path / "overhead.json"
    sizes = ["--rounds", "2", "--requests", "8", "--concurrency", "8", "--output-tokens", "8"]
    simulated = ["--", "--device", "simulated", "--simulated-step", "500,2,10"]
    process = vitrine(
        "bench", "--overhead", *sizes, "--json", str(file), *simulated, env={"TMPDIR": str(tmp_path / "tmp")}
    )
    (tmp_path / "tmp").mkdir()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "CPU per output" in out and "telemetry" in out
    report = json.loads(file.read_text())
    rounds = report["overhead"]["rounds"]
    assert len(rounds) == 2 and report["overhead"]["span_bytes"] > 0 and report["overhead"]["dropped"] == 0
    for one in rounds:
        assert one["on"]["batch"]["output_tokens"] == one["off"]["batch"]["output_tokens"] == 64
        assert "telemetry" in one["on"]["cpu_s"] and "telemetry" not in one["off"]["cpu_s"]
    assert report["cpu_ratio"]["median"] > 0
    assert not list(Path(tmp_path / "tmp").glob("vitrine*"))


def test_a_server_that_does_not_start_is_one_line(tmp_path):
    process = vitrine("bench", "--overhead", "--rounds", "1", "--", "--kv-cache-memory", "lots")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "--kv-cache-memory" in err and err.count("\n") == 1


def test_flags_for_a_server_need_overhead():
    process = vitrine("bench", "--", "--dtype", "float32")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "--overhead" in err
