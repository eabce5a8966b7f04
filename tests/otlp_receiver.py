"""An OTLP/HTTP receiver in this process: takes what the exporter sends, and misbehaves when told to."""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


class ReceivedSpan:
    """A span with plain values; ids as hex."""

    def __init__(self, resource, span) -> None:
        self.resource = {a.key: _plain(a.value) for a in resource.attributes}
        self.service = self.resource.get("service.name")
        self.name = span.name
        self.kind = span.kind
        self.trace_id = span.trace_id.hex()
        self.span_id = span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start_ns = span.start_time_unix_nano
        self.end_ns = span.end_time_unix_nano
        self.attributes = {a.key: _plain(a.value) for a in span.attributes}
        self.events = [(e.name, e.time_unix_nano, {a.key: _plain(a.value) for a in e.attributes}) for e in span.events]
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.is_error = span.status.code == 2
        self.status_message = span.status.message
        self.trace_state = span.trace_state

    def __repr__(self) -> str:
        return f"<{self.service} {self.name} {self.span_id}>"


def _plain(value: AnyValue):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(v) for v in value.array_value.values]
    return getattr(value, kind) if kind else None


class OtlpReceiver:
    """Use as a context manager. ``status`` is what it answers; ``hang`` makes it never answer."""

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.hang = threading.Event()
        self.posts = 0
        self.headers: dict[str, str] = {}  # of the last request
        self.spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_for_spans(self, count: int, timeout_s: float = 10.0) -> list[ReceivedSpan]:
        """At least `count` spans, or a failing assertion."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.spans) >= count, timeout_s)
        assert arrived, f"{len(self.spans)} of {count} spans arrived: {self.spans}"
        return list(self.spans)

    def traces(self) -> dict[str, list[ReceivedSpan]]:
        found: dict[str, list[ReceivedSpan]] = {}
        for span in self.spans:
            found.setdefault(span.trace_id, []).append(span)
        return found

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for group in request.resource_spans:
                for scope in group.scope_spans:
                    self.spans += [ReceivedSpan(group.resource, span) for span in scope.spans]
            self._changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.posts += 1
                receiver.headers = {name.lower(): value for name, value in self.headers.items()}
                while receiver.hang.is_set() and not receiver._closed.is_set():
                    time.sleep(0.02)
                if receiver.status == 200:
                    receiver._take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(receiver.status)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        return Handler
