"""One data stream without waiting: the part that the blocking and the async stream share.

A reader requests the stream, takes frames, and returns batches.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from ...errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    StallError,
    TransportError,
    UsageError,
)
from ...formats.arrow.custom_metadata import find_footer_metadata
from ...formats.text import describe_rows
from ...formats.vortex.message import unmark_schema
from ...protocol.devices import StagingAllocator
from ...protocol.frames import IncomingFrame, MessageRun, TaggedFrame
from ...protocol.messages import Message, expand_messages
from ...protocol.payloads import KEEP_ALIVES_PER_TIMEOUT, pack_interval
from ...protocol.reassembler import Reassembler
from ...protocol.states import READER, Machine, ReaderEvent, ReaderState
from ...protocol.uri import DataUri, Streams
from ...transport.base import Channel
from ..arguments import StreamOptions
from ..uris import read_dataset_name
from .batch_stream import CustomMetadata
from .decoders import (
    ARROW,
    FORMATS,
    SCHEMA_MARK,
    VORTEX,
    Decoder,
    KeepingDecoder,
    TensorDecoder,
    find_item_decoder,
    open_content_decoder,
)
from .remote_bodies import LeaseReturns, RemoteBodies, track_leases
from .tracing import TRACING_API, StreamTrace


class ProgressWatch:
    """Finds out that the frames of the last seconds were duplicates, unless the timeout is None.

    Keep-alives show that the server works. The driver fails if no frame arrives.
    """

    def __init__(self, reassembler: Reassembler, timeout: float | None) -> None:
        self._reassembler = reassembler
        self._timeout = timeout
        self._progress: object = None
        self._repeating_since: float | None = None

    def is_stalled(self) -> bool:
        """Return whether the time limit has passed. Call this after each of the frames."""
        progress = (self._reassembler.position, self._reassembler.keep_alives.total)
        if progress != self._progress or self._timeout is None:
            self._progress, self._repeating_since = progress, None
            return False
        now = time.monotonic()
        if self._repeating_since is None:
            self._repeating_since = now
        return now - self._repeating_since >= self._timeout


class Reader:
    """Holds the connections of one data stream, and turns their frames into record batches.

    A driver connects the channels, passes each to `attach`, sends the request that `attach`
    returns, and calls `start`. It takes batches with `take`. When there are none, it receives from
    the channel that `next_channel` names and passes the frames to `feed`.

    A message is decoded when its batch is taken, because a small body may decode to a large one.
    Only runs, whose batches are the received memory itself, are decoded as a whole.
    """

    def __init__(self, uris: list[DataUri], options: StreamOptions) -> None:
        self.uris = uris
        self.options = options
        self.name = read_dataset_name(uris[0].ticket or b"")
        """The dataset, for errors."""
        self.channels: dict[Streams, Channel] = {}
        """The connections, by the streams that they carry."""
        self.batches: deque[pa.RecordBatch] = deque()
        """Decoded batches that were not taken yet: those of one run at most."""
        self.rows_received = 0
        """The number of rows decoded so far."""
        self.is_exhausted = False
        """Whether all batches were taken, up to the proven end."""
        self.format = ARROW
        """The format of the messages, once the schema has arrived: ``arrow`` or ``vortex``."""
        self.footer_metadata: CustomMetadata | None = None
        """The custom metadata of the footer, once the schema has arrived; None if it has none."""
        self._messages: deque[Message | MessageRun] = deque()
        """Complete messages that are not decoded yet."""
        self._machine = Machine(READER, ReaderState.CONNECTING, self.name)
        tags = frozenset([uri.keep_alive for uri in uris if uri.keep_alive is not None])
        self._reassembler = Reassembler(
            FORMATS, options.limits, stream=self.name, keep_alive_tags=tags
        )
        self._progress = ProgressWatch(self._reassembler, options.stall_timeout)
        self._trace: StreamTrace | None = None
        self._decoder: Decoder | None = None
        self._decode_item: Callable[[Message], Any] | None = None
        """Returns the tensor or the Vortex array of a message; None if the stream has none."""
        self._schema: pa.Schema | None = None
        self.schema_metadata = b""
        """The FlatBuffer of the schema message, once it has arrived."""
        self._error: SplitArrowError | None = None
        self._is_cancelled = False
        self._lanes: dict[str, None] = {}
        self.accepts_offsets = False
        """Whether the server may send places in shared memory instead of bodies."""
        self._lease_returns: LeaseReturns | None = None
        self._remote_bodies: RemoteBodies | None = None

    @property
    def state(self) -> ReaderState:
        """The state of the stream."""
        return self._machine.state

    @property
    def has_schema(self) -> bool:
        """Whether the schema has arrived."""
        return self._schema is not None

    @property
    def schema(self) -> pa.Schema:
        """The schema. Raises `ClosedError` before it has arrived."""
        if self._schema is None:
            raise ClosedError("the stream is not open; enter it with 'async with'")
        return self._schema

    @property
    def bytes_received(self) -> int:
        """The size of everything received, and of all leased buffers, in bytes."""
        leased = 0 if self._remote_bodies is None else self._remote_bodies.leased_bytes
        return leased + sum(channel.bytes_received for channel in self.channels.values())

    @property
    def transport(self) -> str:
        """The scheme, and the lanes if the transport has several: ``ucx (cma/memory)``."""
        scheme = self.uris[0].scheme
        return f"{scheme} ({', '.join(self._lanes)})" if self._lanes else scheme

    def facts(self) -> list[str]:
        """Return the state, the transport and the number of rows, for people."""
        state = "read to its end" if self.is_exhausted else self.state.value
        return [state, self.transport, describe_rows(self.rows_received, ended=self.is_exhausted)]

    def begin(self) -> None:
        """Record that the stream is now opened. Call this before connecting."""
        if TRACING_API in sys.modules:
            self._trace = StreamTrace(self.name, self.uris[0].scheme, self.uris[0])

    def attach(self, channel: Channel, uri: DataUri) -> list[TaggedFrame]:
        """Add a connected channel, which the reader closes; return the frames to send on it.

        The data request is the last one. Only tags that the URI names are used.
        """
        self.channels[uri.stream] = channel
        self._lanes |= dict.fromkeys(channel.lanes)
        required = self.options.require_transport
        if required is not None and not self._uses(required):
            raise ConnectError(
                f"{uri.address} is connected over {self.transport}, and {required} is required; "
                "'splitarrow doctor' lists the transports of this host"
            )
        capabilities = channel.capabilities
        if uri.stream.carries_bodies and capabilities.offset_bodies:
            self.accepts_offsets = True
            if not capabilities.remote_reads:
                self._lease_returns = track_leases(channel, uri.free_data)
        messages: list[tuple[int, bytes]] = []
        context = None if self._trace is None else self._trace.request_context
        if uri.trace is not None and context is not None:
            messages.append((uri.trace, context.pack()))
        timeout = self.options.stall_timeout
        if uri.keep_alive is not None and timeout is not None:
            messages.append((uri.keep_alive, pack_interval(timeout / KEEP_ALIVES_PER_TIMEOUT)))
        messages.append((uri.require_want_data(), uri.ticket or b""))
        return [TaggedFrame(tag, len(payload), (payload,)) for tag, payload in messages]

    def _uses(self, transport: str) -> bool:
        """Return whether a scheme or a lane carries the data; a lane may lack its device."""
        lanes = {lane.partition("/")[0] for lane in self._lanes}
        return transport in {self.uris[0].scheme, *self._lanes, *lanes}

    def start(self) -> None:
        """Record that all requests were sent."""
        self._machine.on(ReaderEvent.REQUESTED)

    def next_channel(self) -> tuple[Streams, Channel]:
        """Return the connection that carries the next message."""
        if len(self.channels) == 1:
            return next(iter(self.channels.items()))
        stream = Streams.BODY if self._reassembler.needs_body else Streams.METADATA
        return stream, self.channels[stream]

    @property
    def _body_channel(self) -> Channel:
        """The connection that carries the bodies."""
        return self.channels.get(Streams.BODY) or self.channels[Streams.BOTH]

    def feed(self, stream: Streams, frames: list[IncomingFrame]) -> None:
        """Process frames from one connection.

        After an error, `take` still returns the batches before it, and then `expects_more` raises
        the error.
        """
        messages: list[Message | MessageRun] = []
        try:
            self._reassembler.feed(frames, messages, stream)
        except ProtocolError as error:
            self._add(messages)
            self.fail(error)
            return
        self._add(messages)
        if self._error is None and self._reassembler.failure is not None:
            self.fail(self._reassembler.failure)
        elif self._error is None and self._reassembler.finished:
            self._machine.on(ReaderEvent.PROVEN_END)
        elif self._progress.is_stalled():
            peer, timeout = self.channels[stream].peer, self.options.stall_timeout
            self.fail(StallError(f"{peer} has sent only duplicates for {timeout:g} s"))

    def _add(self, messages: list[Message | MessageRun]) -> None:
        """Keep complete messages until they are decoded; decode the schema at once."""
        self._messages.extend(messages)
        if self._schema is None and messages:
            try:
                self._open_decoder(self._messages.popleft())
            except SplitArrowError as error:
                self._fail_decoding(error)

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch that has arrived, or None if more frames are needed."""
        if self._decoder is None and self._decode_item is not None:
            raise UsageError(
                f"the dataset {self.name!r} holds tensors, not record batches; use read_tensor() "
                "or tensors()"
            )
        batches, messages = self.batches, self._messages
        while not batches:
            if not messages:
                return None
            try:
                self._decode(messages.popleft())
            except SplitArrowError as error:
                self._fail_decoding(error)
        return batches.popleft()

    def take_item(self) -> Any:
        """Return the next tensor or Vortex array that has arrived, or None if there is none."""
        while self._messages and self._decode_item is not None:
            message = self._messages.popleft()
            if isinstance(message, MessageRun):
                self._messages.extendleft(reversed([*expand_messages((message,))]))
                continue
            try:
                item = self._decode_item(message)
                if item is not None:
                    self.rows_received += len(item) if self.format == VORTEX else 0
                    return item
            except SplitArrowError as error:
                self._fail_decoding(error)
        return None

    def _decode(self, message: Message | MessageRun) -> None:
        """Decode a message, or a run whose batches share the received memory."""
        decoder = self._decoder
        assert decoder is not None
        if not isinstance(message, MessageRun):
            batch = decoder.decode(message)
            if batch is not None:
                self.batches.append(batch)
                self.rows_received += batch.num_rows
            return
        decoded: list[pa.RecordBatch] = []
        try:
            if not decoder.decode_run(message, decoded):
                self._messages.extendleft(reversed([*expand_messages((message,))]))
        finally:
            self.batches.extend(decoded)
            if decoded:
                self.rows_received += decoded[0].num_rows * len(
                    decoded
                )  # All have the same metadata.

    def keep_messages(self) -> None:
        """Let `find_messages` return the messages of each batch that is decoded from now on."""
        decoder = self._decoder
        if decoder is not None and self.format == ARROW and not isinstance(decoder, KeepingDecoder):
            self._decoder = KeepingDecoder(decoder, self.schema_metadata, self._remote_bodies)

    def _fail_decoding(self, error: SplitArrowError) -> None:
        """Record an error of a message. It precedes the error of any later frame."""
        self._messages.clear()
        self._error = None
        self.fail(error)

    def _open_decoder(self, message: Message | MessageRun) -> None:
        """Create the decoder from the first message, the schema."""
        assert isinstance(message, Message)  # A run repeats a message that came before it.
        validate, limits = self.options.validate, self.options.decoder_limits
        if validate is None:
            is_local = all(channel.is_local for channel in self.channels.values())
            validate = "cheap" if is_local else "full"
        if self.accepts_offsets:
            self._remote_bodies = RemoteBodies(self._lease_returns, limits, self.options.allocator)
        decoder = open_content_decoder(message, limits, validate, self.name, self._remote_bodies)
        self.format, self._decode_item = find_item_decoder(decoder)
        if not isinstance(decoder, TensorDecoder):
            allocator = self.options.allocator
            if isinstance(allocator, StagingAllocator):
                from .device_decoder import decode_on_device

                decoder = decode_on_device(
                    *(decoder, allocator, self._body_channel),
                    *(limits, validate, self.name, self._remote_bodies),
                )
            self._decoder = decoder
        trace = self._trace
        if trace is not None:
            trace.record_open()
            if self._decoder is not None:
                self._decoder = trace.measure_decoder(self._decoder)
            if self._decode_item is not None:
                self._decode_item = trace.measure(self._decode_item)
        self._schema = decoder.schema
        self.schema_metadata = message.metadata
        if SCHEMA_MARK in message.metadata:
            self.schema_metadata = unmark_schema(message.metadata)
            self.footer_metadata = find_footer_metadata(message.metadata)
        self._machine.on(ReaderEvent.SCHEMA)

    def fail(self, error: SplitArrowError) -> None:
        """Record the error that ended the stream, and close its connections.

        The first error counts. It gets the name of the stream and what was still missing.
        """
        if self._error is None:
            if isinstance(error, ConnectionLostError):
                error.message = f"{error.message}; missing: {self._reassembler.missing()}"
            if error.stream is None:
                error.stream = self.name
            if not isinstance(error, RemoteError):
                error.state = self.state.value
            self._error = error
            if self.state is not ReaderState.FAILED:
                self._machine.on(ReaderEvent.ERROR)
            self._end_trace(error)
        for stream in self.channels:
            self._release(stream, abort=True)

    def fail_receiving(self, error: SplitArrowError) -> None:
        """Record an error of a connection, which may result from `cancel`."""
        if self._is_cancelled and isinstance(error, TransportError):
            error = ClosedError("the stream was cancelled")
        self.fail(error)

    def interrupt(self) -> None:
        """Let a driver that waits for the server fail."""
        self._is_cancelled = True
        for channel in self.channels.values():
            channel.interrupt()

    def cancel(self) -> None:
        """Interrupt the driver, unless the stream was read to its end: it may hold leases."""
        self._is_cancelled = True
        if not self.is_exhausted:
            self.interrupt()

    def allows_second_attempt(self) -> bool:
        """Return whether new connections may succeed where those of this reader were lost.

        They may if a connection had carried a stream before, so that its server may have left since
        then, or if the reader had requested memory of a device. It does not request that again. The
        stream has to be read from its beginning, by another reader.
        """
        allocator = self.options.allocator
        if isinstance(allocator, StagingAllocator) and allocator.device.stop_sharing():
            return True
        return any(channel.capabilities.is_reused for channel in self.channels.values())

    def expects_more(self) -> bool:
        """Return whether more batches may arrive. Call this when `take` returns None.

        Raise the error of a stream that failed, and `ClosedError` if it was closed.
        """
        if self._error is not None:
            raise self._error
        state = self._machine.state
        if state is ReaderState.CLOSED and not self.is_exhausted:
            raise ClosedError("the stream is closed", stream=self.name)
        return state not in (ReaderState.ENDED, ReaderState.CLOSED)

    def finish(self) -> None:
        """Close the connections after the last batch was taken. Idempotent."""
        self.is_exhausted = True
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Close the connections and drop the waiting messages and batches. Idempotent.

        A connection over which batches are leased stays open until they are gone. The error is why
        the stream could not be opened.
        """
        if self.state is ReaderState.CLOSED:
            return
        self._end_trace(error)
        ended = self.state is ReaderState.ENDED
        self._machine.on(ReaderEvent.CLOSE)
        self._messages.clear()
        self.batches.clear()
        self._decoder = self._decode_item = None  # It may hold dictionaries, and leases on them.
        for stream in self.channels:
            leases = self._lease_returns
            if ended and stream.carries_bodies and leases is not None and leases.linger():
                continue
            self._release(stream, abort=not ended)

    def _end_trace(self, error: BaseException | None) -> None:
        if self._trace is not None:
            self._trace.end(
                self.rows_received, self.bytes_received, error, is_complete=self.is_exhausted
            )

    def _release(self, stream: Streams, *, abort: bool) -> None:
        """Close or abort one connection."""
        channel = self.channels[stream]
        if stream.carries_bodies and self._lease_returns is not None:
            self._lease_returns.close(abort=abort)
        elif abort:
            channel.abort()
        else:
            channel.close()
