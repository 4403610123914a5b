"""One stream being read, without waiting: what the blocking and the async stream share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidRequestError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    UriError,
    UsageError,
)
from ..protocol.frames import Incoming, Run, Tagged
from ..protocol.limits import DEFAULT_LIMITS, Limits
from ..protocol.messages import Message
from ..protocol.reassembler import Reassembler
from ..protocol.request import SIGNED_PREFIX, Request
from ..protocol.states import READER, Machine, ReaderEvent, ReaderState
from ..protocol.tags import BodyType
from ..protocol.uri import DataUri, StreamKind
from ..transport.base import Channel
from ..transport.certificates import TlsOptions
from ..transport.registry import transport_for
from .borrowing import Borrower
from .decoder import BatchDecoder, Validation, checked_validation
from .returns import Returns, returns_for


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a stream is read. It is valid once built."""

    validate: Validation | None = None
    """How batches are checked; None: ``full``, or ``cheap`` if the peer is on this host."""
    connect_timeout: float = 10.0
    """The longest time that a connection may take to be made, in seconds."""
    stall_timeout: float | None = 30.0
    """The longest silence of the peer while something is awaited, in seconds; None: no end."""
    prefetch_bytes: int = 0
    """How many bytes of decoded batches may be read ahead of the consumer."""
    limits: Limits = DEFAULT_LIMITS
    """Bounds on what is accepted from the server."""
    require_transport: str | None = None
    """What the stream has to come by: a scheme, or a lane of UCX such as ``rc_mlx5`` or ``cma``."""
    tls: TlsOptions | None = None
    """What to trust and to show where TLS is spoken; None: what ``SPLITARROW_TLS_…`` say."""

    def __post_init__(self) -> None:
        if self.validate is not None:
            checked_validation(self.validate)
        if self.connect_timeout <= 0:
            raise UsageError("connect_timeout has to be more than 0 seconds")
        if self.stall_timeout is not None and self.stall_timeout <= 0:
            raise UsageError("stall_timeout has to be more than 0 seconds, or None")
        if self.prefetch_bytes < 0:
            raise UsageError("prefetch_bytes cannot be negative")


def resolve(
    uri: str | DataUri | Sequence[str | DataUri],
    ticket: bytes | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    batch_rows: int | None = None,
    compression: str | None = None,
) -> list[DataUri]:
    """Return the one or two URIs of a stream, checked, each with its ticket.

    Raises
    ------
    UriError
        If a URI is malformed, lacks ``want_data`` or a ticket, or two do not make a pair.
    UsageError
        If a selection is impossible, or the ticket cannot be combined with one.
    """
    given = [uri] if isinstance(uri, (str, DataUri)) else list(uri)
    uris = [DataUri.parse(item) if isinstance(item, str) else item for item in given]
    for item in uris:
        transport_for(item)
    if len(uris) == 2:
        kinds = {item.stream for item in uris}
        if kinds != {StreamKind.METADATA, StreamKind.BODY}:
            raise UriError(
                "a pair of URIs is one with stream=metadata and one with stream=body; got "
                + " and ".join(f"stream={item.stream.value}" for item in uris)
            )
    elif len(uris) != 1:
        raise UriError(f"a stream has one URI, or a pair of them; got {len(uris)}")
    elif uris[0].stream is not StreamKind.BOTH:
        other = "body" if uris[0].stream is StreamKind.METADATA else "metadata"
        raise UriError(
            f"{uris[0].redacted()} carries only the {uris[0].stream.value} stream; "
            f"give the URI with stream={other} as well"
        )
    wanted = {
        "columns": None if columns is None else tuple(columns),
        "limit": limit,
        "batch_rows": batch_rows,
        "compression": compression,
    }
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if isinstance(ticket, str):
        ticket = ticket.encode()
    resolved: list[DataUri] = []
    for item in uris:
        item.require_want_data()
        own = ticket if item.ticket is None else item.ticket
        own = next((u.ticket for u in uris if u.ticket is not None), None) if own is None else own
        if not own:
            raise UriError(f"{item.redacted()} has no ticket: add &ticket=NAME, or pass ticket=…")
        if wanted and own.startswith(SIGNED_PREFIX):
            raise UsageError(
                f"the ticket is signed and says what is read: {', '.join(wanted)} cannot be given "
                "beside it, only to the control plane that makes it"
            )
        if wanted:
            try:
                own = replace(Request.parse(own), **wanted).ticket()
            except InvalidRequestError as error:
                raise UsageError(error.message) from None
        resolved.append(item.replace(ticket=own))
    return resolved


