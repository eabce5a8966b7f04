"""kill -9 of any process at random moments, the supervisor too: no finished request's record is lost or doubled."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal

import httpx
import pytest

from telemetry.events import Stage
from tests.e2e.served import Served
from tests.e2e.test_chaos import Outcome, ask, check_counters, check_records, open_rows

KILLS, CONCURRENCY = 50, 12
SIMULATED = ("--device", "simulated", "--simulated-step", "3000,5,20", "--max-num-seqs", "8")


class Killer:
    """Kills a process at a random moment, sometimes two, sometimes while the system recovers from the one before."""

    def __init__(self, served: Served, chooser: random.Random) -> None:
        self.killed: collections.Counter[str] = collections.Counter()
        self._served = served
        self._chooser = chooser

    async def run(self) -> None:
        while self.killed.total() < KILLS:
            if self._chooser.random() < 0.8:
                await self._wait("ready again", lambda: self._served.status("/ready") == 200)
            await asyncio.sleep(self._chooser.uniform(0.0, 1.5))
            self._kill(self._chooser.choice(list(Stage)))
            if self._served.process.poll() is not None:
                await self._wait("everything dead", self._served.gone)
                self._served.start()
                await asyncio.to_thread(self._served.wait_ready)

    def _kill(self, stage: Stage) -> None:
        self._served.note_processes()
        page = self._served.page(stage)
        pid = self._served.process.pid if stage is Stage.SUPERVISOR else page.owner.pid if page else None
        if pid is None:
            return  # on its way back
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.killed[stage] += 1
        if stage is Stage.SUPERVISOR:
            self._served.process.wait(20)

    async def _wait(self, what: str, condition) -> None:
        await asyncio.to_thread(self._served.eventually, condition, 60, what)


async def load(served: Served, chooser: random.Random, killing: asyncio.Task[None]) -> list[Outcome]:
    """Requests of all lengths, until the last kill."""
    outcomes: list[Outcome] = []

    async def worker(client: httpx.AsyncClient) -> None:
        while not killing.done():
            outcome = await ask(client, served.url, chooser, leave=chooser.random() < 0.2)
            outcomes.append(outcome)
            if outcome.kind in ("refused", "broken"):
                await asyncio.sleep(0.2)

    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(worker(client) for _ in range(CONCURRENCY)))
    return outcomes


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_fifty_kills_of_any_process_lose_and_double_nothing(serve, seed):
    served = serve(*SIMULATED)
    served.note_sockets()
    chooser = random.Random(seed)
    killer = Killer(served, chooser)

    async def everything() -> list[Outcome]:
        killing = asyncio.create_task(killer.run())
        outcomes, _ = await asyncio.gather(load(served, chooser, killing), killing)
        return outcomes

    outcomes = asyncio.run(everything())
    tally = collections.Counter(o.kind for o in outcomes)
    print(f"{len(outcomes)} requests: {dict(tally)}; killed: {dict(killer.killed)}")
    assert killer.killed.total() == KILLS and len(killer.killed) == len(Stage)
    assert tally["finished"] > 100 and not tally["hung"]
    served.eventually(served.idle, 30, "gauges idle, pool whole")
    served.eventually(lambda: not open_rows(served), 30, "no request open in the store")
    served.note_processes()
    assert served.stop()[0] == 0
    assert served.leftovers() == []
    check_records(served, outcomes)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_counters_go_on_however_often_telemetry_is_killed(serve):
    served = serve(*SIMULATED)
    chooser = random.Random(7)

    async def kill_telemetry() -> None:
        for _ in range(15):
            await asyncio.to_thread(served.eventually, lambda: served.status("/metrics") == 200, 60, "metrics")
            await asyncio.sleep(chooser.uniform(0.0, 1.0))
            os.kill(served.pid(Stage.TELEMETRY), signal.SIGKILL)

    async def everything() -> list[Outcome]:
        killing = asyncio.create_task(kill_telemetry())
        return (await asyncio.gather(load(served, chooser, killing), killing))[0]

    outcomes = asyncio.run(everything())
    served.eventually(lambda: served.status("/metrics") == 200, 60, "metrics")
    served.eventually(lambda: not open_rows(served), 30, "no request open in the store")
    rows = served.request_rows()
    assert not [row for row in rows.values() if row["error_type"] == "records_lost"]
    assert len(rows) == len(outcomes)
    check_counters(served)
    check_records(served, outcomes)
