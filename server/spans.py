"""The spans of calls and streams, and their export. It needs the extra ``otel``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace import Tracer as OpenTelemetryTracer

from ..errors import SplitArrowError, status_name
from ..protocol.trace_context import TraceContext, parse_headers
from .addresses import parse_peer
from .logs import bind_trace, get_logger
from .report import package_version
from .streams import Outcome, RunningStream


class _BoundSpan:
    """A span that ends with a block, and whose trace the log events of the block name."""

    def __init__(self, tracer: OpenTelemetryTracer, span: Span, peer: str) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span, Context())
        self.error: str | None = None
        """What failed, as the name of a status or of an exception."""
        address = parse_peer(peer)
        if address is not None:
            span.set_attribute("client.address", str(address))

    def __enter__(self) -> Self:
        bind_trace(format_trace_id(self._span.get_span_context().trace_id))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.error is None and exc_value is not None:
            ours = isinstance(exc_value, SplitArrowError)
            self.error = status_name(exc_value) if ours else type(exc_value).__name__
        if self.error is not None:
            self._span.set_attribute("error.type", self.error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class CallSpan(_BoundSpan):
    """The span of a call of the control plane; see `Tracer.call`."""

    def __init__(self, tracer: OpenTelemetryTracer, span: Span, method: str, peer: str) -> None:
        super().__init__(tracer, span, peer)
        span.set_attribute("rpc.system.name", "grpc")
        span.set_attribute("rpc.method", method)

    def end(self, dataset: str | None, status: str) -> None:
        """Record the dataset and the status of the call."""
        self._span.set_attribute("rpc.response.status_code", status)
        if dataset is not None:
            self._span.set_attribute("splitarrow.dataset", dataset)
        if status != "OK":
            self.error = status

    def stream(self, transport: str) -> StreamSpan:
        """Return the span of a stream that the call sends."""
        return StreamSpan(self._tracer, self._context, transport, "", SpanKind.INTERNAL)


class StreamSpan(_BoundSpan):
    """The span of a stream, with spans below it for opening, the first rows and the transfer."""

    def __init__(
        self,
        tracer: OpenTelemetryTracer,
        parent: Context,
        transport: str,
        peer: str,
        kind: SpanKind,
    ) -> None:
        attributes = {"splitarrow.transport": transport}
        self._started = time.time_ns()
        self._opened: int | None = None
        span = tracer.start_span("splitarrow.stream", parent, kind, attributes)
        super().__init__(tracer, span, peer)

    def opened(self) -> None:
        """Record that the source of the data is open."""
        self._opened = time.time_ns()
        self._add("splitarrow.open", self._started, self._opened)

    def end(self, stream: RunningStream) -> None:
        """Record the figures of the stream, which has ended."""
        span = self._span
        if not span.is_recording():
            return
        span.set_attribute("splitarrow.dataset", stream.dataset)
        span.set_attribute("splitarrow.rows", stream.rows)
        span.set_attribute("splitarrow.bytes", stream.nbytes)
        span.set_attribute("splitarrow.outcome", stream.outcome.value)
        if self.error is None and stream.outcome is not Outcome.COMPLETE:
            self.error = stream.outcome.value
        if self._opened is None:
            return
        if stream.first_rows_seconds is not None:
            began = time.time_ns() - round(stream.seconds * 1e9)
            sent = began + round(stream.first_rows_seconds * 1e9)
            self._add("splitarrow.first_batch", self._opened, sent)
        self._add("splitarrow.transfer", self._opened, time.time_ns())

    def _add(self, name: str, start: int, end: int) -> None:
        """Add a span below this one, with its times in nanoseconds since 1970."""
        if self._span.is_recording():
            self._tracer.start_span(name, self._context, start_time=start).end(max(start, end))


FLUSH_SECONDS = 5.0
"""The longest time in which a server that ends waits for the collector."""


class Tracer:
    """Records spans, and exports them in batches from a thread of its own.

    No stream waits for the collector: when its queue is full, spans are dropped.

    The standard variables of OpenTelemetry apply: ``OTEL_SERVICE_NAME``,
    ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_HEADERS``,
    ``OTEL_BSP_…`` and so on. By default a trace is recorded unless its caller does not record it.
    Without a URL, the exporter reads it from the variables.
    """

    def __init__(self, url: str | None, process: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=url)
        # At exit, `close` has a time limit, which the provider's own hook lacks.
        self._provider = TracerProvider(resource=_describe_process(process), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("splitarrow", package_version())

    @contextmanager
    def call(self, method: str, headers: Mapping[str, str], peer: str) -> Generator[CallSpan]:
        """Record a call of the control plane while the block runs."""
        span = self._tracer.start_span(method, _parent(parse_headers(headers)), SpanKind.SERVER)
        with CallSpan(self._tracer, span, method, peer) as call:
            yield call

    @contextmanager
    def stream(
        self, context: TraceContext | None, transport: str, peer: str
    ) -> Generator[StreamSpan]:
        """Record a stream of a data transport while the block runs."""
        with StreamSpan(self._tracer, _parent(context), transport, peer, SpanKind.SERVER) as stream:
            yield stream

    def close(self) -> None:
        """Export the spans that remain, for a few seconds at most. Idempotent."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_SECONDS)
        if closing.is_alive():
            get_logger("daemon").warning(
                "the collector took too long: spans are lost", seconds=FLUSH_SECONDS
            )
            self._exporter.shutdown()  # it waits no longer for its next attempt


def _describe_process(process: str) -> Resource:
    """Return the resource: OpenTelemetry's variables win over what the server says of itself."""
    resource = Resource.create()
    own = {
        SERVICE_VERSION: package_version(),
        "process.pid": os.getpid(),
        "splitarrow.process": process,
    }
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "splitarrow"}))
    return Resource(own).merge(resource)


def _parent(context: TraceContext | None) -> Context:
    """Return the context of a span: that of the caller, or an empty one."""
    if context is None:
        return Context()
    caller = SpanContext(
        int(context.trace_id, 16),
        int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(context.flags),
        trace_state=TraceState(list(context.state)),
    )
    return set_span_in_context(NonRecordingSpan(caller), Context())
