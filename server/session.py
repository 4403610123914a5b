"""One reader's connection, on the server's side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from ..errors import (
    ConnectionLostError,
    DatasetError,
    ExhaustedError,
    LimitError,
    ProtocolError,
    RemoteError,
    SplitArrowError,
    TransportError,
    UnavailableError,
)
from ..protocol.bodies import parse_offsets
from ..protocol.frames import Incoming, Outgoing, TaggedReceived
from ..protocol.leases import LeaseLedger
from ..protocol.limits import Limits
from ..protocol.request import Request
from ..protocol.splitter import SourceMessage, Splitter
from ..protocol.states import SERVER, Machine, ServerEvent, ServerState
from ..protocol.tags import BodyType
from ..protocol.uri import DataUri, StreamKind
from ..transport import aio
from ..transport.base import Channel
from .catalog.base import Dataset, Encoding, Source
from .logs import get_logger
from .metrics import Counters
from .shared.lending import ByAddress, ByDescriptor, Lender
from .shared.sharing import Sharing

_BUSY = (ServerState.STREAMING, ServerState.LEASED)
_YIELD_BYTES = 4 << 20
"""After how many bytes a stream lets others run, even if its reader takes all at once."""


class Host(Protocol):
    """What a session needs of the daemon."""

    limits: Limits
    encoding: Encoding
    sharing: Sharing
    counters: Counters
    handshake_seconds: float
    idle_seconds: float
    draining: anyio.Event
    threads: anyio.CapacityLimiter

    def admit(self, ticket: bytes, kind: StreamKind) -> Request:
        """Return what a reader may have for a ticket; raise `DeniedError` if nothing."""
        ...

    def lookup(self, name: str) -> Dataset:
        """Return a dataset of the catalog; raise `NotFoundError`."""
        ...

    def leased_by(self, user: int | None) -> int:
        """Return how many bytes a user holds leases on."""
        ...


def failure_code(error: SplitArrowError) -> str:
    """Return the gRPC status name that tells a reader of an error."""
    if isinstance(error, RemoteError):
        return error.code
    if isinstance(error, LimitError):
        return "RESOURCE_EXHAUSTED"
    if isinstance(error, DatasetError):
        return "DATA_LOSS"
    return "INTERNAL"


class Session:
    """Serves the streams of one connection, one after the other.

    Parameters
    ----------
    channel : Channel
        The connection; the session closes it.
    uri : DataUri
        The listener that it came by: its tags, and which streams it carries.
    host : Host
        The daemon.
    admitted : bool
        Whether there is room; if not, every request is told so.
    """

    def __init__(self, channel: Channel, uri: DataUri, host: Host, *, admitted: bool) -> None:
        self._channel = channel
        self._uri = uri
        self._host = host
        self._admitted = admitted
        self._machine = Machine(SERVER, ServerState.PREFACE)
        self.ledger = LeaseLedger(bad_frees=host.limits.bad_frees)
        """What the reader holds of the server's memory."""
        self._lender: Lender | None = None
        if BodyType.OFFSETS in channel.capabilities.body_types:
            sharing = host.sharing
            ways = (
                ByAddress(channel, sharing.mappings)
                if channel.capabilities.fetches
                else ByDescriptor(uri.remote_handle or b"", sharing)
            )
            self._lender = Lender(uri, sharing, self.ledger, self._leased_by_user, ways)
        self._between_messages = True  # only then can a failure still be told
        self._turn = _YIELD_BYTES
        self._idle_since = 0.0
        self._log = get_logger("session").bind(peer=channel.peer)

    async def run(self) -> None:
        """Serve until the reader leaves, breaks the protocol, or the daemon drains."""
        counters = self._host.counters
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._close_when_drained, group.cancel_scope)
                await self._receive(group)
                group.cancel_scope.cancel()
        except* ConnectionLostError as errors:
            for error in _leaves(errors):
                self._log.debug("peer left", reason=str(error), state=self._machine.state.value)
        except* ProtocolError as errors:
            counters.protocol_errors += 1
            for error in _leaves(errors):
                self._log.warning("peer refused", reason=str(error))
        except* TransportError as errors:
            for error in _leaves(errors):
                self._log.info("peer lost", reason=str(error))
        except* DatasetError as errors:
            counters.failures += 1
            for error in _leaves(errors):
                self._log.error("stream cut in the middle of a body", reason=str(error))
        finally:
            counters.bytes_sent += self._channel.bytes_sent
            counters.bad_frees += self.ledger.bad_frees
            self.ledger.free_all()
            self._settle()
            if self._machine.state in (ServerState.IDLE, ServerState.CLOSED):
                self._channel.close()
            else:
                self._channel.abort()

    @property
    def bytes_sent(self) -> int:
        """How many bytes the kernel has taken on this connection."""
        return self._channel.bytes_sent

    @property
    def user(self) -> int | None:
        """The user at the other end, where the transport knows."""
        return getattr(self._channel, "user", None)

    def _leased_by_user(self) -> int:
        return self._host.leased_by(self.user)

    async def _close_when_drained(self, scope: anyio.CancelScope) -> None:
        await self._host.draining.wait()
        if self._machine.state is not ServerState.STREAMING:
            scope.cancel()

    async def _receive(self, group: TaskGroup) -> None:
        """Take in requests and freed leases as they come."""
        timeout = self._host.handshake_seconds
        self._idle_since = anyio.current_time()
        while True:
            frames: list[Incoming] = []
            with anyio.move_on_after(timeout):
                frames = await aio.receive(self._channel)
            if not frames:
                idle = anyio.current_time() - self._idle_since
                if self._machine.state in _BUSY or idle < timeout:
                    continue
                raise ConnectionLostError(f"{self._channel.peer} said nothing for {timeout:g} s")
            timeout = self._host.idle_seconds
            if self._machine.state is ServerState.PREFACE:
                self._machine.on(ServerEvent.PREFACE_RECEIVED)
            for frame in frames:
                if not isinstance(frame, TaggedReceived):
                    raise ProtocolError("a reader sends no untagged messages")
                if frame.tag in (self._uri.want_data, self._uri.remote_tag):
                    self._machine.on(ServerEvent.WANT_DATA)
                    ticket = bytes(frame.body)
                    if len(ticket) > self._host.limits.ticket_bytes:
                        raise LimitError(f"a ticket of {len(ticket)} bytes")
                    lender = self._lender
                    if self._uri.remote_tag is not None and frame.tag != self._uri.remote_tag:
                        lender = None
                    group.start_soon(self._stream, ticket, lender, group)
                elif frame.tag == self._uri.free_data:
                    self._machine.on(ServerEvent.FREE_DATA)
                    limit = self._host.limits.free_offsets
                    self._free(parse_offsets(bytes(frame.body), limit=limit))
                else:
                    raise ProtocolError("a tag that is no request of this address", tag=frame.tag)

    def _free(self, offsets: list[int]) -> None:
        released = self.ledger.free(offsets)
        if self._lender is not None:
            self._lender.freed(released)
        if self._machine.state is ServerState.LEASED and not self.ledger.held:
            self._machine.on(ServerEvent.LAST_FREED)
            self._settle()

    def _settle(self) -> None:
        if self._lender is not None:
            self._lender.settle()

    async def _stream(self, ticket: bytes, lender: Lender | None, group: TaskGroup) -> None:
        counters = self._host.counters
        splitter = Splitter(self._uri.stream)
        counters.streams += 1
        counters.streams_total += 1
        log = self._log
        try:
            try:
                self._admit()  # first: only a stream that there is room for uses its ticket up
                request = self._host.admit(ticket, self._uri.stream)
                log = log.bind(dataset=request.dataset)
                dataset = self._host.lookup(request.dataset)
                source = await self._open(dataset, request, lender)
                log.debug("stream begins", kind=self._uri.stream.value)
                await self._send_source(source, splitter, lender, group)
            except (ConnectionLostError, ProtocolError):
                raise
            except SplitArrowError as error:
                if not self._between_messages:
                    raise
                counters.failures += 1
                log.warning("stream failed", reason=str(error))
                await self._fail(splitter, failure_code(error), str(error))
            except Exception:
                counters.failures += 1
                log.exception("stream failed")
                if not self._between_messages:
                    raise
                await self._fail(splitter, "INTERNAL", "internal error; the server's log tells")
            else:
                log.debug("stream ends", messages=splitter.sent)
                if self.ledger.held:
                    self._machine.on(ServerEvent.ENDED_LEASED)
                else:
                    self._machine.on(ServerEvent.ENDED)
                    self._settle()
        finally:
            counters.streams -= 1
            self._idle_since = anyio.current_time()
        if self._host.draining.is_set() and self._machine.state is ServerState.IDLE:
            group.cancel_scope.cancel()

    async def _open(self, dataset: Dataset, request: Request, lender: Lender | None) -> Source:
        host = self._host
        if lender is None:
            return await to_thread.run_sync(
                dataset.open, request, host.encoding, limiter=host.threads
            )
        copy = getattr(self._channel, "pins_memory", False)  # then a file that changes would show
        open_source = partial(host.sharing.open, dataset, request, copy=copy)
        source = await to_thread.run_sync(open_source, limiter=host.threads)
        lender.begin(source)
        return source

    def _admit(self) -> None:
        if self._host.draining.is_set():
            raise UnavailableError("the server is draining")
        if not self._admitted:
            raise ExhaustedError("the server has as many connections as it may")

    async def _fail(self, splitter: Splitter, code: str, message: str) -> None:
        await self._send(splitter.fail(code, message))
        self._machine.on(ServerEvent.FAILED)

    async def _send(self, frames: list[Outgoing]) -> None:
        self._between_messages = False
        await aio.send(self._channel, frames)
        self._between_messages = True

    async def _send_source(
        self, source: Source, splitter: Splitter, lender: Lender | None, group: TaskGroup
    ) -> None:
        """Send what a source yields, and the end; nothing else may count as the end."""
        if source.blocking:
            sender, receiver = anyio.create_memory_object_stream[_Made](0)
            group.start_soon(_make_ahead, source, sender, self._host.threads)
            with receiver:
                while (made := await receiver.receive()) is not None:
                    if isinstance(made, Exception):
                        raise made
                    await self._send_group(made, splitter, lender)
        else:
            try:
                for messages in source:
                    await self._send_group(messages, splitter, lender)
            finally:
                source.close()
        rest = [] if lender is None else lender.rest()
        await self._send([*rest, *splitter.end()])

    async def _send_group(
        self, messages: list[SourceMessage], splitter: Splitter, lender: Lender | None
    ) -> None:
        if lender is None:
            await self._send(splitter.split(messages))
        else:
            await self._lend_group(messages, splitter, lender)
        counters = self._host.counters
        counters.messages += len(messages)
        for message in messages:
            counters.rows += message.rows
        if self._channel.bytes_sent >= self._turn:
            self._turn = self._channel.bytes_sent + _YIELD_BYTES
            await checkpoint()

    async def _lend_group(
        self, messages: list[SourceMessage], splitter: Splitter, lender: Lender
    ) -> None:
        frames: list[Outgoing] = []
        lent = 0
        try:
            for message in messages:
                if lent >= lender.together or lender.must_wait(message):
                    await self._send(frames)
                    frames, lent = [], 0
                lent += message.body_length
                frames += await lender.frames(message, splitter)
                if lender.lends(message):
                    self._host.counters.bytes_lent += message.body_length
        except SplitArrowError:
            await self._send(frames)  # what came before it is good, and counted as lent
            raise
        await self._send(frames)
        await checkpoint()  # what is lent takes no time to send


_Made = list[SourceMessage] | Exception | None
"""A group of messages, why there are no more, or None at the end."""


async def _make_ahead(
    source: Source, sender: MemoryObjectSendStream[_Made], threads: anyio.CapacityLimiter
) -> None:
    """Make one group on a worker thread while the one before is on its way."""
    try:
        with sender:
            iterator = iter(source)
            made: _Made = []
            while made is not None:
                try:
                    made = await to_thread.run_sync(next, iterator, None, limiter=threads)
                except Exception as error:
                    await sender.send(error)
                    return
                await sender.send(made)
    except anyio.BrokenResourceError:
        pass  # the reader is gone
    finally:
        source.close()


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
