import logging
import socket
import time

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from telemetry import export
from telemetry.export import ExportThread, make_exporter
from tests.otlp_receiver import OtlpReceiver
from tests.telemetry.test_assembly import assemble, only
from tests.telemetry.test_spans import spans_of, usual_story


@pytest.fixture
def spans():
    return spans_of(only(assemble(usual_story())))


@pytest.fixture
def receiver():
    with OtlpReceiver() as receiver:
        yield receiver


class Exporter(SpanExporter):
    """Fails until told otherwise."""

    def __init__(self, result=SpanExportResult.FAILURE):
        self.result = result
        self.calls = 0

    def export(self, spans):
        self.calls += 1
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self):
        pass


def eventually(condition, timeout_s=5.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_spans_arrive_as_they_were_made(spans, receiver):
    thread = ExportThread(make_exporter(receiver.endpoint))
    thread.put(spans)
    thread.close(5.0)
    arrived = receiver.wait_for_spans(len(spans))
    assert {s.name for s in arrived} == {s.name for s in spans}
    root = next(s for s in arrived if s.kind == 2)
    assert root.parent_id == ""
    assert {s.service for s in arrived} >= {"vitrine-gateway", "vitrine-scheduler", "vitrine-runner"}
    assert {s.parent_id for s in arrived} - {""} <= {s.span_id for s in arrived}
    assert (thread.exported, thread.dropped) == (len(spans), 0)


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("broken")])
def test_what_cannot_be_delivered_is_bounded_and_counted(spans, result):
    thread = ExportThread(Exporter(result), max_queue=50, first_backoff_s=0.001)
    for _ in range(20):
        thread.put(spans)
    eventually(lambda: thread.degraded)
    thread.close(2.0)
    assert thread.exported == 0
    assert thread.dropped == 20 * len(spans)


def test_spans_flow_again_when_the_receiver_is_back(spans):
    exporter = Exporter()
    thread = ExportThread(exporter, first_backoff_s=0.01)
    thread.put(spans)
    eventually(lambda: exporter.calls >= 2)
    exporter.result = SpanExportResult.SUCCESS
    eventually(lambda: thread.exported == len(spans))
    assert not thread.degraded
    thread.close(1.0)
    assert thread.dropped == 0


def test_a_receiver_that_answers_500_is_reported_once_without_traceback(spans, receiver, caplog, monkeypatch):
    said = []
    monkeypatch.setattr(export.log, "warning", lambda event, **_: said.append(event), raising=False)
    receiver.status = 500
    thread = ExportThread(make_exporter(receiver.endpoint), first_backoff_s=0.01)
    with caplog.at_level(logging.WARNING):
        thread.put(spans)
        eventually(lambda: receiver.posts >= 3, 10)
    thread.close(0.5)
    assert len(said) == 1
    assert caplog.records == []


def test_a_closed_port_and_a_receiver_that_hangs_hold_nobody_up(spans, receiver):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    receiver.hang.set()
    for endpoint in (closed, receiver.endpoint):
        thread = ExportThread(make_exporter(endpoint))
        started = time.monotonic()
        for _ in range(100):
            thread.put(spans)
        assert time.monotonic() - started < 0.5
        thread.close(0.3)
        assert time.monotonic() - started < 1.5
        assert thread.dropped == 100 * len(spans)


def test_grpc_and_http_endpoints_are_told_apart(monkeypatch):
    assert type(make_exporter("http://localhost:4318")).__module__.startswith("opentelemetry.exporter.otlp.proto.http")
    assert type(make_exporter("grpc://localhost:4317")).__module__.startswith("opentelemetry.exporter.otlp.proto.grpc")
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert make_exporter("") is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    assert make_exporter("") is not None
    with pytest.raises(ValueError, match="must begin with"):
        make_exporter("localhost:4318")
