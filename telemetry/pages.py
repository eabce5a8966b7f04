"""What the processes' gauge pages say, put together: per replica, per stage, and growing totals."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from telemetry.events import REPLICA_STAGES, Stage
from telemetry.gauges import SENT_TO, Gauge, GaugeReader

StageKey = tuple[str, str]
"""(stage, replica)."""

_SCHEDULER_GAUGES = {
    "running": (Gauge.RUNNING,),
    "waiting_kv_blocks": (Gauge.WAITING_KV_BLOCKS,),
    "waiting_token_budget": (Gauge.WAITING_TOKEN_BUDGET,),
    "waiting_max_running": (Gauge.WAITING_MAX_RUNNING,),
    "waiting_preempted": (Gauge.WAITING_PREEMPTED,),
    "waiting": (
        Gauge.WAITING_KV_BLOCKS,
        Gauge.WAITING_TOKEN_BUDGET,
        Gauge.WAITING_MAX_RUNNING,
        Gauge.WAITING_PREEMPTED,
    ),
    "blocks_free": (Gauge.BLOCKS_FREE,),
    "blocks_active": (Gauge.BLOCKS_ACTIVE,),
    "blocks_cached": (Gauge.BLOCKS_CACHED,),
    "blocks_total": (Gauge.BLOCKS_TOTAL,),
}


class ReplicaGauges:
    """A scheduler's gauges at one moment."""

    def __init__(self, page: GaugeReader, now_ns: int) -> None:
        self._values = {name: sum(page.get(slot) for slot in slots) for name, slots in _SCHEDULER_GAUGES.items()}
        pending_since_ns = page.get(Gauge.PENDING_SINCE_NS)
        self.last_step_age_s = max(0, now_ns - pending_since_ns) / 1e9 if pending_since_ns else 0.0

    def value(self, name: str) -> int:
        """One of running, waiting, waiting_<reason>, blocks_<state>, blocks_total; never negative."""
        return max(0, self._values[name])

    @property
    def kv_usage(self) -> float:
        """Active blocks / pool, 0–1."""
        return min(1.0, self.value("blocks_active") / max(1, self.value("blocks_total")))


def replica_gauges(pages: Sequence[GaugeReader]) -> dict[str, ReplicaGauges]:
    """The scheduler's gauges of each replica's latest incarnation."""
    now_ns = time.monotonic_ns()
    schedulers = [page for page in pages if page.owner.stage is Stage.SCHEDULER]
    latest = {page.owner.replica: page for page in sorted(schedulers, key=lambda page: page.owner.incarnation)}
    return {replica: ReplicaGauges(page, now_ns) for replica, page in sorted(latest.items())}


class TotalsRow(msgspec.Struct, array_like=True):
    """One total of a `Ledger`, and what it was last made from."""

    source: tuple[int, int]  # (incarnation, pid) of the process that counts now
    value: float
    total: float


class Ledger:
    """Totals that never fall although the processes that count start from 0 again when they are restarted.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._last: dict[StageKey, TotalsRow] = {}
        self._lock = threading.Lock()

    def note(self, key: StageKey, source: tuple[int, int], value: float) -> float:
        """Take a process's own count; returns the total over all processes that there have been."""
        with self._lock:
            last = self._last.setdefault(key, TotalsRow(source, 0.0, 0.0))
            if source == last.source:
                last.total += max(0.0, value - last.value)
                last.value = max(last.value, value)
            elif source > last.source:
                last.source, last.value, last.total = source, value, last.total + value
            return last.total

    def totals(self) -> dict[StageKey, float]:
        """All totals."""
        with self._lock:
            return {key: last.total for key, last in self._last.items()}

    def dump(self) -> list[tuple[StageKey, TotalsRow]]:
        """For `load`."""
        with self._lock:
            return [(key, msgspec.structs.replace(last)) for key, last in self._last.items()]

    def load(self, rows: list[tuple[StageKey, TotalsRow]]) -> None:
        """Go on from a dump."""
        with self._lock:
            self._last = dict(rows)


def note_busy(ledger: Ledger, pages: Sequence[GaugeReader]) -> None:
    """Enter every process's busy time, in seconds."""
    for page in pages:
        owner = page.owner
        if not owner.peer:
            source = (owner.incarnation, owner.pid)
            ledger.note((str(owner.stage), owner.replica), source, page.get(Gauge.BUSY_NS) / 1e9)


class QueueDepths:
    """Messages in front of each stage: what all others sent to it less what it has taken.

    Pages of a gateway that died are gone, with their counts. Then, and whenever a difference is below 0, the
    queue is taken to be empty at that moment and counted from there.
    """

    def __init__(self) -> None:
        self._baseline: dict[StageKey, int] = {}
        self._sources: dict[StageKey, frozenset[tuple[int, int]]] = {}

    def update(self, pages: Sequence[GaugeReader]) -> dict[StageKey, int]:
        """The depth of each queue now. The gateway's is split by the replica that the messages come from."""
        links = _links(pages)
        depths = {
            key: self._depth(key, link, sent - taken)
            for replica, link in links.items()
            for key, sent, taken in _counts(replica, link)
        }
        for gone in set(self._baseline) - set(depths):
            del self._baseline[gone], self._sources[gone]
        return depths

    def _depth(self, key: StageKey, link: list[GaugeReader], raw: int) -> int:
        sources = frozenset((page.owner.incarnation, page.owner.pid) for page in link)
        known = self._sources.setdefault(key, sources)
        baseline = self._baseline.get(key, 0)
        if known != sources:
            self._sources[key] = sources
            baseline = raw
        self._baseline[key] = min(baseline, raw) if known == sources else baseline
        return raw - self._baseline[key]


def _links(pages: Sequence[GaugeReader]) -> dict[str, list[GaugeReader]]:
    """By replica: the pages of its latest incarnation, and the gateway's page about it."""
    by_scope: dict[tuple[str, int], list[GaugeReader]] = defaultdict(list)
    for page in pages:
        owner = page.owner
        if owner.replica:
            by_scope[owner.replica, owner.incarnation].append(page)
        elif owner.peer:
            replica, _, incarnation = owner.peer.rpartition(".")
            by_scope[replica, int(incarnation)].append(page)
    latest = {scope[0]: scope for scope in sorted(by_scope)}
    return {replica: by_scope[scope] for replica, scope in latest.items()}


def _counts(replica: str, link: list[GaugeReader]) -> list[tuple[StageKey, int, int]]:
    """(key, sent, taken) of each stage that takes messages of this replica."""
    counts = []
    for stage in (Stage.GATEWAY, *REPLICA_STAGES):
        own = [page for page in link if page.owner.stage is stage]
        if own:
            sent = sum(page.get(SENT_TO[stage]) for page in link if page.owner.stage is not stage)
            counts.append(((str(stage), replica), sent, sum(page.get(Gauge.TAKEN) for page in own)))
    return counts
