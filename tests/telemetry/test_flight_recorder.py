"""Journals on disk, read without any server."""

import json
import subprocess
import sys

import msgspec
import pytest

from engine.config import Config
from engine.run_folder import ModelFiles, RunFolder, RunInfo, process_name
from telemetry.chrome_trace import chrome_trace
from telemetry.events import FinishReason, ProcessStarted, Stage, StepStarted, WaitReason
from telemetry.flight_recorder import FlightRecorder, NoJournalsError, find_journals
from telemetry.journal import SUFFIX, JournalWriter
from tests.telemetry.factories import WALL_NS, Story


def write_journals(folder, story, stages=tuple(Stage)):
    """A story's records, each stage's in its journal; those of `stages` only."""
    folder.mkdir(parents=True, exist_ok=True)
    writers = {}
    for owner, record in story.entries:
        if owner.stage not in stages:
            continue
        name = process_name(owner.stage, owner.replica, owner.incarnation)
        if name not in writers:
            writers[name] = JournalWriter(folder / (name + SUFFIX), owner, 1 << 20)
            writers[name].append(ProcessStarted(story.start_ns, owner.pid))
        writers[name].append(record)
    for writer in writers.values():
        writer.close()


def story_of_a_killed_system():
    """One finished; then one in each stage."""
    story = Story()
    story.complete_request("req-done")
    story.received("req-routing", at=100)
    story.received("req-tokenizing", at=101)
    story.routed("req-tokenizing", at=102)
    story.received("req-queueing", at=103)
    story.routed("req-queueing", at=103.5)
    story.tokenized("req-queueing", start=104, end=105)
    for name, at in (("req-waiting", 110), ("req-running", 111), ("req-preempted", 112), ("req-delivering", 113)):
        story.received(name, at=at)
        story.routed(name, at=at + 0.1)
        story.tokenized(name, at + 0.2, at + 0.3, prompts=((1, 2, 3, 4),))
    waiting = story.queued("req-waiting", at=120)
    story.waits(waiting, 121, WaitReason.MAX_RUNNING)
    story.waits(waiting, 130, WaitReason.KV_BLOCKS)
    running = story.queued("req-running", at=120)
    preempted = story.queued("req-preempted", at=120)
    delivering = story.queued("req-delivering", at=120)
    for seq_id in (running, preempted, delivering):
        story.admitted(seq_id, at=125)
    story.step(130, (running, 0, 2, -1), (preempted, 0, 4, 7), (delivering, 0, 4, 8))
    story.step(140, (running, 2, 2, 9), waiting=1, head_seq_id=waiting, head_reason="kv_blocks")
    story.preempted(preempted, 141)
    story.ended(delivering, 142, FinishReason.LENGTH, 1)
    story.step(150, (running, 4, 1, 10))
    return story


def test_each_unfinished_request_is_where_it_was(tmp_path):
    write_journals(tmp_path, story_of_a_killed_system())
    rows = {row["request_id"]: row for row in FlightRecorder(tmp_path).requests()}
    assert {name: (row["stage"], row["state"]) for name, row in rows.items()} == {
        "req-routing": ("gateway", "routing"),
        "req-tokenizing": ("tokenizer", "tokenizing"),
        "req-queueing": ("scheduler", "queueing"),
        "req-waiting": ("scheduler", "waiting"),
        "req-running": ("runner", "running"),
        "req-preempted": ("scheduler", "waiting"),
        "req-delivering": ("detokenizer", "delivering"),
    }
    assert next(iter(rows)) == "req-routing"
    assert rows["req-waiting"]["wait_reason"] == "kv_blocks"
    assert rows["req-waiting"]["waited_s"] == pytest.approx(0.0302)  # queued at 120 ms, last record at 150.2 ms
    assert rows["req-preempted"]["wait_reason"] == "preempted"
    running = rows["req-running"]
    assert (running["prompt_tokens"], running["computed_tokens"], running["output_tokens"]) == (4, 5, 2)
    assert running["waited_s"] is None and running["wait_reason"] is None
    assert running["received_ts"] == pytest.approx(WALL_NS / 1e9 + 0.111)


