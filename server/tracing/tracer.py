"""The spans of one process, and their export.

A span names a dataset, a transport and an address, and has numbers. It never has a ticket, a
token, a path, a row or the text of an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from ...protocol.trace_context import TraceContext, parse_headers
from ..logs import get_logger
from ..report import package_version
from .spans import CallSpan, StreamSpan

FLUSH_SECONDS = 5.0
"""The longest time in which a server that ends waits for the collector."""


class Tracer:
    """Records spans, and exports them in batches from a thread of its own.

    No stream waits for the collector: when its queue is full, spans are dropped.

    The standard variables of OpenTelemetry apply: ``OTEL_SERVICE_NAME``,
    ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER``, ``OTEL_EXPORTER_OTLP_HEADERS``,
    ``OTEL_BSP_…`` and so on. By default a trace is recorded unless its caller does not record it.

    Parameters
    ----------
    url : str or None
        The URL for the spans. None lets the exporter read the variables.
    process : str
        The name of the process.
    """

    def __init__(self, url: str | None, process: str) -> None:
        self._exporter = OTLPSpanExporter(endpoint=url)
        # At exit, `close` has a time limit, which the provider's own hook lacks.
        self._provider = TracerProvider(resource=_describe_process(process), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("splitarrow", package_version())

    @contextmanager
    def call(self, method: str, headers: Mapping[str, str], peer: str) -> Generator[CallSpan]:
        """Record a call of the control plane while the block runs.

        Parameters
        ----------
        method : str
            The method, with the name of its service.
        headers : mapping of str to str
            The headers of the call, of which two may name the caller's context.
        peer : str
            The address of the client, as gRPC writes it.
        """
        span = self._tracer.start_span(method, _parent(parse_headers(headers)), SpanKind.SERVER)
        with CallSpan(self._tracer, span, method, peer) as call:
            yield call

    @contextmanager
    def stream(
        self, context: TraceContext | None, transport: str, peer: str
    ) -> Generator[StreamSpan]:
        """Record a stream of a data transport while the block runs.

        Parameters
        ----------
        context : TraceContext or None
            The context that the reader sent.
        transport : str
            The scheme of the transport.
        peer : str
            The address of the reader.
        """
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
