"""What a client counts, what metrics grow by, what token log and store hold: the same to the last token."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.e2e.clients import Stream, at_once
from tests.e2e.exact_counts import Accounts, Counts
from tests.e2e.mixed_load import ABORTED, ANSWERED, FAILED, REFUSED, TOO_LARGE, Client, Outcome, mixture, run_kind
from tests.e2e.served import Served

ROOM = 40
FLAGS = ("--device", "simulated", "--simulated-step", "1000,5,5", "--max-num-seqs", "12", "--kv-blocks", "260")
LIMITS = ("--max-queue", str(ROOM), "--max-body-bytes", "200000")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("counted"), *FLAGS, *LIMITS) as served:
        yield served


def steps(served: Served) -> int:
    return served.gauge(Stage.SCHEDULER, Gauge.LAST_STEP_ID)


def mixed(served: Served, kinds: dict, count: int, run: str) -> list[Outcome]:
    """So many requests, `ROOM` - 8 at a time."""
    names = mixture(kinds, count, ANSWERED, seed=count)
    return at_once(lambda i, name: run_kind(served, kinds, name, i, run), itertools.count(), names, workers=ROOM - 8)


def no_room(served: Served, count: int, run: str) -> list[Outcome]:
    """Requests that find the queue full, and those that fill it, and the KV pool too."""
    ids = [f"{run}-{i}" for i in range(ROOM + count)]
    fill = [Stream(served, {"x-request-id": id_}, prompt="Hi", max_tokens=4000, ignore_eos=True) for id_ in ids[:ROOM]]
    served.eventually(lambda: served.gauge(Stage.GATEWAY, Gauge.REQUESTS_IN_FLIGHT) == ROOM, 10, "no room left")
    refused = [Client(served, id_, "no room").whole({"prompt": "Hi", "max_tokens": 1}) for id_ in ids[ROOM:]]
    waiting = Gauge.WAITING_PREEMPTED
    served.eventually(lambda: served.gauge(Stage.SCHEDULER, waiting) > 0, 20, "one gave up its blocks to the others")
    for stream in fill:
        stream.leave()
        stream.join()
    return refused + [
        Outcome(client_id=id_, kind="fills", endpoint="/v1/completions", finish_reason="abort") for id_ in ids[:ROOM]
    ]


def test_a_thousand_requests_of_all_kinds_are_counted_alike_everywhere(simulated):
    kinds = ANSWERED | REFUSED | TOO_LARGE | ABORTED | FAILED
    before, first = Counts(simulated.get("/metrics")), steps(simulated)
    outcomes = mixed(simulated, kinds, 1000 - ROOM - 10, "mix") + no_room(simulated, 10, "full")
    simulated.eventually(simulated.idle, 20, "idle")
    accounts = Accounts(simulated, outcomes, before)
    assert len(accounts.requests) == len(outcomes) == 1000
    accounts.check()
    made = steps(simulated) - first
    for name in ("vitrine_step_duration_seconds", "vitrine_step_batch_size", "vitrine_step_batch_tokens"):
        assert accounts.metrics.total(before, f"{name}_count") == made, name
    assert accounts.of(lambda o: o.error == "rate_limit_exceeded") == 10
    for kind in kinds:
        assert accounts.of(lambda o, kind=kind: o.kind == kind), kind
    assert accounts.metrics.total(before, "vitrine_preemptions_total") > 0
    wasted = accounts.metrics.grown(before, "vitrine_wasted_tokens_total", "reason")
    assert {"abort", "error", "stop", "preempted"} <= set(wasted), wasted


def test_the_real_model_is_counted_alike(shared):
    """Without what only limits of its own could refuse."""
    shared.eventually(shared.idle, 20, "idle")
    before = Counts(shared.get("/metrics"))
    outcomes = mixed(shared, ANSWERED | REFUSED | ABORTED | FAILED, 40, "real")
    shared.eventually(shared.idle, 20, "idle")
    Accounts(shared, outcomes, before).check()


def test_requests_that_a_dead_runner_took_with_it_are_counted_alike(simulated):
    before = Counts(simulated.get("/metrics"))

    def ask(i: int) -> Outcome:
        client = Client(simulated, f"kill-{i}", "killed")
        long = {"prompt": [7] * 50, "max_tokens": 1500, "ignore_eos": True}
        return client.streamed(long) if i % 2 else client.whole(long)

    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(ask, i) for i in range(16)]
        simulated.eventually(lambda: simulated.gauge(Stage.SCHEDULER, Gauge.RUNNING) == 12, 10, "a full batch")
        os.kill(simulated.pid(Stage.RUNNER), signal.SIGKILL)
        outcomes = [job.result() for job in jobs]
    simulated.eventually(lambda: simulated.status("/ready") == 200 and simulated.idle(), 30, "a new replica")
    accounts = Accounts(simulated, outcomes, before)
    accounts.check()
    assert accounts.of(lambda o: o.finish_reason == "error") == 16
    restarts = accounts.metrics.grown(before, "vitrine_replica_restarts_total", "reason")
    assert restarts == {"killed": 1}
