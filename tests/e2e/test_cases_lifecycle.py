"""Requests that come, wait, take long or leave: nobody stalls, nothing leaks, and health tells the truth."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.e2e.clients import BLOCK, Stream, answer, choice, streamed
from tests.e2e.served import Served

CONTEXT = 8192


def words(seed: int, count: int) -> list[int]:
    """Ids of ordinary tokens, never the same for two seeds."""
    chooser = random.Random(seed)
    return [chooser.randrange(1000, 40_000) for _ in range(count)]


def cached_tokens(served: Served) -> int:
    return served.gauge(Stage.SCHEDULER, Gauge.BLOCKS_CACHED) * BLOCK


def time_to_first_token(served: Served, **ask: Any) -> float:
    stream = streamed(served, **ask)
    return stream.times[0] - stream.sent_at


def test_a_client_that_leaves_during_its_prefill_stops_it_at_the_next_chunk(serve):
    """LC-03."""
    served = serve("--max-num-batched-tokens", "256")
    short = {"prompt": "Hi", "max_tokens": 1}
    usual = min(time_to_first_token(served, **short) for _ in range(3))
    before = cached_tokens(served)
    stream = Stream(served, prompt=words(1, CONTEXT - 10), max_tokens=5)
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.RUNNING) == 1, 5, "the prefill has begun")
    stream.leave()
    served.eventually(served.idle, 2, "the engine has let go")
    assert cached_tokens(served) - before < (CONTEXT - 10) // 2
    assert time_to_first_token(served, **short) < max(2 * usual, usual + 0.2)
    assert not [line for line in served.log_lines() if line["level"] == "error"]


def test_a_request_that_is_given_up_while_it_waits_leaves_nothing_behind(serve):
    """LC-04."""
    served = serve("--max-num-seqs", "1")
    running = Stream(served, prompt="Count:", max_tokens=3000, ignore_eos=True).wait_events(3)
    waiting = Stream(served, {"x-request-id": "b"}, prompt=words(2, 300), max_tokens=3)
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.WAITING_MAX_RUNNING) == 1, 5, "b waits")
    waiting.leave()
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.WAITING_MAX_RUNNING) == 0, 2, "b is gone")
    row = served.finished_row("b")
    assert (row["finish_reason"], row["output_tokens"]) == ("abort", 0)
    again = Stream(served, {"x-request-id": "b"}, prompt=words(2, 300), max_tokens=3)
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.WAITING_MAX_RUNNING) == 1, 5, "b waits again")
    assert cached_tokens(served) == 0, "nothing of b was computed"
    running.leave()
    assert again.finish().finish_reasons() == ["length"]
    served.eventually(served.idle, 5)


def test_a_running_stream_does_not_stall_behind_long_prefills(serve):
    """LC-09."""
    served = serve("--max-num-batched-tokens", "128")
    alone_s = time_to_first_token(served, prompt=words(3, 1024), max_tokens=1)
    chunk_s = alone_s / 8
    stream = Stream(served, prompt="Count:", max_tokens=40, ignore_eos=True).wait_events(10)
    prompts = [Stream(served, prompt=words(10 + i, 1024), max_tokens=1) for i in range(5)]
    stream.finish()
    assert any(prompt.running for prompt in prompts), "the stream ends while prompts are still computed"
    assert stream.largest_gap_s() <= 3 * chunk_s + 0.2
    for prompt in prompts:
        assert prompt.finish().finish_reasons() == ["length"]


def test_requests_are_admitted_as_long_as_there_is_a_slot(serve):
    """LC-10."""
    served = serve("--max-num-seqs", "4", "--max-num-batched-tokens", "128")
    streams = [Stream(served, prompt=words(20 + i, 500), max_tokens=60, ignore_eos=True) for i in range(4)]
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.RUNNING) == 4, 20, "four run at once")
    assert not any(stream.finish_reasons() for stream in streams)
    for stream in streams:
        stream.finish()
    decode = Stream(served, prompt="Count:", max_tokens=200, ignore_eos=True).wait_events(3)
    long = [Stream(served, prompt=words(30 + i, 1500), max_tokens=1) for i in range(2)]
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, Gauge.RUNNING) >= 2, 5, "a prefill beside a decode")
    assert choice(served, prompt="Hi", max_tokens=1)["finish_reason"] == "length"
    assert all(stream.running for stream in long), "the short one was answered before the long ones"
    for stream in [decode, *long]:
        stream.finish()


def test_an_honest_long_prefill_is_healthy_all_the_time(serve):
    """LC-13. One step computes a whole prompt, for seconds."""
    served = serve("--max-num-batched-tokens", "4096")
    prompts = [Stream(served, prompt=words(40 + i, 4000), max_tokens=1) for i in range(4)]
    end = time.monotonic() + 20
    asked = 0
    while any(prompt.running for prompt in prompts) and time.monotonic() < end:
        began = time.monotonic()
        assert served.status("/health") == 200
        assert time.monotonic() - began < 0.5
        asked += 1
        time.sleep(0.5)  # a probe's pace
    assert asked >= 5, "the prefill was no long one"
    for prompt in prompts:
        prompt.leave()
        prompt.join()
    served.eventually(served.idle, 60, "the engine has let go")


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_crashes_leave_no_process_and_pile_up_no_files(tmp_path):
    """LC-15. Three rounds of kill -9 on the main process, in one data folder."""
    data = tmp_path / "data"
    before = shared_memory()
    files: list[int] = []
    for _ in range(3):
        served = Served(data)
        try:
            served.wait_ready()
            served.note_sockets()
            assert answer(served, prompt="Hi", max_tokens=2)["choices"]
            files.append(len([path for path in (data / "run").rglob("*") if path.is_file()]))
            os.kill(served.process.pid, signal.SIGKILL)
            served.process.wait(10)
            served.eventually(served.gone, 10, "no child lives")
        finally:
            served.close()
    assert files[2] <= files[1] <= files[0]
    assert shared_memory() <= before


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_requests_of_every_kind_end_and_the_pool_is_whole(serve, overlap):
    """Priorities, choices, salts, limits and departures in one small pool."""
    served = serve("--overlap", overlap, "--kv-blocks", "64", "--max-num-seqs", "8")
    chooser = random.Random(6)
    streams = []
    for i in range(40):
        ask: dict[str, Any] = {
            "prompt": words(i % 5, chooser.randrange(1, 200)),
            "max_tokens": chooser.randrange(1, 60),
            "n": chooser.choice([1, 1, 3]),
            "priority": chooser.randrange(-2, 3),
            "temperature": chooser.choice([0, 1.0]),
        }
        if i % 4 == 0:
            ask["cache_salt"] = "tenant"
        streams.append(Stream(served, **ask))
        if i % 5 == 4:
            streams[chooser.randrange(len(streams))].leave()
    for stream in streams:
        stream.join()
    served.eventually(served.idle, 10, "the pool is whole and the gauges are idle")
    served.eventually(lambda: all(r["state"] == "finished" for r in served.request_rows().values()), 10)
    assert len(served.request_rows()) == 40
    assert not [line for line in served.log_lines() if line["level"] == "error"]


def test_a_reset_of_the_prefix_cache_does_what_it_says(serve):
    """DA-12."""
    served = serve()
    ids = words(7, 10 * BLOCK + 1)

    def found() -> int:
        usage = answer(served, prompt=ids, max_tokens=1)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [found(), found()] == [0, 10 * BLOCK]
    freed = httpx.post(f"{served.dashboard_url}/api/kv/reset", timeout=20)
    assert freed.status_code == 200
    assert freed.json()["freed_blocks"]["r0"] >= 10
    assert served.gauge(Stage.SCHEDULER, Gauge.BLOCKS_CACHED) == 0
    assert [found(), found()] == [0, 10 * BLOCK]


def test_a_reset_from_another_site_is_refused(shared):
    """DA-03."""
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert httpx.post(f"{shared.dashboard_url}/api/kv/reset", headers=headers).status_code == 403
