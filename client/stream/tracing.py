"""The spans of a client that OpenTelemetry traces.

An application that traces has imported OpenTelemetry, so nothing here imports it: without it, a
read costs a look into ``sys.modules``. Spans name a dataset, a transport and an address, and have
numbers. They never have a ticket, a token, a path, a row or the text of an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ...errors import RemoteError
from ...protocol.frames import MessageRun
from ...protocol.messages import Message
from ...protocol.trace_context import TraceContext
from ...protocol.uri import DataUri
from ..uris import UNKNOWN_NAME
from .decoders import Decoder

TRACING_API = "opentelemetry.trace"
_CONTEXT_API = "opentelemetry.context"


def current_context() -> TraceContext | None:
    """Return the context of the caller's span, or None if there is none."""
    api: Any = sys.modules.get(TRACING_API)
    return None if api is None else _export(api.get_current_span())


def _export(span: Any) -> TraceContext | None:
    """Return the context of a span, for requests; None if it has none."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return TraceContext(
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        int(context.trace_flags) & 0xFF,
        tuple(context.trace_state.items()),
    )


class SpanScope:
    """A span, and what begins below it."""

    def __init__(self, name: str, attributes: dict[str, Any], *, is_request: bool = False) -> None:
        self._api: Any = sys.modules[TRACING_API]
        self._tracer = self._api.get_tracer("splitarrow")
        kind = self._api.SpanKind.CLIENT if is_request else self._api.SpanKind.INTERNAL
        self.started = time.time_ns()
        self._span = self._tracer.start_span(
            name, kind=kind, attributes=attributes, start_time=self.started
        )
        self.context = self._api.set_span_in_context(self._span)
        """The context of what belongs to the span, for `activate`."""
        self.is_recording: bool = self._span.is_recording()
        """Whether somebody records the span."""
        self._ended = False

    def export(self) -> TraceContext | None:
        """Return the context for requests that belong to the span."""
        return _export(self._span)

    def add(
        self, name: str, start: int, end: int, attributes: dict[str, Any] | None = None
    ) -> None:
        """Add a span below this one, with its times in nanoseconds since 1970."""
        if self.is_recording:
            span = self._tracer.start_span(
                name, self.context, attributes=attributes, start_time=start
            )
            span.end(max(start, end))

    def end(
        self,
        error: BaseException | None = None,
        attributes: dict[str, Any] | None = None,
        *,
        is_complete: bool = True,
    ) -> None:
        """End the span with its outcome, and the code or class of an error; do it once."""
        if self._ended:
            return
        self._ended = True
        span = self._span
        span.set_attributes(attributes or {})
        if error is None:
            span.set_attribute("splitarrow.outcome", "complete" if is_complete else "closed")
        else:
            code = error.code if isinstance(error, RemoteError) else type(error).__name__
            span.set_attribute("splitarrow.outcome", "failed")
            span.set_attribute("error.type", code)
            span.set_status(self._api.Status(self._api.StatusCode.ERROR))
        span.end()


@contextmanager
def activate(context: Any) -> Generator[None]:
    """Let what the block requests belong to a `SpanScope.context`; None changes nothing."""
    if context is None:
        yield
        return
    api: Any = sys.modules[_CONTEXT_API]
    token = api.attach(context)
    try:
        yield
    finally:
        api.detach(token)


@contextmanager
def trace_read(name: str) -> Generator[SpanScope | None]:
    """Begin the span of a read, which ends with the block only if the block fails.

    Yield the span; None if the application does not trace.
    """
    if TRACING_API not in sys.modules:
        yield None
        return
    with _end_if_failed(SpanScope("splitarrow.read", {"splitarrow.dataset": name})) as scope:
        yield scope


@contextmanager
def trace_plan(name: str) -> Generator[None]:
    """Record the requests that the block makes to plan a read."""
    if TRACING_API not in sys.modules:
        yield
        return
    with _end_if_failed(SpanScope("splitarrow.plan", {"splitarrow.dataset": name})) as scope:
        yield
    scope.end()


@contextmanager
def _end_if_failed(scope: SpanScope) -> Generator[SpanScope]:
    try:
        with activate(scope.context):
            yield scope
    except BaseException as error:
        scope.end(error)
        raise


class StreamTrace:
    """The spans of one stream: its transfer, and below it opening, the first batch and decoding."""

    def __init__(self, name: str, transport: str, uri: DataUri | None = None) -> None:
        attributes: dict[str, Any] = {"splitarrow.transport": transport}
        if name != UNKNOWN_NAME:
            attributes["splitarrow.dataset"] = name
        if uri is not None and uri.host:
            attributes["server.address"] = uri.host
            if uri.port is not None:
                attributes["server.port"] = uri.port
        self.scope = SpanScope("splitarrow.transfer", attributes, is_request=True)
        self.request_context = self.scope.export()
        """The context to send with the request."""
        self._opened = 0
        self._first_batch = 0
        self._decode_started = 0
        self._decode_ended = 0
        self._decode_nanoseconds = 0

    def record_open(self) -> None:
        """Record that the schema has arrived."""
        self._opened = time.time_ns()
        self.scope.add("splitarrow.open", self.scope.started, self._opened)

    def measure_decoder(self, decoder: Decoder) -> Decoder:
        """Return a decoder that measures itself."""
        return TimedDecoder(decoder, self) if self.scope.is_recording else decoder

    def measure(self, decode: Callable[[Message], Any]) -> Callable[[Message], Any]:
        """Return a function that decodes a message, and records when and for how long."""

        def decode_measured(message: Message) -> Any:
            started = time.time_ns()
            item = decode(message)
            self.add_decoding(started, is_first=item is not None)
            return item

        return decode_measured if self.scope.is_recording else decode

    def add_decoding(self, started: int, *, is_first: bool) -> None:
        """Add the time since `started`, and the first batch if `is_first` and none came before."""
        now = time.time_ns()
        self._decode_started = self._decode_started or started
        self._decode_ended = now
        self._decode_nanoseconds += now - started
        if is_first and not self._first_batch:
            self._first_batch = now
            self.scope.add("splitarrow.first_batch", self._opened, now)

    def end(
        self, rows: int, nbytes: int, error: BaseException | None, *, is_complete: bool
    ) -> None:
        """End the spans. The first call counts."""
        if self._decode_started:
            seconds = self._decode_nanoseconds / 1e9
            started, self._decode_started = self._decode_started, 0
            self.scope.add(
                "splitarrow.decode",
                started,
                self._decode_ended,
                {"splitarrow.decode.seconds": seconds},
            )
        figures = {"splitarrow.rows": rows, "splitarrow.bytes": nbytes}
        self.scope.end(error, figures, is_complete=is_complete)


class TimedDecoder:
    """A decoder that measures itself."""

    def __init__(self, decoder: Decoder, trace: StreamTrace) -> None:
        self._decoder = decoder
        self._trace = trace
        self._decode = trace.measure(decoder.decode)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return self._decoder.schema

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message; see `Decoder.decode`."""
        return self._decode(message)

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Decode the messages of a run; see `Decoder.decode_run`."""
        started = time.time_ns()
        is_decoded = self._decoder.decode_run(run, batches)
        self._trace.add_decoding(started, is_first=bool(batches))
        return is_decoded
