"""The state of this moment: what the gauge pages and the supervisor's directory say.

Pages are read once per tick; everybody who asks in between gets the same snapshot.
"""

from __future__ import annotations

import os
import threading
import time

import msgspec

from dashboard.usage import Usage, UsageMeter
from engine.messages import Directory, ReplicaEntry
from telemetry.events import REPLICA_STAGES, Stage, WaitReason
from telemetry.gauges import DEGRADED, SENT_TO, Gauge, GaugeBoard, GaugeReader

HEARTBEAT_LIMIT_S = 3.0
"""A stage that has not beaten for longer is not healthy (as ``/health`` of the API says)."""
FRESH_S = 0.5
_WAITING = {
    WaitReason.KV_BLOCKS: Gauge.WAITING_KV_BLOCKS,
    WaitReason.TOKEN_BUDGET: Gauge.WAITING_TOKEN_BUDGET,
    WaitReason.MAX_RUNNING: Gauge.WAITING_MAX_RUNNING,
    WaitReason.PREEMPTED: Gauge.WAITING_PREEMPTED,
}
_ORDER = {stage: i for i, stage in enumerate(Stage)}


class Process(msgspec.Struct, frozen=True):
    """One process now. ``busy`` is the share of time it worked since the last snapshot, None when unknown."""

    stage: Stage
    replica: str
    incarnation: int
    pid: int
    ready: bool
    heartbeat_age_s: float
    busy: float | None
    queue_depth: int | None
    usage: Usage | None

    @property
    def silent(self) -> bool:
        """Whether its heartbeat is overdue. One that is still starting may be busy loading."""
        return self.ready and self.heartbeat_age_s > HEARTBEAT_LIMIT_S


class Load(msgspec.Struct, frozen=True):
    """What one replica's scheduler has in hand."""

    running: int
    waiting: dict[str, int]  # by WaitReason
    blocks_free: int
    blocks_active: int
    blocks_cached: int
    blocks_total: int
    last_step_id: int
    last_step_age_s: float | None  # None before the first step
    stalled_s: float  # since when there has been work without a step's result; 0 when there is none

    @property
    def kv_usage(self) -> float | None:
        """Active blocks as a share of the pool."""
        return self.blocks_active / self.blocks_total if self.blocks_total else None


