"""Where facts go: spans, metrics, samples, token log, store. Each fails on its own, and counts what it lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog
from sqlalchemy.exc import SQLAlchemyError

from engine.config import Config
from telemetry import otel_environment, schema, token_log
from telemetry.degraded import Degraded
from telemetry.events import ReplicaState
from telemetry.export import ExportThread
from telemetry.exposition import Exposition
from telemetry.facts import RequestFacts, StepFacts
from telemetry.gauges import Gauge
from telemetry.metric_labels import SINKS
from telemetry.metrics import Metrics
from telemetry.pages import StageKey, TotalsRow
from telemetry.rows import LogRef, request_row, sequence_rows, step_row
from telemetry.run_reader import READ_ERRORS, Pass, RunReader
from telemetry.samples import Samples
from telemetry.sampling import Objectives, SlowSteps, is_exported
from telemetry.span_steps import StepTraces, step_spans
from telemetry.spans import RequestSpans
from telemetry.store import Batch, Store
from telemetry.token_archive import Retention
from telemetry.token_texts import TokenTexts

_LOG_INTERVAL_S = 60.0
_STORE_RETRY_S = 2.0
"""A store that has just failed is left alone for so long: finding out again may take seconds."""

_METRICS_STATE = "metrics"
_LOG_STATE = "token_log"

log = structlog.get_logger()


class _SavedState(msgspec.Struct, array_like=True):
    run_id: str
    metrics: bytes
    busy: list[tuple[StageKey, TotalsRow]]
    cpu: list[tuple[StageKey, TotalsRow]]
    events: dict[str, int]
    dropped: dict[str, int]


class Complaints:
    """Says the same thing at most once a minute."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}

    def __call__(self, event: str, reason: str) -> None:
        """Log a warning, unless this event was logged a moment ago."""
        now = time.monotonic()
        if now - self._said_at.get(event, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            self._said_at[event] = now
            log.warning(event, reason=reason)


class Sinks:
    """All sinks of the telemetry process. One call of `take` and one of `commit` per pass."""

    def __init__(
        self,
        config: Config,
        run_id: str,
        store: Store,
        exposition: Exposition,
        metrics: Metrics,
        exporter: ExportThread | None,
    ) -> None:
        self.exposition = exposition
        self.degraded = Degraded()
        self.complain = Complaints()
        self._config = config
        self._run_id = run_id
        self._store = store
        self._metrics = metrics
        self._exporter = exporter
        self._samples = Samples()
        self._trace_ratio = otel_environment.trace_ratio(config.trace_ratio)
        self._objectives = Objectives(config.objective_ttft, config.objective_itl)
        self._steps = StepTraces(config.step_trace_ratio, SlowSteps(self._objectives))
        self._batch = Batch()
        self._log: token_log.TokenLog | None = None
        self._texts = TokenTexts() if config.token_log == "full" else None
        self._positions: dict[str, tuple[int, int]] = {}
        self._sampled_at = time.monotonic()
        self._store_retry_at = 0.0
        self._noted = (0, 0)  # spans exported and dropped that have been counted

    def recover(self) -> None:
        """Go on where an earlier telemetry process of this run was killed."""
        saved = self._store.state(_METRICS_STATE)
        if saved is not None:
            state = msgspec.msgpack.decode(saved, type=_SavedState)
            if state.run_id == self._run_id:
                self._metrics.load(state.metrics)
                self.exposition.busy.load(state.busy)
                self.exposition.cpu.load(state.cpu)
                self.exposition.events.update(state.events)
                self.exposition.dropped.update(state.dropped)
                self.exposition.show_own(self.exposition.own_totals())
        if self._config.token_log == "off":
            return
        self._log = _make_log(self._config)
        committed = self._store.state(_LOG_STATE)
        self._log.recover(msgspec.msgpack.decode(committed, type=LogRef) if committed else ("", 0))

    # --- per pass -----------------------------------------------------------------------------------

    def take_steps(self, result: Pass, run: RunReader) -> None:
        """The steps of a pass; before the requests in them are closed, since the spans link to those."""
        for step in result.steps:
            try:
                self._take_step(step, run)
            except READ_ERRORS as e:
                result.dropped += 1
                self.complain("a step could not be interpreted", f"{step.record.step_id}: {e!r}")

    def take(self, result: Pass, run: RunReader) -> None:
        """Everything else of a pass."""
        known = self._known([facts.request_id for facts in result.finished])
        taken: list[tuple[RequestFacts, list[bytes]]] = []
        for facts in result.finished:
            if facts.request_id in known:
                continue
            try:
                taken.append((facts, self._take_request(facts, run)))
            except READ_ERRORS as e:
                result.dropped += 1
                self.complain("a request could not be interpreted", f"{facts.request_id}: {e!r}")
        self._file(taken, self._write_log([own for own in taken if own[1]]))
        with self.exposition.changing:
            for death in result.deaths:
                self._metrics.add_death(death)
        self._batch.replica_events.extend(result.replica_events)
        self._batch.incarnations.update(result.incarnations)
        self._count(result)

    def take_running(self, run: RunReader) -> None:
        """The requests that are open and have changed; at most once a second each."""
        now = time.time()
        self._batch.running.update({facts.request_id: request_row(facts, now) for facts in run.assembly.live()})

    def sample(self) -> None:
        """Close a second."""
        gauges = self.exposition.observe_pages()
        now = time.monotonic()
        elapsed_s, self._sampled_at = max(now - self._sampled_at, 1e-3), now
        values = self._samples.roll(gauges, self.exposition.busy.totals(), elapsed_s)
        now_ns = time.monotonic_ns()
        for replica, own in values.items():
            own |= self.exposition.utilization.sample(replica, now_ns)
            costs = self.exposition.cost.per_million(now_ns, [replica] if replica else None)
            own |= {f"cost_{kind}": cost for kind, cost in costs.items()}
        second = int(time.time())
        self._batch.samples.extend({"ts": second, "replica": r, "values": v} for r, v in values.items())

    def know_replicas(self, run: RunReader) -> None:
        """Which replicas there are, and what they run."""
        with self.exposition.changing:
            for replica, state in run.states.items():
                if replica not in self.exposition.replicas:
                    self._metrics.add_replica(replica)
                info = run.latest_info(replica)
                self.exposition.replicas[replica] = (state, info)
                self.exposition.utilization.know(replica, info)
                if state is ReplicaState.STOPPED:
                    self.exposition.cost.forget(replica)
                else:
                    self.exposition.cost.know(replica, time.monotonic_ns())

    def commit(self, run: RunReader, last: bool = False) -> None:
        """Write what has been taken, with how far the journals have been read. Failing, it is tried again later.

        `last`: there will be no later.
        """
        positions = run.tail.positions()
        if not self._batch and positions == self._positions:
            return
        if not last and time.monotonic() < self._store_retry_at:
            return
        log_position = self._log.position if self._log else None
        own_totals = self.exposition.own_totals()
        try:
            self._store.commit(self._batch, positions, self._state(log_position))
        except SQLAlchemyError as e:
            self.degraded.note(Gauge.STORE_DEGRADED, True)
            self._store_retry_at = time.monotonic() + _STORE_RETRY_S
            self.exposition.dropped["store"] += self._batch.shed()
            self.complain("the store cannot be written", str(e))
            return
        self.degraded.note(Gauge.STORE_DEGRADED, False)
        self.exposition.show_own(own_totals)
        if self._log is not None and log_position is not None:
            self._log.committed(log_position)
        self.exposition.events["store"] += len(self._batch)
        self._batch = Batch()
        self._positions = positions

    def work(self) -> None:
        """A few milliseconds of what can wait: compressing the token log."""
        if self._log is None:
            return
        try:
            self._log.work()
        except OSError as e:
            self.complain("a token log file cannot be compressed", str(e))

    def trim(self, journals: Sequence[str]) -> None:
        """Delete old rows and token log files."""
        try:
            self._store.trim(time.time(), journals)
        except SQLAlchemyError as e:
            self.complain("old rows cannot be deleted", str(e))
        try:
            if self._log is not None:
                self._log.trim()
        except OSError as e:
            self.complain("old token log files cannot be dealt with", str(e))

    def close_orphans(self, open_ids: set[str]) -> None:
        """End the requests that the store believes to be running although nobody knows them."""
        try:
            self._store.close_orphans(open_ids | set(self._batch.finished))
        except SQLAlchemyError as e:
            self.complain("requests without records cannot be ended", str(e))

    def close(self, timeout_s: float) -> None:
        """Flush and close all."""
        if self._exporter is not None:
            self._exporter.close(timeout_s)
        if self._log is not None:
            self._log.close()
        self._store.close()

    # --- how ----------------------------------------------------------------------------------------

    def _known(self, request_ids: list[str]) -> set[str]:
        """Requests that an earlier process has finished already: their records are read again after a crash."""
        pending = {request_id for request_id in request_ids if request_id in self._batch.finished}
        if time.monotonic() < self._store_retry_at:
            return pending
        try:
            return pending | self._store.finished_ids(request_ids)
        except SQLAlchemyError as e:
            self.complain("the store cannot be read", str(e))
            return pending

    def _take_step(self, step: StepFacts, run: RunReader) -> None:
        """Metrics, samples, spans and row of a step."""
        if not run.past:
            with self.exposition.changing:
                self._metrics.add_step(step)
                self.exposition.utilization.add_step(step)
                self.exposition.cost.add_step(step)
            self._samples.add_step(step)
        self._batch.steps.append(step_row(step, run.wall_offset_ns))
        if self._exporter is not None:
            self._export_step(step, run, self._exporter)

    def _take_request(self, facts: RequestFacts, run: RunReader) -> list[bytes]:
        """Metrics, samples and spans of a request; returns its token-log lines."""
        with self.exposition.changing:
            self._metrics.add_request(facts)
        if not run.past:
            self._samples.add_request(facts)
        if self._exporter is not None and is_exported(facts, self._trace_ratio, self._objectives):
            address = (self._config.host, self._config.port)
            self._exporter.put(RequestSpans(facts, run.resources, self._steps, address).make())
        if self._log is None:
            return []
        return token_log.lines(facts, run.replicas, self._texts)

    def _export_step(self, step: StepFacts, run: RunReader, exporter: ExportThread) -> None:
        self._steps.note(step)
        root = self._steps.context(step.run_id, step.scope, step.record.step_id)
        if root is not None:
            trace_ids = run.assembly.trace_ids(row[0] for row in step.rows)
            exporter.put(step_spans(step, root, trace_ids, run.wall_offset_ns, run.resources))

    def _write_log(self, lines: list[tuple[RequestFacts, list[bytes]]]) -> Mapping[str, Mapping[int, LogRef]]:
        """Write the token log; returns where the lines are."""
        if self._log is None or not lines:
            return {}
        count = sum(len(own) for _, own in lines)
        try:
            refs = self._log.write(lines)
        except OSError as e:
            self.degraded.note(Gauge.TOKEN_LOG_DEGRADED, True)
            self.exposition.dropped["token_log"] += count
            self.complain("the token log cannot be written", str(e))
            return {}
        self.degraded.note(Gauge.TOKEN_LOG_DEGRADED, False)
        self.exposition.events["token_log"] += count
        return refs

    def _file(self, finished: list[tuple[RequestFacts, list[bytes]]], refs: Mapping[str, Mapping[int, LogRef]]) -> None:
        now = time.time()
        for facts, _ in finished:
            self._batch.finished[facts.request_id] = request_row(facts, now)
            self._batch.sequences.extend(sequence_rows(facts, refs.get(facts.request_id, {})))

    def _count(self, result: Pass) -> None:
        """Records that were never seen are lost to every sink."""
        self.exposition.events["metrics"] += result.records
        for sink in SINKS:
            self.exposition.dropped[sink] += result.dropped

    def _note_exports(self) -> None:
        """The export thread counts for itself, from 0."""
        if self._exporter is not None:
            exported, dropped = self._exporter.exported, self._exporter.dropped
            self.exposition.events["spans"] += exported - self._noted[0]
            self.exposition.dropped["spans"] += dropped - self._noted[1]
            self._noted = (exported, dropped)

    def _state(self, log_position: LogRef | None) -> dict[str, bytes]:
        self._note_exports()
        exposition = self.exposition
        saved = _SavedState(
            self._run_id,
            self._metrics.save(),
            exposition.busy.dump(),
            exposition.cpu.dump(),
            dict(exposition.events),
            dict(exposition.dropped),
        )
        state = {_METRICS_STATE: msgspec.msgpack.encode(saved)}
        if log_position is not None:
            state[_LOG_STATE] = msgspec.msgpack.encode(log_position)
        return state


def _make_log(config: Config) -> token_log.TokenLog:
    rotation = token_log.Rotation(
        max_bytes=config.token_log_file_bytes,
        max_age_s=config.token_log_max_age * 3600,
        fsync=config.token_log_fsync,
    )
    retention = Retention(max_age_s=config.token_log_retention * 86_400, max_bytes=config.token_log_total_bytes)
    return token_log.TokenLog(config.data_path / schema.TOKEN_FOLDER, rotation, retention)
