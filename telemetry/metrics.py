"""Counters and histograms made from facts: plain numbers in dicts, no metrics library on the way.

What an instance holds can be saved and loaded, so that counters go on after the process was killed.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence

import msgspec

from telemetry.events import ProcessDied
from telemetry.facts import RequestFacts, SequenceFacts, StepFacts
from telemetry.genai import PROVIDER, operation_name
from telemetry.metric import Kind, Metric
from telemetry.metric_table import BY_NAME, FACTS

Labels = tuple[str, ...]

_MAX_VALUES = 40
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./-]{0,64}")


class Exemplar(msgspec.Struct, array_like=True):
    """One observation, with the trace that it belongs to."""

    trace_id: str
    value: float
    ts: float


class Histogram(msgspec.Struct, array_like=True):
    """``counts[i]`` observations were at most ``bounds[i]``, and more than the bound before; the last: above all."""

    counts: list[int]
    total: float
    exemplars: dict[int, Exemplar]

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> Histogram:
        """No observations."""
        return cls([0] * (len(bounds) + 1), 0.0, {})

    def copy(self) -> Histogram:
        """One that stays as it is."""
        return Histogram(self.counts.copy(), self.total, self.exemplars.copy())

    def observe(self, bounds: Sequence[float], value: float, trace_id: str = "", ts: float = 0.0) -> None:
        """Count one value; with a trace it becomes its bucket's exemplar."""
        bucket = bisect.bisect_left(bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id:
            self.exemplars[bucket] = Exemplar(trace_id, value, ts)


class _Saved(msgspec.Struct, array_like=True):
    counters: list[tuple[str, Labels, float]]
    histograms: list[tuple[str, Labels, Histogram]]


class BoundedLabel:
    """A label's values as they are, until there are too many or one is not plain: then "other"."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """`value`, or "other"."""
        if value not in self._seen:
            if len(self._seen) >= _MAX_VALUES or not _PLAIN_VALUE.fullmatch(value):
                return "other"
            self._seen.add(value)
        return value


class Metrics:
    """The ``FACTS`` rows of the table. `model` is the name that the API serves."""

    def __init__(self, model: str) -> None:
        self.counters: dict[str, dict[Labels, float]] = {m.name: {} for m in FACTS if m.kind is Kind.COUNTER}
        self.histograms: dict[str, dict[Labels, Histogram]] = {m.name: {} for m in FACTS if m.kind is Kind.HISTOGRAM}
        self._common = {"model": model, "gen_ai_request_model": model, "gen_ai_provider_name": PROVIDER}
        self._error_type = BoundedLabel()
        self._endpoint = BoundedLabel()

    def snapshot(self) -> dict[str, dict[Labels, float] | dict[Labels, Histogram]]:
        """All numbers by name, as they are now."""
        counters = {name: dict(series) for name, series in self.counters.items()}
        histograms = {
            name: {labels: histogram.copy() for labels, histogram in series.items()}
            for name, series in self.histograms.items()
        }
        return {**counters, **histograms}

    def add_replica(self, replica: str) -> None:
        """There is a replica: its series begin, with 0."""
        for metric in FACTS:
            for values in metric.initial if metric.labels else ((),):
                self._begin(metric, replica, values)

    def add_request(self, facts: RequestFacts) -> None:
        """A request has ended."""
        assert facts.terminal is not None
        replica, times = facts.replica, facts.times
        operation = operation_name(facts.received.endpoint)
        error_type = self._error_type(facts.error_type)
        endpoint = self._endpoint(facts.received.endpoint)
        trace = (facts.received.trace_id, facts.wall_ns(facts.terminal.at_ns) / 1e9)
        duration, ttft = "gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds"
        self._observe(duration, replica, [times.e2e_s], trace, operation, error_type)
        self._observe(ttft, replica, [times.ttft_s], trace, operation)
        self._count("vitrine_requests_total", replica, 1, str(facts.terminal.finish_reason), endpoint)
        self._count("vitrine_prompt_tokens_total", replica, facts.prompt_tokens)
        self._count("vitrine_generation_tokens_total", replica, facts.output_tokens)
        self._count("vitrine_preemptions_total", replica, facts.preemptions)
        for reason, tokens in facts.wasted.items():
            self._count("vitrine_wasted_tokens_total", replica, tokens, reason)
        self._observe("vitrine_request_prompt_tokens", replica, [facts.prompt_tokens])
        self._observe("vitrine_request_generation_tokens", replica, [facts.output_tokens])
        stages = {"tokenize": times.tokenize_s, "drain": times.drain_s, "transport": times.transport_s}
        self._observe_stages(replica, stages, trace)
        for sequence in facts.sequences:
            self._add_sequence(sequence, replica, operation, trace)

    def _add_sequence(self, sequence: SequenceFacts, replica: str, operation: str, trace: tuple[str, float]) -> None:
        times = sequence.times
        self._observe("gen_ai_server_time_per_output_token_seconds", replica, [times.tpot_s], trace, operation)
        self._observe("vitrine_inter_token_latency_seconds", replica, sequence.gaps_s(), trace)
        stages = {
            "queue": times.queue_s,
            "preempted": times.preempted_s or None,
            "prefill": times.prefill_s,
            "decode": times.decode_s,
            "detokenize": times.detokenize_s,
        }
        self._observe_stages(replica, stages, trace)

    def add_step(self, step: StepFacts) -> None:
        """An engine step was made."""
        record, replica = step.record, step.scope.replica
        self._observe("vitrine_step_duration_seconds", replica, [step.duration_s], step.trace, str(record.kind))
        self._observe("vitrine_step_batch_size", replica, [len(record.seq_ids)])
        self._observe("vitrine_step_batch_tokens", replica, [sum(record.num_tokens)])
        self._count("vitrine_runner_idle_seconds_total", replica, record.idle_ns / 1e9)
        self._count("vitrine_prefix_cache_queried_tokens_total", replica, record.queried_tokens)
        self._count("vitrine_prefix_cache_hit_tokens_total", replica, record.hit_tokens)
        self._count("vitrine_prefix_cache_evicted_blocks_total", replica, record.evicted_blocks)

    def add_death(self, death: ProcessDied) -> None:
        """A stage ended without having been asked to; only a replica's counts here."""
        if death.replica:
            self._count("vitrine_replica_restarts_total", death.replica, 1, restart_reason(death.exit_status))

    def save(self) -> bytes:
        """All numbers, for `load`."""
        counters = [(n, labels, v) for n, series in self.counters.items() for labels, v in series.items()]
        histograms = [(n, labels, h) for n, series in self.histograms.items() for labels, h in series.items()]
        return msgspec.msgpack.encode(_Saved(counters, histograms))

    def load(self, saved: bytes) -> None:
        """Go on from what `save` gave; metrics that are no longer in the table are left out."""
        data = msgspec.msgpack.decode(saved, type=_Saved)
        for name, labels, value in data.counters:
            if name in self.counters:
                self.counters[name][labels] = value
        for name, labels, histogram in data.histograms:
            if name in self.histograms and len(histogram.counts) == len(BY_NAME[name].buckets) + 1:
                self.histograms[name][labels] = histogram

    # --- how ----------------------------------------------------------------------------------------

    def _begin(self, metric: Metric, replica: str, own: Labels) -> None:
        if metric.kind is Kind.COUNTER:
            self._count(metric.name, replica, 0.0, *own)
        else:
            self._histogram(metric, replica, *own)

    def _count(self, name: str, replica: str, amount: float, *own: str) -> None:
        series = self.counters[name]
        labels = label_values(BY_NAME[name], {**self._common, "replica": replica}, own)
        series[labels] = series.get(labels, 0.0) + amount

    def _observe(
        self, name: str, replica: str, values: Sequence[float | None], trace: tuple[str, float] = ("", 0), *own: str
    ) -> None:
        observed = [value for value in values if value is not None]
        if not observed:
            return
        metric = BY_NAME[name]
        histogram = self._histogram(metric, replica, *own)
        for value in observed:
            histogram.observe(metric.buckets, value, *trace)

    def _observe_stages(self, replica: str, stages: Mapping[str, float | None], trace: tuple[str, float]) -> None:
        for stage, value in stages.items():
            self._observe("vitrine_stage_duration_seconds", replica, [value], trace, stage)

    def _histogram(self, metric: Metric, replica: str, *own: str) -> Histogram:
        labels = label_values(metric, {**self._common, "replica": replica}, own)
        series = self.histograms[metric.name]
        if labels not in series:
            series[labels] = Histogram.empty(metric.buckets)
        return series[labels]


def label_values(metric: Metric, common: Mapping[str, str], own: Sequence[str]) -> Labels:
    """Values of ``metric.common`` and ``metric.labels``, in this order."""
    return (*(common[name] for name in metric.common), *own)


def restart_reason(exit_status: str) -> str:
    """How a process ended, in one of few words."""
    known = {"killed": "killed", "exit": "exit", "no heartbeat": "hang", "not ready": "start_timeout"}
    return next((word for start, word in known.items() if exit_status.startswith(start)), "other")