def stream_name(ticket: bytes) -> str:
    """Return what a stream is called in errors: its dataset, and never a signed ticket."""
    if ticket.startswith(SIGNED_PREFIX):
        return "?"
    try:
        return Request.parse(ticket).dataset
    except InvalidRequestError:
        return "?"


class Reader:
    """Holds a stream's connections, puts its messages together and decodes them.

    A driver connects the channels, sends `request` on each, receives from the channel that
    `wanted` names, and hands what came to `take`. `pop` returns the batches.

    Parameters
    ----------
    uris : list of DataUri
        As `resolve` returns them.
    options : ReadOptions
        How to read.
    """

    def __init__(self, uris: list[DataUri], options: ReadOptions) -> None:
        self.uris = uris
        self.options = options
        self.name = stream_name(uris[0].ticket or b"")
        self.channels: dict[StreamKind, Channel] = {}
        self.batches: deque[pa.RecordBatch] = deque()
        """Decoded batches that nobody has taken yet."""
        self.rows = 0
        """How many rows have been decoded."""
        self._machine = Machine(READER, ReaderState.CONNECTING, self.name)
        self._reassembler = Reassembler(options.limits, stream=self.name)
        self._decoder: BatchDecoder | None = None
        self._schema: pa.Schema | None = None
        self._error: SplitArrowError | None = None
        self._lanes: dict[str, None] = {}
        self._borrows = False
        self._returns: Returns | None = None
        self._borrower: Borrower | None = None
        self._counts = options.prefetch_bytes > 0
        self._sizes: deque[int] = deque()
        # Each is counted by one thread alone.
        self._decoded_bytes = 0
        self._popped_bytes = 0

    @property
    def has_batches(self) -> bool:
        """Whether a decoded batch waits to be taken."""
        return bool(self.batches)

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the batches have that wait to be taken, as they came.

        They are counted only where batches are read ahead.
        """
        return self._decoded_bytes - self._popped_bytes

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return self._error is None and self.state is ReaderState.STREAMING

    def pop(self) -> pa.RecordBatch | None:
        """Return, and forget, the next decoded batch; None if none waits."""
        if not self.batches:
            return None
        if self._counts:
            self._popped_bytes += self._sizes.popleft()
        return self.batches.popleft()

    @property
    def state(self) -> ReaderState:
        """Where the stream stands."""
        return self._machine.state

    @property
    def schema(self) -> pa.Schema | None:
        """The schema, once it has arrived."""
        return self._schema

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived over all connections, or were lent there."""
        lent = 0 if self._borrower is None else self._borrower.nbytes
        return lent + sum(channel.bytes_received for channel in self.channels.values())

    def attach(self, channel: Channel, uri: DataUri) -> Tagged:
        """Take over a connected channel; return the request to send on it.

        Raises
        ------
        ConnectError
            If the stream has to come by something else.
        """
        self.channels[uri.stream] = channel
        self._lanes |= dict.fromkeys(getattr(channel, "lanes", ()))
        required = self.options.require_transport
        if required is not None and not self._comes_by(required):
            raise ConnectError(
                f"{uri.address} is reached by {self.transport}, and {required} is required; "
                "splitarrow doctor tells what there is here"
            )
        capabilities = channel.capabilities
        if uri.stream.body and BodyType.OFFSETS in capabilities.body_types:
            self._borrows = True
            if not capabilities.fetches:
                self._returns = returns_for(channel, uri.free_data)
        ticket = uri.ticket or b""
        return Tagged(uri.require_want_data(), len(ticket), (ticket,))

    @property
    def transport(self) -> str:
        """The scheme that the stream comes by, with the lanes where there are such."""
        scheme = self.uris[0].scheme
        return f"{scheme} ({', '.join(self._lanes)})" if self._lanes else scheme

    def _comes_by(self, required: str) -> bool:
        names = {self.uris[0].scheme, *self._lanes}
        return required in names | {lane.partition("/")[0] for lane in self._lanes}

    def requested(self) -> None:
        """Note that all requests are sent."""
        self._machine.on(ReaderEvent.REQUESTED)

    def wanted(self) -> tuple[StreamKind, Channel]:
        """Return the connection that the next message waits for."""
        if len(self.channels) == 1:
            return next(iter(self.channels.items()))
        kind = StreamKind.BODY if self._reassembler.needs_body else StreamKind.METADATA
        return kind, self.channels[kind]

    def take(self, kind: StreamKind, frames: list[Incoming]) -> None:
        """Take in what arrived on the connection of `kind`; batches wait for `pop`.

        Batches that were complete before an error are there; the error comes after them,
        from `check`.
        """
        messages: list[Message | Run] = []
        try:
            self._reassembler.feed(frames, messages, kind)
        except ProtocolError as error:
            self._decode(messages)
            self.fail(error)
            return
        self._decode(messages)
        if self._error is None and self._reassembler.failure is not None:
            self.fail(self._reassembler.failure)
        elif self._error is None and self._reassembler.finished:
            self._machine.on(ReaderEvent.PROVEN_END)

    def _decode(self, messages: list[Message | Run]) -> None:
        try:
            for message in messages:
                if isinstance(message, Run):
                    self._decode_run(message)
                    continue
                if self._decoder is None:
                    self._decoder = self._open(message)
                    continue
                batch = self._decoder.decode(message)
                if batch is not None:
                    if self._counts:
                        nbytes = 0 if message.body is None else message.body.nbytes
                        self._sizes.append(nbytes)
                        self._decoded_bytes += nbytes
                    self.batches.append(batch)
                    self.rows += batch.num_rows
        except SplitArrowError as error:
            self.fail(error)

    def _decode_run(self, run: Run) -> None:
        assert self._decoder is not None  # a run follows a message like it
        decoded: list[pa.RecordBatch] = []
        try:
            self._decoder.decode_run(run, decoded)
        finally:
            if self._counts:
                self._sizes.extend([run.nbytes] * len(decoded))
                self._decoded_bytes += run.nbytes * len(decoded)
            self.batches.extend(decoded)
            if decoded:
                self.rows += decoded[0].num_rows * len(decoded)  # their metadata is the same

    def _open(self, message: Message) -> BatchDecoder:
        validate = self.options.validate
        if validate is None:
            local = all(channel.is_local for channel in self.channels.values())
            validate = "cheap" if local else "full"
        limits = self.options.limits
        if self._borrows:
            self._borrower = Borrower(self._returns, limits)
        decoder = BatchDecoder(message, limits, validate, self.name, self._borrower)
        self._schema = decoder.schema
        self._machine.on(ReaderEvent.SCHEMA)
        return decoder

    def fail(self, error: SplitArrowError) -> None:
        """Note why the stream cannot go on, and let go of its connections."""
        if self._error is None:
            if isinstance(error, ConnectionLostError):
                error.message = f"{error.message}; missing is {self._reassembler.missing()}"
            if error.stream is None:
                error.stream = self.name
            if not isinstance(error, RemoteError):
                error.state = self.state.value
            self._error = error
            self._machine.on(ReaderEvent.ERROR)
        for kind in self.channels:
            self._end(kind, abort=True)

    def _end(self, kind: StreamKind, *, abort: bool) -> None:
        """Let go of a connection."""
        channel = self.channels[kind]
        if kind.body and self._returns is not None:
            self._returns.end(abort=abort)
        elif abort:
            channel.abort()
        else:
            channel.close()

    def check(self) -> bool:
        """Tell whether more may come; raise what the stream failed with.

        Raises
        ------
        SplitArrowError
            If the stream failed, once its good batches are taken.
        ClosedError
            If it was closed.
        """
        if self._error is not None:
            raise self._error
        if self.state is ReaderState.CLOSED:
            raise ClosedError("the stream is closed", stream=self.name)
        return self.state is not ReaderState.ENDED

    def close(self) -> None:
        """Close the connections. What was decoded stays valid; nothing more can be read."""
        if self.state is ReaderState.CLOSED:
            return
        ended = self.state is ReaderState.ENDED
        self._machine.on(ReaderEvent.CLOSE)
        self.batches.clear()
        self._decoder = None  # it may hold dictionaries, and a lease on them
        for kind in self.channels:
            if ended and kind.body and self._returns is not None and self._returns.linger():
                continue  # it is closed when the last batch is gone
            self._end(kind, abort=not ended)
