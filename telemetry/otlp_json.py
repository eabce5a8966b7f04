"""Spans as OTLP JSON lines, made once more from the store: each line is the spans of one request.

Format: OpenTelemetry Protocol File Exporter (one ``TracesData`` per line), JSON Protobuf Encoding of OTLP 1.x:
names in camelCase, enums as numbers, 64-bit integers as strings, and ids in hex instead of base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from telemetry.queries import Reader
from telemetry.span_resources import Resources
from telemetry.span_steps import StepTraces
from telemetry.spans import RequestSpans
from telemetry.stored_facts import stored_facts
from telemetry.windows import Window, each_request, token_line

_IDS = ("traceId", "spanId", "parentSpanId")


def otlp_lines(reader: Reader, window: Window, address: tuple[str, int]) -> Iterator[bytes]:
    """A line for each finished request received in the window. `address` is where the API listens."""
    steps = StepTraces(0.0)
    for request in each_request(reader, window):
        if request["finish_reason"] is None:
            continue
        sequences = [(row, token_line(reader, row)) for row in reader.get_sequences(request["request_id"])]
        spans = RequestSpans(stored_facts(request, sequences), Resources(), steps, address).make()
        yield otlp_line(spans)


def otlp_line(spans: Sequence[ReadableSpan]) -> bytes:
    """Spans as one line."""
    message = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    _write_ids_in_hex(message)
    return msgspec.json.encode(message) + b"\n"


def _write_ids_in_hex(message: dict[str, Any]) -> None:
    spans = (s for r in message["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"])
    for span in spans:
        for holder in (span, *span.get("links", ())):
            for name in _IDS:
                if name in holder:
                    holder[name] = base64.b64decode(holder[name]).hex()
