"""``GET /metrics``: the numbers of `telemetry.metrics`, and what is read now, in Prometheus's formats."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from telemetry.events import ReplicaInfo, ReplicaState, WaitReason
from telemetry.gauges import GaugeBoard, GaugeReader
from telemetry.metric_table import BY_NAME, FACTS, LIVE, SINKS, Kind, Metric
from telemetry.metrics import Histogram, Labels, Metrics
from telemetry.pages import Ledger, QueueDepths, note_busy, replica_gauges
from telemetry.serving_cost import ServingCost
from telemetry.utilization import Achieved, Utilization

Series = Mapping[Labels, float]


class Exposition:
    """Renders the page. Its `collect` is what prometheus_client asks of a collector."""

    def __init__(self, metrics: Metrics, board: GaugeBoard, model: str, price_per_hour: float = 0.0) -> None:
        self.busy = Ledger()
        self.cpu = Ledger()
        self.replicas: dict[str, tuple[ReplicaState, ReplicaInfo | None]] = {}
        self.events: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.lag_s = 0.0
        self.utilization = Utilization()
        self.cost = ServingCost(price_per_hour)
        self._metrics = metrics
        self._board = board
        self._model = model
        self._depths = QueueDepths()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and body for an Accept header."""
        encoder, content_type = choose_encoder(accept)
        return content_type, encoder(self._registry)

    def collect(self) -> Iterator[Family]:
        """All families, in the order of the table."""
        for metric in FACTS:
            if metric.kind is Kind.COUNTER:
                yield _family(metric, self._metrics.counters[metric.name])
            else:
                yield _histogram_family(metric, self._metrics.histograms[metric.name])
        live = self._live(self._board.pages())
        for metric in LIVE:
            yield _family(metric, live[metric.name])

    def observe_pages(self) -> list[GaugeReader]:
        """Take note of counts that would be lost with their process. Call about once a second."""
        pages = self._board.pages()
        note_busy(self.busy, pages)
        self._depths.update(pages)
        return pages

    def _live(self, pages: list[GaugeReader]) -> dict[str, Series]:
        note_busy(self.busy, pages)
        model = self._model
        return {
            "vitrine_stage_queue_depth": {(model, r, s): n for (s, r), n in self._depths.update(pages).items()},
            "vitrine_stage_busy_seconds_total": {(model, r, s): v for (s, r), v in self.busy.totals().items()},
            **self._scheduler(pages),
            **self._device(time.monotonic_ns()),
            **self._system(),
            **self._processes(pages),
        }

    def _scheduler(self, pages: list[GaugeReader]) -> dict[str, Series]:
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

    def _device(self, now_ns: int) -> dict[str, Series]:
        achieved: dict[Labels, Achieved] = {
            (self._model, *key): value for key, value in self.utilization.achieved(now_ns).items()
        }
        costs: Series = {
            (self._model, replica, kind): cost
            for replica in self.cost.replicas()
            for kind, cost in self.cost.per_million(now_ns, [replica]).items()
        }
        return {
            "vitrine_model_flops_utilization_ratio": {key: a.flops_share for key, a in achieved.items()},
            "vitrine_memory_bandwidth_utilization_ratio": {key: a.bytes_share for key, a in achieved.items()},
            "vitrine_serving_cost_per_million_tokens": costs,
        }

    def _system(self) -> dict[str, Series]:
        counted = Counter(state for state, _ in self.replicas.values())
        builds: Series = {
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

    def _processes(self, pages: Iterable[GaugeReader]) -> Mapping[str, Series]:
        found: dict[str, dict[Labels, float]] = {name: {} for name in BY_NAME if name.startswith("process_")}
        for page in pages:
            owner = page.owner
            if owner.peer:
                continue
            usage = _usage(owner.pid)
            if usage is None:
                continue
            key = (str(owner.stage), owner.replica)
            usage["process_cpu_seconds_total"] = self.cpu.note(
                key, (owner.incarnation, owner.pid), usage["process_cpu_seconds_total"]
            )
            for name, value in usage.items():
                found[name][owner.replica, str(owner.stage)] = value
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


def _family(metric: Metric, series: Series) -> Family:
    names = (*metric.common, *metric.labels)
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        family = CounterMetricFamily(metric.name, metric.help, labels=names)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=names)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _histogram_family(metric: Metric, series: Mapping[Labels, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=(*metric.common, *metric.labels))
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for labels, histogram in series.items():
        family.add_metric(labels, buckets=list(_buckets(bounds, histogram)), sum_value=histogram.total)
    return family


def _buckets(bounds: list[str], histogram: Histogram) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
    """(upper bound, cumulative count, exemplar where there is one) of each bucket."""
    running = 0
    for i, (bound, count) in enumerate(zip(bounds, histogram.counts, strict=True)):
        running += count
        if exemplar := histogram.exemplars.get(i):
            yield bound, running, Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.ts)
        else:
            yield bound, running
