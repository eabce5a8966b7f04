"""Steps as a Chrome trace: in order of time, nothing overlapping on a thread, complete."""

import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.chrome_trace import MAX_REQUESTS_NAMED, StepTimeline, chrome_trace

SLICES = ("plan", "decode", "forward", "sample", "publish")


def make_row(step_id=1, planned_ts=1_800_000_000.0, **changes):
    row = {"incarnation_id": "run-1/r0.2", "step_id": step_id, "planned_ts": planned_ts, "kind": "decode"}
    row |= {"num_seqs": 2, "num_tokens": 2, "schedule_s": 0.0002, "execute_at": 0.0005, "execute_s": 0.003}
    row |= {"sample_s": 0.0005, "publish_s": 0.0001, "idle_s": 0.0002, "duration_s": 0.0045}
    row |= {"blocks_free": 60, "blocks_active": 3, "blocks_cached": 1, "waiting": 1}
    row |= {"head_request_id": "req-3", "head_reason": "kv_blocks"}
    row |= {"plan": [["req-1", 0, 4, 1, 17], ["req-2", 0, 9, 1, 18]]}
    return row | changes


def trace_of(*rows):
    return json.loads(b"".join(chrome_trace(rows)))


def events_of(*rows, phase="X"):
    return [event for event in trace_of(*rows)["traceEvents"] if event["ph"] == phase]


def test_one_step_gives_these_events():
    trace = trace_of(make_row())
    step = {"step": 1}
    run = step | {"rows": 2, "tokens": 2, "blocks_free": 60, "blocks_active": 3, "blocks_cached": 1, "waiting": 1}
    run |= {"head": "req-3", "head_reason": "kv_blocks", "idle_us": 200.0}
    run |= {"requests": ["req-1", "req-2"], "requests_not_named": 0}
    arrow = {"name": "step", "cat": "step", "id": "1.1", "pid": 1}
    assert trace["otherData"] == {"writer": "vitrine", "time_origin": "2027-01-15T08:00:00+00:00"}
    assert trace["traceEvents"] == [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "r0 #2"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "scheduler"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "runner"}},
        {"ph": "C", "name": "sequences", "pid": 1, "tid": 0, "ts": 0, "args": {"running": 2, "waiting": 1}},
        {"ph": "C", "name": "KV blocks", "pid": 1, "tid": 0, "ts": 0, "args": {"free": 60, "active": 3, "cached": 1}},
        {"ph": "X", "name": "plan", "cat": "step", "pid": 1, "tid": 1, "ts": 0, "dur": 200, "args": step},
        {"ph": "s", "tid": 1, "ts": 0, **arrow},
        {"ph": "X", "name": "decode", "cat": "step", "pid": 1, "tid": 2, "ts": 500, "dur": 3500, "args": run},
        {"ph": "t", "tid": 2, "ts": 500, **arrow},
        {"ph": "X", "name": "forward", "cat": "step", "pid": 1, "tid": 2, "ts": 500, "dur": 3000, "args": step},
        {"ph": "X", "name": "sample", "cat": "step", "pid": 1, "tid": 2, "ts": 3500, "dur": 500, "args": step},
        {"ph": "X", "name": "publish", "cat": "step", "pid": 1, "tid": 1, "ts": 4400, "dur": 100, "args": step},
        {"ph": "f", "bp": "e", "tid": 1, "ts": 4400, **arrow},
    ]


def test_no_steps_are_a_trace_without_events():
    assert trace_of()["traceEvents"] == []


def test_a_row_without_its_execution_time_is_placed_right_before_the_publication():
    run = next(e for e in events_of(make_row(execute_at=None)) if e["name"] == "decode")
    assert run["ts"] + run["dur"] == pytest.approx(4400)


def test_each_incarnation_has_its_own_tracks():
    names = events_of(make_row(), make_row(incarnation_id="run-1/r1.1"), phase="M")
    assert [e["args"]["name"] for e in names if e["name"] == "process_name"] == ["r0 #2", "r1 #1"]


def test_the_requests_of_a_large_batch_are_counted():
    plan = [[f"req-{i}", 0, 0, 1, 1] for i in range(MAX_REQUESTS_NAMED + 7)]
    run = next(e for e in events_of(make_row(plan=plan)) if e["name"] == "decode")
    assert len(run["args"]["requests"]) == MAX_REQUESTS_NAMED
    assert run["args"]["requests_not_named"] == 7


durations = st.floats(0, 0.01)


@st.composite
def step_rows(draw):
    """Steps of two replicas, planned one after another, whatever their parts take: clocks may even disagree."""
    at, rows = 1_800_000_000.0, []
    for step_id in range(draw(st.integers(1, 12))):
        at += draw(durations)
        times = {name: draw(durations) for name in ("schedule_s", "execute_s", "sample_s", "publish_s", "duration_s")}
        execute_at = draw(st.none() | durations)
        replica = draw(st.sampled_from(["run/r0.1", "run/r1.1"]))
        rows.append(make_row(step_id, at, execute_at=execute_at, incarnation_id=replica, **times))
    return rows


@given(step_rows())
def test_events_are_in_order_and_slices_nest(rows):
    events = [e for e in StepTimeline().events(rows) if e["ph"] != "M"]
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(events))
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(SLICES) * len(rows)
    assert all(e["dur"] >= 0 for e in slices)
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        check_nesting(track)


def check_nesting(track):
    """Every slice lies within the open one, or behind it."""
    open_until = []
    for event in track:
        end = event["ts"] + event["dur"]
        while open_until and event["ts"] >= open_until[-1] - 1e-6:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-6
        open_until.append(end)


@given(step_rows())
def test_every_step_has_its_arrow_from_plan_to_publication(rows):
    arrows = defaultdict(list)
    for event in StepTimeline().events(rows):
        if event["ph"] in "stf":
            arrows[event["id"]].append(event["ph"])
    assert len(arrows) == len(rows)
    assert all(sorted(phases) == ["f", "s", "t"] for phases in arrows.values())