class Snapshot(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    taken_ns: int
    processes: list[Process]
    loads: dict[str, Load]  # by replica
    requests_in_flight: int
    degraded: dict[str, float]  # what telemetry is in trouble with, in words: since how many seconds

    def of_replica(self, replica: str) -> list[Process]:
        """The processes of one replica; "" for those that belong to none."""
        return [process for process in self.processes if process.replica == replica]


class Live:
    """Takes snapshots. ``directory`` is the supervisor's last word, None before the first."""

    def __init__(self, board: GaugeBoard) -> None:
        self.directory: Directory | None = None
        self._board = board
        self._meter = UsageMeter()
        self._lock = threading.Lock()
        self._busy_before: dict[tuple[int, str], tuple[int, int]] = {}  # (pid, stage) → (time, busy)
        self._last: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """The last one if it is fresh, else a new one."""
        with self._lock:
            now_ns = time.monotonic_ns()
            if self._last is None or now_ns - self._last.taken_ns > FRESH_S * 1e9:
                self._last = self._take(now_ns)
            return self._last

    def replicas(self) -> list[ReplicaEntry]:
        """Replicas as the supervisor sees them."""
        return self.directory.replicas if self.directory else []

    def _take(self, now_ns: int) -> Snapshot:
        pages = self._board.pages()
        main_pages = [page for page in pages if not page.owner.peer]
        usage = self._meter.look({page.owner.pid for page in main_pages} | {os.getpid()})
        busy = self._busy_shares(main_pages, now_ns)
        processes = [
            Process(
                stage=page.owner.stage,
                replica=page.owner.replica,
                incarnation=page.owner.incarnation,
                pid=page.owner.pid,
                ready=bool(page.get(Gauge.READY)) or page.owner.stage is Stage.SUPERVISOR,
                heartbeat_age_s=max(0.0, page.heartbeat_age_s()),
                busy=busy.get((page.owner.pid, page.owner.stage)),
                queue_depth=_queue_depth(page, pages),
                usage=usage.get(page.owner.pid),
            )
            for page in main_pages
        ]
        return Snapshot(
            taken_ns=now_ns,
            processes=sorted(processes, key=lambda p: (p.replica, _ORDER[p.stage], p.incarnation)),
            loads={p.owner.replica: _load(p, now_ns) for p in main_pages if p.owner.stage is Stage.SCHEDULER},
            requests_in_flight=_total(pages, Stage.GATEWAY, Gauge.REQUESTS_IN_FLIGHT),
            degraded=_degraded(pages, now_ns),
        )

    def _busy_shares(self, pages: list[GaugeReader], now_ns: int) -> dict[tuple[int, str], float]:
        now = {(page.owner.pid, str(page.owner.stage)): (now_ns, page.get(Gauge.BUSY_NS)) for page in pages}
        shares = {}
        for who, (at, busy) in now.items():
            before = self._busy_before.get(who)
            if before and at > before[0]:
                shares[who] = min(1.0, max(0.0, (busy - before[1]) / (at - before[0])))
        self._busy_before = now
        return shares


def _total(pages: list[GaugeReader], stage: Stage, gauge: Gauge) -> int:
    return sum(page.get(gauge) for page in pages if page.owner.stage is stage)


def _degraded(pages: list[GaugeReader], now_ns: int) -> dict[str, float]:
    since_ns = {words: _total(pages, Stage.TELEMETRY, gauge) for gauge, words in DEGRADED.items()}
    return {words: max(0, now_ns - ns) / 1e9 for words, ns in since_ns.items() if ns}


def _queue_depth(page: GaugeReader, pages: list[GaugeReader]) -> int | None:
    """Messages sent to a stage and not yet taken; None for processes that have no inbox.

    The gateway keeps one page per link to a replica's incarnation, which counts what it took from there.
    """
    owner = page.owner
    if owner.stage is Stage.GATEWAY:
        links = [p for p in pages if p.owner.stage is Stage.GATEWAY and p.owner.peer]
        return sum(_on_link(link, pages) for link in links)
    if owner.stage not in REPLICA_STAGES:
        return None
    unit = f"{owner.replica}.{owner.incarnation}"
    senders = [p for p in pages if unit in (f"{p.owner.replica}.{p.owner.incarnation}", p.owner.peer)]
    return max(0, sum(p.get(SENT_TO[owner.stage]) for p in senders) - page.get(Gauge.TAKEN))


def _on_link(link: GaugeReader, pages: list[GaugeReader]) -> int:
    senders = [p for p in pages if f"{p.owner.replica}.{p.owner.incarnation}" == link.owner.peer]
    return max(0, sum(p.get(Gauge.SENT_GATEWAY) for p in senders) - link.get(Gauge.TAKEN))


def _load(page: GaugeReader, now_ns: int) -> Load:
    last_step_ns, pending_ns = page.get(Gauge.LAST_STEP_NS), page.get(Gauge.PENDING_SINCE_NS)
    return Load(
        running=page.get(Gauge.RUNNING),
        waiting={str(reason): page.get(gauge) for reason, gauge in _WAITING.items()},
        blocks_free=page.get(Gauge.BLOCKS_FREE),
        blocks_active=page.get(Gauge.BLOCKS_ACTIVE),
        blocks_cached=page.get(Gauge.BLOCKS_CACHED),
        blocks_total=page.get(Gauge.BLOCKS_TOTAL),
        last_step_id=page.get(Gauge.LAST_STEP_ID),
        last_step_age_s=(now_ns - last_step_ns) / 1e9 if last_step_ns else None,
        stalled_s=(now_ns - pending_ns) / 1e9 if pending_ns else 0.0,
    )
