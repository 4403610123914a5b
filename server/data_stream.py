"""Sending one data stream: its groups of messages, and then its end or its failure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ..errors import (
    ConnectionLostError,
    ProtocolError,
    SplitArrowError,
    TransportError,
    exhausted_error,
    remote_error,
    status_name,
)
from ..protocol.frames import TaggedFrame
from ..protocol.request import Request
from ..protocol.splitter import SourceMessage, count_rows
from ..protocol.tags import BodyType
from ..protocol.trace_context import TraceContext
from .auth.tickets import TicketClaims
from .bodies import BodySender, Connection, PackedBodySender, RemoteBodySender
from .catalog.dataset import ServedDataset, Source
from .catalog.selection import resolve_rows
from .catalog.stored_files import view_files
from .catalog.vortex_encoding import VORTEX, VortexDataset
from .context import ServerContext
from .logs import get_logger
from .prefetch import Prefetch
from .refusals import describe_for_reader
from .streams import Outcome, ReadSlot, RunningStream

if TYPE_CHECKING:
    from .spans import StreamSpan

_YIELD_BYTES = 4 << 20
"""The bytes after which a stream lets other tasks run, even if its reader never makes it wait."""
_CANCEL_SECONDS = 0.2
"""The time for a cancelled stream to complete the frames that it is sending."""


class DataStream:
    """One data stream of a connection.

    The task group has to outlive the stream. If the stream has nothing to send for
    `keep_alive_seconds`, it sends a keep-alive.
    """

    def __init__(
        self,
        connection: Connection,
        body_type: BodyType,
        context: ServerContext,
        tasks: TaskGroup,
        keep_alive_seconds: float | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        self._trace = trace
        self._span: StreamSpan | None = None
        self._keep_alive_seconds = keep_alive_seconds
        self._connection = connection
        self._channel = connection.channel
        self._writer = connection.writer
        is_packed = body_type is BodyType.PACKED
        self._sender: BodySender = (PackedBodySender if is_packed else RemoteBodySender)(connection)
        self._context = context
        self._tasks = tasks
        self._running: RunningStream
        self._scope = anyio.CancelScope()
        self._is_cancelled = False
        self.is_ending = False
        """Whether the reader may know the end, so that its next request may arrive."""
        self._bytes_before = connection.channel.bytes_sent
        self._yield_at = self._bytes_before + _YIELD_BYTES
        self._scheme = connection.uri.scheme
        self._log = get_logger("session").bind(peer=connection.channel.peer)

    async def run(self, ticket: bytes, admit: Callable[[bytes], TicketClaims]) -> bool:
        """Send the stream, or the reason why it cannot be sent, and return whether it was sent.

        Raises `SplitArrowError` if the connection has to end: it is lost, or the stream failed
        within a frame, so that no other frame can follow.
        """
        tracer = self._context.tracer
        if tracer is None:
            return await self._run(ticket, admit)
        with tracer.stream(self._trace, self._scheme, self._channel.peer) as self._span:
            return await self._run(ticket, admit)

    async def _run(self, ticket: bytes, admit: Callable[[bytes], TicketClaims]) -> bool:
        metrics = self._context.metrics
        metrics.streams += 1
        metrics.streams_total += 1
        dataset: str | None = None
        try:
            claims = admit(ticket)
            dataset = claims.request.dataset
            self._log = self._log.bind(dataset=dataset)
            await self._send(claims, ticket)
        except (ConnectionLostError, ProtocolError):
            raise
        except SplitArrowError as error:
            if not self._writer.is_complete:
                raise
            metrics.failures += 1
            if not self._sender.message_count:
                self._context.refusals.record(status_name(error), "data", dataset, self._scheme)
            self._log.warning("stream failed", reason=str(error))
            location = None if dataset is None else self._context.catalog.location(dataset)
            reason = describe_for_reader(error, dataset, location)
            await self._fail(status_name(error), reason)
            return False
        except Exception as error:
            metrics.failures += 1
            exhausted = exhausted_error(error)
            if exhausted is None:
                self._log.exception("stream failed")
            else:
                self._log.warning("stream failed", reason=str(error))
            if not self._writer.is_complete:
                raise
            if exhausted is None:
                await self._fail("INTERNAL", "internal error; see the server's log")
            else:
                await self._fail(exhausted.code, str(exhausted))
            return False
        finally:
            metrics.streams -= 1
        self._log.debug("stream ended", messages=self._sender.message_count)
        return True

    async def _fail(self, code: str, reason: str) -> None:
        """Report a failure to the reader, and in the trace its code alone."""
        if self._span is not None:
            self._span.error = code
        await self._sender.fail(code, reason)

    async def _send(self, claims: TicketClaims, ticket: bytes) -> None:
        dataset, request = view_files(
            self._context.catalog.lookup(claims.request.dataset), claims.request
        )
        with self._registered(claims, ticket), self._context.reads.stream(request):
            source = self._sender.open_at_once(dataset, request)
            slot = self._context.read_slots.slot_for(request, claims.principal)
            if source is None:
                async with slot:
                    source = await self._open(dataset, request)
            if self._span is not None:
                self._span.opened()
            self._log.debug("stream started", streams=self._connection.uri.stream.value)
            await self._send_groups(source, slot, claims.principal)
            self.is_ending = True
            await self._sender.finish()

    async def _open(self, dataset: ServedDataset, request: Request) -> Source:
        """Open a dataset on a worker thread."""
        async with self._keeping_alive():
            if request.rows is not None:
                request = await to_thread.run_sync(
                    resolve_rows,
                    dataset,
                    request,
                    self._context.encoding,
                    limiter=self._context.threads,
                )
            if request.format == VORTEX:
                # The compression of a request is that of bodies in Arrow.
                dataset, request = VortexDataset(dataset), replace(request, compression=None)
            return await self._sender.open(dataset, request)

    async def _send_groups(self, source: Source, slot: ReadSlot, principal: str) -> None:
        if source.blocking:
            threads = self._context.threads
            with Prefetch(
                iter(source),
                source.close,
                self._tasks,
                threads,
                slot,
                idle_seconds=self._keep_alive_seconds,
                on_idle=self._send_keep_alive,
                memory=self._context.memory.share(principal),
                measure=_measure,
            ) as groups:
                async for messages in groups:
                    await self._send_group(messages)
                    del messages  # before the next group is there
        else:
            try:
                for messages in source:
                    await self._send_group(messages)
            finally:
                source.close()

    async def _send_keep_alive(self) -> None:
        tag = self._connection.uri.keep_alive
        if tag is not None:
            await self._writer.send([TaggedFrame(tag, 0, ())])

    @asynccontextmanager
    async def _keeping_alive(self) -> AsyncGenerator[None]:
        """Send keep-alives while the body runs, which sends nothing itself."""
        seconds = self._keep_alive_seconds
        if seconds is None:
            yield
            return

        async def send_keep_alives() -> None:
            while True:
                await anyio.sleep(seconds)
                await self._send_keep_alive()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_keep_alives)
                yield
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _send_group(self, messages: Sequence[SourceMessage]) -> None:
        await self._sender.send(messages)
        self._count(messages)
        sent = self._channel.bytes_sent
        if sent >= self._yield_at:
            self._yield_at = sent + _YIELD_BYTES
            if self._is_cancelled:
                self._scope.cancel()
            await checkpoint()

    def _count(self, messages: Sequence[SourceMessage]) -> None:
        """Count the rows of messages that were sent. `_update` reads the other figures."""
        running, rows = self._running, count_rows(messages)
        running.rows += rows
        if running.first_rows_seconds is None and rows:
            running.record_first_rows()

    def _update(self, running: RunningStream) -> None:
        """Bring the figures up to date that the connection and the sender keep."""
        sender = self._sender
        running.messages = sender.message_count
        running.compression = sender.compression
        running.mapped_bytes = sender.bytes_lent
        running.nbytes = self._channel.bytes_sent - self._bytes_before + running.mapped_bytes

    @contextmanager
    def _registered(self, claims: TicketClaims, ticket: bytes) -> Generator[None]:
        """Register the stream while it runs, so that it can be cancelled."""
        streams, dataset = self._context.streams, claims.request.dataset
        self._running = streams.begin(
            dataset=dataset,
            principal=claims.principal,
            peer=self._channel.peer,
            transport=self._connection.uri.scheme,
            cancel=self._cancel,
            signed_ticket=ticket if claims.signed else None,
        )
        running, waits = self._running, self._writer.waits
        running.waits, running.waited_before = waits, waits.seconds
        running.source = self._update
        try:
            with self._scope:
                yield
            if self._scope.cancelled_caught:
                running.outcome = Outcome.CANCELLED
                if not self._writer.is_complete:
                    raise TransportError("the stream was cancelled while the reader took no data")
                raise remote_error("ABORTED", "the stream was cancelled", stream=dataset)
            running.outcome = Outcome.COMPLETE
        except ConnectionLostError:
            raise
        except Exception:
            if running.outcome is not Outcome.CANCELLED:
                running.outcome = Outcome.FAILED
            raise
        finally:
            streams.end(running)
            if self._span is not None:
                self._span.end(running)

    def _cancel(self) -> None:
        """Cancel the stream between two frames, where the reader can be informed.

        If the reader does not take the current frames in time, the connection breaks instead.
        """
        if self._writer.is_complete:
            self._scope.cancel()
        else:
            self._is_cancelled = True
            self._yield_at = 0
            self._scope.deadline = anyio.current_time() + _CANCEL_SECONDS


def _measure(messages: Sequence[SourceMessage]) -> int:
    """Return the size of the bodies of a group in bytes."""
    return sum(message.body_length for message in messages)