def test_a_replicas_crash_dump_tells_what_it_had_without_the_gateways_journal(tmp_path):
    story = story_of_a_killed_system()
    write_journals(tmp_path, story, (Stage.TOKENIZER, Stage.SCHEDULER, Stage.RUNNER, Stage.DETOKENIZER))
    states = {row["request_id"]: row["state"] for row in FlightRecorder(tmp_path).requests()}
    assert states == {"req-waiting": "waiting", "req-running": "running", "req-preempted": "waiting"}


def test_steps_have_the_form_that_the_store_gives_them(tmp_path):
    write_journals(tmp_path, story_of_a_killed_system())
    steps = FlightRecorder(tmp_path).steps()
    assert [step["step_id"] for step in steps] == list(range(1, 7))
    assert steps[-2]["plan"] == [["req-running", 0, 2, 2, 9]]
    assert (steps[-2]["head_request_id"], steps[-2]["head_reason"]) == ("req-waiting", "kv_blocks")
    assert steps[-1]["planned_ts"] == pytest.approx(WALL_NS / 1e9 + 0.146)
    assert json.loads(b"".join(chrome_trace(steps)))["traceEvents"]
    middle = WALL_NS / 1e9 + 0.1
    recorder = FlightRecorder(tmp_path)
    assert len(recorder.steps(since=middle)) + len(recorder.steps(until=middle)) == 6


def test_a_data_folder_stands_for_its_latest_run_and_a_run_folder_for_itself(tmp_path):
    for name in ("run-1", "run-2"):
        run = RunFolder(tmp_path / "run" / name)
        run.create(RunInfo(name, "", "host", Config(), ModelFiles("tiny", "/nowhere", "0", "0"), "", 1))
        write_journals(run.journals, story_of_a_killed_system())
    assert find_journals(tmp_path) == tmp_path / "run" / "run-2" / "journals"
    (first, *_) = FlightRecorder(tmp_path / "run" / "run-1").steps()
    assert first["incarnation_id"] == "run-1/r0.1"


def test_a_step_that_was_not_finished_is_named(tmp_path):
    story = story_of_a_killed_system()
    story.stage(Stage.RUNNER, StepStarted(6, story.ns(147), 1, 1))
    story.stage(Stage.RUNNER, StepStarted(7, story.ns(150.1), 3, 5))
    write_journals(tmp_path, story)
    (note,) = FlightRecorder(tmp_path).notes()
    assert note == "r0 #1 was in step 7: 3 rows, 5 tokens, for 0.1 ms at the last record"


def test_a_damaged_journal_costs_its_own_records_only(tmp_path):
    write_journals(tmp_path, story_of_a_killed_system())
    (tmp_path / "r1.1.scheduler.journal").write_bytes(b"nothing" * 1000)
    assert len(FlightRecorder(tmp_path).steps()) == 6


def test_a_folder_without_journals_is_one_clear_line(tmp_path):
    with pytest.raises(NoJournalsError, match="holds no journals"):
        FlightRecorder(tmp_path)


def run_module(*arguments):
    command = [sys.executable, "-m", "telemetry.flight_recorder", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=60)


def test_the_module_writes_lines_and_traces(tmp_path):
    write_journals(tmp_path, story_of_a_killed_system())
    lines = run_module(tmp_path, "requests").stdout.splitlines()
    assert len([msgspec.json.decode(line) for line in lines]) == 7
    assert json.loads(run_module(tmp_path, "steps", "--format", "chrome").stdout)["traceEvents"]
    failed = run_module(tmp_path / "nowhere", "steps")
    assert failed.returncode == 1 and b"holds no journals" in failed.stderr
