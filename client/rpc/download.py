"""DoGet: a data stream over the channel of the control plane."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pyarrow as pa

from ...errors import (
    ClosedError,
    ConnectError,
    DeniedError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    StallError,
    UnavailableError,
)
from ...formats.arrow.custom_metadata import find_footer_metadata
from ...formats.arrow.message import encapsulate
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.flight_data import KEEP_ALIVE_METADATA, PLAN_HEADER, parse_flight_data
from ...proto import Flight_pb2 as flight
from ...protocol.frames import ReceivedBody
from ...protocol.messages import Message
from ...protocol.payloads import KEEP_ALIVES_PER_TIMEOUT
from ...protocol.reassembler import DuplicateCounter
from ...protocol.request import Request
from ...protocol.tags import BodyType
from ..arguments import StreamOptions
from ..stream.batch_stream import refuse_arrays, refuse_tensors
from ..stream.decoders import ARROW, Decoder, KeepingDecoder, open_decoder
from ..stream.tracing import TRACING_API, StreamTrace, activate
from .channel import FlightChannel
from .errors import no_response_error
from .info import DatasetInfo, encode_command, parse_info

TRANSPORT = "flight"
"""The name of this transport."""


def _start_call(
    channel: FlightChannel, ticket: bytes, options: StreamOptions, plan: str | None = None
) -> Any:
    timeout = options.stall_timeout
    return channel.do_get(
        flight.Ticket(ticket=ticket).SerializeToString(),
        None if timeout is None else timeout / KEEP_ALIVES_PER_TIMEOUT,
        plan,
    )


def plan_read(
    channel: FlightChannel, request: Request, transport: str, options: StreamOptions
) -> tuple[DatasetInfo, Any] | None:
    """Plan a read; return its description, and the call if the server sends the data with it.

    Return None if the server does not plan by DoGet, or the connection was lost.
    """
    name, limit, started = request.dataset, channel.call_limit(), time.monotonic()
    call = _start_call(channel, encode_command(request), options, transport)
    timer = _StallTimer(limit, call.cancel)
    timer.start()
    try:
        plan = parse_flight_data(next(call, b"")).app_metadata
    except grpc.RpcError as error:
        seconds = time.monotonic() - started
        if seconds >= limit:
            spent = f" (planning, {seconds:.1f} s)"
            raise no_response_error(channel.address, spent, name) from None
        failure = channel.convert_error(error, name, method="GetFlightInfo", seconds=seconds)
        if isinstance(failure, DeniedError) and failure.code == "UNAUTHENTICATED":
            return None  # to request a description renews the token, or raises the error
        trailers: Any = call.trailing_metadata() or ()
        if isinstance(failure, ConnectError) or any(key == PLAN_HEADER for key, _ in trailers):
            raise failure from None
        if isinstance(failure, RemoteError) and not isinstance(failure, UnavailableError):
            channel.plans_by_do_get = False
        return None
    finally:
        timer.stop()
    if not plan or plan[0] > 1:
        channel.plans_by_do_get = False
        call.cancel()
        return None
    return parse_info(bytes(plan[1:]), name), call if plan[0] else None


class FlightStream:
    """A data stream by DoGet: an iterator of record batches. Closing it leaves the channel open.

    `call`: the call, if it has been started already.
    """

    transport = TRANSPORT

    def __init__(
        self,
        channel: FlightChannel,
        ticket: bytes,
        name: str,
        options: StreamOptions,
        call: Any = None,
    ) -> None:
        self._channel = channel
        self._name = name
        self._options = options
        self.bytes_received = 0
        """The size of all messages received so far, in bytes."""
        self._next_sequence = 0
        self._ended = False
        self._closed = False
        self._stalled = False
        self._rows = 0
        traced = TRACING_API in sys.modules
        self._trace = StreamTrace(name, TRANSPORT, channel.uri) if traced else None
        self._keep_alives = DuplicateCounter(options.limits.duplicates, "keep-alives")
        with activate(None if self._trace is None else self._trace.scope.context):
            self._call: Any = call or _start_call(channel, ticket, options)
        self._stall_timer = _StallTimer(options.stall_timeout, self._stall)
        try:
            first = self._receive_message()
            if first is None:
                raise ProtocolError("the stream ended before its schema", stream=name)
            validate = options.validate or "full"
            self._decoder: Decoder = open_decoder(first, options.decoder_limits, validate, name)
            if self._trace is not None:
                self._trace.record_open()
                self._decoder = self._trace.measure_decoder(self._decoder)
            self.schema_metadata = first.metadata
            """The FlatBuffer of the schema message, as it arrived."""
            self.footer_metadata = find_footer_metadata(first.metadata)
            """The custom metadata of the file's footer; None if there is none."""
        except BaseException as error:
            self._end_trace(error)
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._decoder.schema

    @property
    def format(self) -> str:
        """The format of the record batches: DoGet has Arrow."""
        return ARROW

    def keep_messages(self) -> None:
        """Keep the messages of the batches that are read from now on; see `Stream`."""
        self._decoder = KeepingDecoder(self._decoder, self.schema_metadata)

    def _stall(self) -> None:
        self._stalled = True
        self._call.cancel()

    def _receive_message(self) -> Message | None:
        """Wait for the next message with metadata; return None at the end of the stream."""
        self._stall_timer.start()
        try:
            for data in self._call:
                self.bytes_received += len(data)
                message = self._parse_message(data)
                if message is not None:
                    return message
        except grpc.RpcError as error:
            raise self._convert_error(error) from None
        finally:
            self._stall_timer.reset()
        self._ended = True
        return None

    def _parse_message(self, data: bytes) -> Message | None:
        """Return the message of a FlightData, or None if it holds application metadata only."""
        _, header, app_metadata, body = parse_flight_data(data)
        if not header:
            if bytes(app_metadata or b"") == KEEP_ALIVE_METADATA:
                self._keep_alives.count(self._next_sequence)
                self._stall_timer.start()
            return None
        metadata = bytes(header)
        limit = self._options.limits.metadata_bytes
        if len(metadata) > limit:
            raise ProtocolError(
                f"metadata of {len(metadata)} bytes exceeds the limit of {limit}",
                stream=self._name,
            )
        headroom = len(encapsulate(metadata))
        sequence, self._next_sequence = self._next_sequence, self._next_sequence + 1
        received = ReceivedBody.copy(body, headroom, self._options.allocator)
        return Message(sequence, metadata, received, BodyType.PACKED)

    def _convert_error(self, error: grpc.RpcError) -> SplitArrowError:
        if self._stalled:
            timeout = self._options.stall_timeout
            return StallError(f"nothing arrived for {timeout:g} s", stream=self._name)
        return self._channel.convert_error(error, self._name, closed=self._closed)

    def __iter__(self) -> FlightStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `Stream` does."""
        if self._ended:
            raise StopIteration
        if self._closed:
            raise ClosedError("the stream is closed", stream=self._name)
        try:
            while (message := self._receive_message()) is not None:
                batch = self._decoder.decode(message)
                if batch is not None:
                    self._rows += batch.num_rows
                    return batch
        except SplitArrowError as error:
            self._call.cancel()
            self._end_trace(error)
            raise
        self._end_trace(None)
        raise StopIteration

    def next_tensor(self) -> AnyTensor | None:
        """Refuse: DoGet carries no tensors."""
        raise refuse_tensors()

    def next_array(self) -> Any:
        """Refuse: DoGet carries no Vortex arrays."""
        raise refuse_arrays()

    def cancel(self) -> None:
        """Interrupt a read that waits in another thread: it raises `ClosedError`."""
        self._closed = True
        self._call.cancel()

    def _end_trace(self, error: BaseException | None) -> None:
        if self._trace is not None:
            received = self.bytes_received
            self._trace.end(self._rows, received, error, is_complete=self._ended)

    def close(self) -> None:
        """Cancel the call. Batches that were returned stay valid. Idempotent."""
        self._closed = True
        self._stall_timer.stop()
        self._end_trace(None)
        if not self._ended:
            self._call.cancel()


class _StallTimer:
    """Calls `on_stall`, on its own thread, if a wait takes longer than the timeout in seconds.

    All waits of a stream share the thread. None disables the timer.
    """

    def __init__(self, timeout: float | None, on_stall: Callable[[], None]) -> None:
        self._on_stall = on_stall
        self._wait_started: float | None = None
        self._stopped = threading.Event()
        if timeout is not None:
            threading.Thread(
                target=self._run, args=(timeout,), name="splitarrow-stall", daemon=True
            ).start()

    def _run(self, timeout: float) -> None:
        remaining = timeout
        while not self._stopped.wait(max(remaining, 0.001)):
            started = self._wait_started
            remaining = timeout if started is None else started + timeout - time.monotonic()
            if remaining <= 0:
                self._on_stall()
                return

    def start(self) -> None:
        """Start to measure a wait."""
        self._wait_started = time.monotonic()

    def reset(self) -> None:
        """End the wait."""
        self._wait_started = None

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
