"""One reader's connection, on the server's side."""

from __future__ import annotations

from collections.abc import Iterator
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
from ..protocol.uri import DataUri, StreamKind
from ..transport import aio
from ..transport.base import Channel
from .catalog.base import Dataset, Encoding, Source
from .logs import get_logger
from .metrics import Counters

_YIELD_BYTES = 1 << 20
"""After how many bytes a stream lets others run, even if its reader takes all at once."""


class Host(Protocol):
    """What a session needs of the daemon."""

    limits: Limits
    encoding: Encoding
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
            self.ledger.free_all()
            if self._machine.state in (ServerState.IDLE, ServerState.CLOSED):
                self._channel.close()
            else:
                self._channel.abort()

    @property
    def bytes_sent(self) -> int:
        """How many bytes the kernel has taken on this connection."""
        return self._channel.bytes_sent

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
                if self._machine.state is ServerState.STREAMING or idle < timeout:
                    continue
                raise ConnectionLostError(f"{self._channel.peer} said nothing for {timeout:g} s")
            timeout = self._host.idle_seconds
            if self._machine.state is ServerState.PREFACE:
                self._machine.on(ServerEvent.PREFACE_RECEIVED)
            for frame in frames:
                if not isinstance(frame, TaggedReceived):
                    raise ProtocolError("a reader sends no untagged messages")
                if frame.tag == self._uri.want_data:
                    self._machine.on(ServerEvent.WANT_DATA)
                    ticket = bytes(frame.body)
                    if len(ticket) > self._host.limits.ticket_bytes:
                        raise LimitError(f"a ticket of {len(ticket)} bytes")
                    group.start_soon(self._stream, ticket, group)
                elif frame.tag == self._uri.free_data:
                    self._machine.on(ServerEvent.FREE_DATA)
                    limit = self._host.limits.free_offsets
                    self.ledger.free(parse_offsets(bytes(frame.body), limit=limit))
                    if self._machine.state is ServerState.LEASED and not self.ledger.held:
                        self._machine.on(ServerEvent.LAST_FREED)
                else:
                    raise ProtocolError("a tag that is no request of this address", tag=frame.tag)

    async def _stream(self, ticket: bytes, group: TaskGroup) -> None:
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
                source = await to_thread.run_sync(
                    dataset.open, request, self._host.encoding, limiter=self._host.threads
                )
                log.debug("stream begins", kind=self._uri.stream.value)
                await self._send_source(source, splitter, group)
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
                leased = self.ledger.held > 0
                self._machine.on(ServerEvent.ENDED_LEASED if leased else ServerEvent.ENDED)
        finally:
            counters.streams -= 1
            self._idle_since = anyio.current_time()
        if self._host.draining.is_set() and self._machine.state is ServerState.IDLE:
            group.cancel_scope.cancel()

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

    async def _send_source(self, source: Source, splitter: Splitter, group: TaskGroup) -> None:
        """Send what a source yields, and the end; nothing else may count as the end."""
        if source.blocking:
            sender, receiver = anyio.create_memory_object_stream[_Made](0)
            group.start_soon(_make_ahead, source, sender, self._host.threads)
            with receiver:
                while (made := await receiver.receive()) is not None:
                    if isinstance(made, Exception):
                        raise made
                    await self._send_group(made, splitter)
        else:
            try:
                for messages in source:
                    await self._send_group(messages, splitter)
            finally:
                source.close()
        await self._send(splitter.end())

    async def _send_group(self, messages: list[SourceMessage], splitter: Splitter) -> None:
        await self._send(splitter.split(messages))
        counters = self._host.counters
        counters.messages += len(messages)
        for message in messages:
            counters.rows += message.rows
        if self._channel.bytes_sent >= self._turn:
            self._turn = self._channel.bytes_sent + _YIELD_BYTES
            await checkpoint()


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
