"""An OpenTelemetry collector: an HTTP server that keeps the spans it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from helpers.waiting import wait_until


@dataclass(frozen=True)
class ExportedSpan:
    """A span that an SDK exported."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    failed: bool
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """A collector on a free port of the loopback, at `url`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        """The bodies of all requests, decompressed, and their paths and headers."""
        self._spans: list[ExportedSpan] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(f"{self.path}\n{self.headers}".encode(), body)
                response = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(response)))
                self.end_headers()
                self.wfile.write(response)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, head: bytes, body: bytes) -> None:
        self.bodies.append(head + body)
        self._spans += _parse(body)

    def spans(self, service: str | None = None) -> list[ExportedSpan]:
        """Return the spans so far, in the order of their starts."""
        found = [span for span in list(self._spans) if service in (None, span.service)]
        return sorted(found, key=lambda span: span.start)

    def wait(self, names: set[str], service: str | None = None) -> dict[str, ExportedSpan]:
        """Wait until spans with all these names have come; return the last of each name."""

        def found() -> dict[str, ExportedSpan]:
            return {span.name: span for span in self.spans(service)}

        wait_until(lambda: names <= found().keys(), f"spans named {sorted(names)}")
        return found()

    def wait_for(self, matches: Callable[[ExportedSpan], bool], what: str) -> ExportedSpan:
        """Wait for a span."""
        wait_until(lambda: any(matches(span) for span in self.spans()), what)
        return next(span for span in self.spans() if matches(span))

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _parse(body: bytes) -> Iterator[ExportedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield ExportedSpan(
                    str(resource.get("service.name")),
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    int(span.kind),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == 2,
                    _attributes(span.attributes),
                    resource,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()
