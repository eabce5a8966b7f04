"""``GET /metrics``: the numbers of `telemetry.metrics`, and what is read now, in Prometheus's formats."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
from prometheus_client.exposition import choose_encoder

from telemetry.events import ReplicaInfo, ReplicaState, Stage, WaitReason
from telemetry.exposition_text import Series, write_page
from telemetry.gauges import GaugeBoard, GaugeReader
from telemetry.metric import Metric
from telemetry.metric_labels import SINKS
from telemetry.metric_table import BY_NAME, FACTS, LIVE
from telemetry.metrics import Labels, Metrics
from telemetry.pages import Ledger, QueueDepths, ReplicaGauges, note_busy, replica_gauges
from telemetry.serving_cost import ServingCost
from telemetry.utilization import Achieved, Utilization

Values = Mapping[Labels, float]

_OWN = (str(Stage.TELEMETRY), "")


class Exposition:
    """Renders the page, in any thread; everything else is the collector's thread's to call.

    It holds ``changing`` while it enters a fact, so that a page shows all of a fact or nothing of it.
    """

    def __init__(self, metrics: Metrics, board: GaugeBoard, model: str, price_per_hour: float = 0.0) -> None:
        self.busy = Ledger()
        self.cpu = Ledger()
        self.replicas: dict[str, tuple[ReplicaState, ReplicaInfo | None]] = {}
        self.events: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.lag_s = 0.0
        self.utilization = Utilization()
        self.cost = ServingCost(price_per_hour)
        self.changing = threading.Lock()
        self._own_totals = (0.0, 0.0)
        self._metrics = metrics
        self._board = board
        self._model = model
        self._depths = QueueDepths()
        self._reading = threading.Lock()  # the pages, and the ledgers of what they say

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and body for an Accept header."""
        _, content_type = choose_encoder(accept)
        return content_type, write_page(self.collect(), content_type.startswith("application/openmetrics-text"))

    def collect(self) -> Iterator[tuple[Metric, Series]]:
        """All families, in the order of the table."""
        with self.changing:
            facts = self._metrics.snapshot()
            device = self._device(time.monotonic_ns())
            system = self._system()
        yield from ((metric, facts[metric.name]) for metric in FACTS)
        with self._reading:
            live = {**device, **system, **self._live(self._board.pages())}
        yield from ((metric, live[metric.name]) for metric in LIVE)

    def observe_pages(self) -> dict[str, ReplicaGauges]:
        """Take note of counts that would be lost with their process; returns the scheduler's gauges by replica.

        Call about once a second.
        """
        with self._reading:
            pages = self._board.pages()
            note_busy(self.busy, pages)
            self._depths.update(pages)
            return replica_gauges(pages)

    def own_totals(self) -> tuple[float, float]:
        """Busy time and CPU time of telemetry itself, in seconds; for `show_own`."""
        return self.busy.totals().get(_OWN, 0.0), self.cpu.totals().get(_OWN, 0.0)

    def show_own(self, totals: tuple[float, float]) -> None:
        """`totals` have been saved and are to be shown from now on.

        The next telemetry process goes on from what was saved: more than that would be seen to fall.
        """
        self._own_totals = totals

    def _live(self, pages: list[GaugeReader]) -> dict[str, Values]:
        note_busy(self.busy, pages)
        busy = {**self.busy.totals(), _OWN: self._own_totals[0]}
        model = self._model
        return {
            "vitrine_stage_queue_depth": {(model, r, s): n for (s, r), n in self._depths.update(pages).items()},
            "vitrine_stage_busy_seconds_total": {(model, r, s): v for (s, r), v in busy.items()},
            **self._scheduler(pages),
            **self._processes(pages),
        }

    def _scheduler(self, pages: list[GaugeReader]) -> dict[str, Values]:
        gauges = {(self._model, replica): g for replica, g in replica_gauges(pages).items()}
        states = ("free", "active", "cached")
        return {
            "vitrine_requests_running": {key: g.value("running") for key, g in gauges.items()},
            "vitrine_requests_waiting": {
                (*key, str(reason)): g.value(f"waiting_{reason}") for key, g in gauges.items() for reason in WaitReason
            },
            "vitrine_kv_cache_blocks": {
                (*key, state): g.value(f"blocks_{state}") for key, g in gauges.items() for state in states
            },
            "vitrine_kv_cache_usage_ratio": {key: g.kv_usage for key, g in gauges.items()},
            "vitrine_engine_last_step_age_seconds": {key: g.last_step_age_s for key, g in gauges.items()},
        }

    def _device(self, now_ns: int) -> dict[str, Values]:
        achieved: dict[Labels, Achieved] = {
            (self._model, *key): value for key, value in self.utilization.achieved(now_ns).items()
        }
        costs: Values = {
            (self._model, replica, kind): cost
            for replica in self.cost.replicas()
            for kind, cost in self.cost.per_million(now_ns, [replica]).items()
        }
        return {
            "vitrine_model_flops_utilization_ratio": {key: a.flops_share for key, a in achieved.items()},
            "vitrine_memory_bandwidth_utilization_ratio": {key: a.bytes_share for key, a in achieved.items()},
            "vitrine_serving_cost_per_million_tokens": costs,
        }

    def _system(self) -> dict[str, Values]:
        counted = Counter(state for state, _ in self.replicas.values())
        builds: Values = {
            (info.model, replica, info.version, info.revision, *_hashes(info), info.dtype, info.device): 1.0
            for replica, (_, info) in self.replicas.items()
            if info is not None
        }
        return {
            "vitrine_replicas": {(self._model, str(state)): counted[state] for state in ReplicaState},
            "vitrine_telemetry_events_total": {(sink,): self.events[sink] for sink in SINKS},
            "vitrine_telemetry_dropped_total": {(sink,): self.dropped[sink] for sink in SINKS},
            "vitrine_telemetry_lag_seconds": {(): self.lag_s},
            "vitrine_build_info": builds,
        }

    def _processes(self, pages: Iterable[GaugeReader]) -> Mapping[str, Values]:
        found: dict[str, dict[Labels, float]] = {name: {} for name in BY_NAME if name.startswith("process_")}
        for page in pages:
            owner = page.owner
            if owner.peer:
                continue
            usage = _usage(owner.pid)
            if usage is None:
                continue
            key = (str(owner.stage), owner.replica)
            self.cpu.note(key, (owner.incarnation, owner.pid), usage.pop("process_cpu_seconds_total"))
            for name, value in usage.items():
                found[name][owner.replica, str(owner.stage)] = value
        # A counter stays while its process is away.
        cpu = {**self.cpu.totals(), _OWN: self._own_totals[1]}
        found["process_cpu_seconds_total"] = {(replica, stage): value for (stage, replica), value in cpu.items()}
        return found


def _hashes(info: ReplicaInfo) -> tuple[str, str]:
    return info.model_sha256, info.tokenizer_sha256


def _usage(pid: int) -> dict[str, float] | None:
    """What a process uses now; None when it is gone."""
    try:
        process: Any = psutil.Process(pid)
        with process.oneshot():
            cpu, memory = process.cpu_times(), process.memory_info()
            return {
                "process_cpu_seconds_total": cpu.user + cpu.system,
                "process_resident_memory_bytes": memory.rss,
                "process_virtual_memory_bytes": memory.vms,
                "process_open_fds": process.num_fds(),
                "process_start_time_seconds": process.create_time(),
            }
    except psutil.Error:
        return None
