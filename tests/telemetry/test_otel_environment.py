from __future__ import annotations

import pytest

from telemetry.export import ExportThread, make_exporter
from telemetry.otel_environment import number, protocol, trace_ratio
from tests.otlp_receiver import OtlpReceiver
from tests.telemetry.test_assembly import assemble, only
from tests.telemetry.test_spans import spans_of, usual_story

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        (ENDPOINT, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, "http/protobuf"),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        (
            ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            "http/protobuf",
        ),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, None),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "false"}, "http/protobuf"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_where_to_send_is_what_the_variables_say(environ, found):
    assert protocol(environ) == found


@pytest.mark.parametrize(
    ("setting", "sampler", "argument", "ratio"),
    [
        (1.0, "", "", 1.0),
        (1.0, "parentbased_traceidratio", "0.25", 0.25),
        (1.0, "traceidratio", "0.25", 0.25),
        (1.0, "parentbased_always_off", "", 0.0),
        (1.0, "always_on", "0.25", 1.0),
        (0.5, "traceidratio", "0.25", 0.5),
        (1.0, "traceidratio", "nonsense", 1.0),
        (1.0, "traceidratio", "7", 1.0),
        (1.0, "jaeger_remote", "", 1.0),
    ],
)
def test_the_sampler_of_the_environment_stands_in_for_the_default(setting, sampler, argument, ratio):
    environ = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert trace_ratio(setting, environ) == ratio


def test_numbers_out_of_range_are_not_used():
    assert number("X", 5, 1, 10, {}) == 5
    assert number("X", 5, 1, 10, {"X": "7"}) == 7
    for wrong in ("0", "11", "nan", "", "many"):
        assert number("X", 5, 1, 10, {"X": wrong}) == 5


def test_headers_and_compression_of_the_environment_are_sent(monkeypatch):
    spans = spans_of(only(assemble(usual_story())))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        thread = ExportThread(make_exporter(""))
        thread.put(spans)
        thread.close(5.0)
        assert len(receiver.wait_for_spans(len(spans))) == len(spans)
        assert receiver.headers["x-tenant"] == "blue" and receiver.headers["content-encoding"] == "gzip"
        assert receiver.posts == -(-len(spans) // 2)


def test_the_queue_of_the_environment_is_the_bound(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "3")
    spans = spans_of(only(assemble(usual_story())))
    with OtlpReceiver() as receiver:
        receiver.hang.set()
        thread = ExportThread(make_exporter(receiver.endpoint))
        for _ in range(5):
            thread.put(spans)
        assert thread.dropped >= 5 * len(spans) - 3 - 3  # in the queue, and on their way
        receiver.hang.clear()
        thread.close(5.0)
