"""Sends spans to an OTLP endpoint from a thread of its own. A dead or slow receiver costs spans, never time."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from telemetry import otel_environment

MAX_QUEUE = 20_000
MAX_BATCH = 512
FLUSH_INTERVAL_S = 1.0
EXPORT_TIMEOUT_S = 3.0
_ATTEMPTS = 5
_TRACES_PATH = "/v1/traces"
_LONGEST_BACKOFF_S = 8.0
_LOG_INTERVAL_S = 60.0

log = structlog.get_logger()


def make_exporter(endpoint: str) -> SpanExporter | None:
    """An exporter for ``http(s)://`` (OTLP over HTTP) or ``grpc(s)://``; None when there is nowhere to send to.

    With "" OpenTelemetry's variables decide, see `telemetry.otel_environment`. Raises ValueError for an endpoint of
    another kind.
    """
    scheme, _, address = endpoint.partition("://")
    if not endpoint:
        return _exporter_from_environment()
    if scheme in ("grpc", "grpcs") and address:
        return _grpc_exporter(address, insecure=scheme == "grpc")
    if scheme in ("http", "https") and address:
        bare = endpoint.rstrip("/")
        return _http_exporter(bare if bare.endswith(_TRACES_PATH) else bare + _TRACES_PATH)
    raise ValueError(f"--otlp-endpoint {endpoint!r} must begin with http://, https://, grpc:// or grpcs://")


def _exporter_from_environment() -> SpanExporter | None:
    match otel_environment.protocol():
        case "grpc":
            return _grpc_exporter(None, insecure=None)
        case "http/protobuf":
            return _http_exporter(None)
        case None:
            return None


def _http_exporter(endpoint: str | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, timeout=_timeout_s())


def _grpc_exporter(address: str | None, insecure: bool | None) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=address, insecure=insecure, timeout=_timeout_s())


def _timeout_s() -> float | None:
    """None: what the exporter reads from its variables."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return None if any(os.environ.get(name) for name in names) else EXPORT_TIMEOUT_S


class ExportThread:
    """A bounded queue in front of an exporter.

    A batch that fails is tried again, later and later, a few times; meanwhile the queue fills, and when it is
    full its oldest spans go. What is lost is counted.
    """

    def __init__(self, exporter: SpanExporter, max_queue: int | None = None, first_backoff_s: float = 0.5) -> None:
        """Without `max_queue` it is that of ``OTEL_BSP_MAX_QUEUE_SIZE``, or `MAX_QUEUE`."""
        _silence_libraries()
        number = otel_environment.number
        self._max_queue = max_queue or int(number("OTEL_BSP_MAX_QUEUE_SIZE", MAX_QUEUE, 1))
        self._max_batch = int(number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MAX_BATCH, 1, self._max_queue))
        self._flush_interval_s = number("OTEL_BSP_SCHEDULE_DELAY", 1e3 * FLUSH_INTERVAL_S, 1) / 1e3
        self.exported = 0
        self.dropped = 0
        self.degraded = False  # the last export failed
        self._exporter = exporter
        self._first_backoff_s = first_backoff_s
        self._queue: deque[ReadableSpan] = deque()
        self._in_flight = 0  # spans of the batch that is being sent, until they are counted
        self._changed = threading.Condition()
        self._closing = False
        self._logged_at = -_LOG_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name="span export", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[ReadableSpan]) -> None:
        """Queue spans. Never waits for the network."""
        with self._changed:
            self._queue.extend(spans)
            self._shed()
            if len(self._queue) >= self._max_batch:
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Send what is queued, for at most `timeout_s`; what is left then is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            self.dropped += len(self._queue) + self._in_flight
            self._in_flight = 0
            self._queue.clear()
        threading.Thread(target=self._exporter.shutdown, daemon=True).start()  # it may wait for the network

    def _run(self) -> None:
        attempt = 0
        batch: list[ReadableSpan] = []
        while batch or not self._finished():
            batch = batch or self._next_batch()
            if not batch:
                continue
            if self._export(batch):
                attempt, batch = 0, []
                continue
            attempt += 1
            if attempt >= _ATTEMPTS or self._closing:
                self._give_up()
                attempt, batch = 0, []
            self._pause(min(self._first_backoff_s * 2**attempt, _LONGEST_BACKOFF_S))

    def _finished(self) -> bool:
        return self._closing and not self._queue

    def _next_batch(self) -> list[ReadableSpan]:
        with self._changed:
            if len(self._queue) < self._max_batch and not self._closing:
                self._changed.wait(self._flush_interval_s)
            batch = [self._queue.popleft() for _ in range(min(self._max_batch, len(self._queue)))]
            self._in_flight = len(batch)
            return batch

    def _export(self, batch: list[ReadableSpan]) -> bool:
        try:
            done = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as e:  # an exporter may raise what it likes; this thread must live
            self._report(repr(e))
            done = False
        self.degraded = not done
        if done:
            with self._changed:
                self.exported += self._in_flight
                self._in_flight = 0
        else:
            self._report("the receiver does not answer, or refuses")
        return done

    def _give_up(self) -> None:
        with self._changed:
            self.dropped += self._in_flight
            self._in_flight = 0

    def _shed(self) -> None:
        while len(self._queue) > self._max_queue:
            self._queue.popleft()
            self.dropped += 1

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)

    def _report(self, reason: str) -> None:
        if time.monotonic() - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            log.warning("spans cannot be delivered", reason=reason, queued=len(self._queue), dropped=self.dropped)


def _silence_libraries() -> None:
    """The exporter and what it uses log every failed attempt; `ExportThread` says it once a minute."""
    for name in ("opentelemetry", "urllib3", "requests", "grpc"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
