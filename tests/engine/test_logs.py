"""Process logs: JSON lines with the agreed fields, whatever is logged and whatever the disk does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, os, resource, sys
from pathlib import Path
import structlog
from engine import logs
from telemetry.events import Stage
logs.configure(Path(sys.argv[1]), "info", Stage.RUNNER, "r0", 3)
log = structlog.get_logger()
{body}
print("alive")
"""


def run(tmp_path, body: str) -> list[dict]:
    script = SCRIPT.format(body=body)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert done.stdout == "alive\n", done.stderr
    return [json.loads(line) for line in (tmp_path / "r0.runner.jsonl").read_text().splitlines()]


def test_lines_carry_time_level_stage_replica_and_event(tmp_path: Path):
    (line,) = run(tmp_path, "log.debug('hidden'); log.warning('it happened', request_id='req-1')")
    assert line["event"] == "it happened" and line["level"] == "warning" and line["request_id"] == "req-1"
    assert line["stage"] == "runner" and line["replica"] == "r0" and line["incarnation"] == 3 and line["ts"]


def test_hostile_text_stays_one_valid_line(tmp_path: Path):
    lines = run(tmp_path, r"log.info('a\nb\x00\ud800\"}')")
    assert len(lines) == 1


def test_warnings_of_libraries_become_lines_too(tmp_path: Path):
    (line,) = run(tmp_path, "logging.getLogger('lib').warning('%s of %s', 1, 2)")
    assert line["event"] == "1 of 2" and line["logger"] == "lib"


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path):
    no_room = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)"
    no_room += "; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    assert run(tmp_path, no_room + "; log.error('no room')") == []


def test_the_level_can_be_changed_while_it_runs(tmp_path: Path):
    body = "log.debug('no'); logs.set_level('debug'); log.debug('yes'); logs.set_level('error'); log.warning('no')"
    lines = run(tmp_path, body + "; log.exception('yes'); log.error('yes')")
    assert [line["event"] for line in lines] == ["yes"] * 3
