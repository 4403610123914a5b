"""DoGet: a dataset as a stream of FlightData, for clients that use no data transport."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import anyio

from ...errors import ExhaustedError, LimitError, remote_error
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.flight_data import (
    KEEP_ALIVE_HEADER,
    KEEP_ALIVE_METADATA,
    PLAN_HEADER,
    pack_flight_data,
)
from ...proto import Flight_pb2 as flight
from ...protocol.payloads import MIN_INTERVAL
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan
from ..auth.tickets import TicketClaims
from ..catalog.dataset import Source
from ..catalog.selection import open_rows
from ..catalog.stored_files import view_files
from ..catalog.tensors import refuse_do_get
from ..prefetch import Prefetch
from ..streams import Outcome, ReadSlot, RunningStream
from .call import Call, parse_message, run_in_thread
from .info import build_plan, prefers_do_get

if TYPE_CHECKING:
    from ..spans import StreamSpan


_TOTAL_BYTES = 4 << 20
_CHUNKS_PER_STREAM = 2
_MAX_CHUNK_BYTES = 512 << 10
_MIN_CHUNK_BYTES = 64 << 10
_TOTAL_AHEAD_BYTES = 8 << 20
_GROUP_BYTES = 128 << 10


class ReadAhead:
    """Divides 4 MiB among the streams that DoGet sends now.

    A stream holds two chunks of messages: it sends one while a worker thread prepares the other.
    The stream of a slow reader holds one small chunk.

    Examples
    --------
    >>> read_ahead = ReadAhead()
    >>> with read_ahead.stream():
    ...     read_ahead.chunk_bytes
    524288
    """

    def __init__(self) -> None:
        self._streams = 0

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is complete, in bytes: from 64 to 512 KiB.

        Any thread may read it.
        """
        share = _TOTAL_BYTES // (_CHUNKS_PER_STREAM * max(1, self._streams))
        return min(max(share, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)

    def allows(self, nbytes: int) -> bool:
        """Return whether each stream may prepare a message of this size ahead."""
        return nbytes * self._streams <= _TOTAL_AHEAD_BYTES

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream while the context lasts."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


TRANSPORT = "flight"
"""The name of this transport."""
_CHUNK_SECONDS = 0.01
_MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The largest message that gRPC and protobuf can carry, in bytes."""
_FIELD_BYTES = 64
"""An upper bound for the tags and lengths of a message's fields, in bytes."""


_KEEP_ALIVE = pack_flight_data(app_metadata=KEEP_ALIVE_METADATA)
_PLAN_SECONDS = 0.1
"""How long a plan waits for the first chunk, to arrive with it."""
_SLOW_SECONDS = 0.5
"""The time after which a reader that has not taken a chunk is slow."""


class _Pace:
    """The size of a stream's chunks, which grows while its reader takes them promptly."""

    def __init__(self, read_ahead: ReadAhead) -> None:
        self._read_ahead = read_ahead
        self._grown_bytes = _MIN_CHUNK_BYTES

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is complete, in bytes. Any thread may read it."""
        return min(self._grown_bytes, self._read_ahead.chunk_bytes)

    def is_ahead(self, chunk: _Chunk, seconds: float) -> bool:
        """Record the time to send a chunk; return whether others may be prepared ahead of it."""
        if seconds >= _SLOW_SECONDS:
            self._grown_bytes = _MIN_CHUNK_BYTES
            return False
        self._grown_bytes = min(2 * self._grown_bytes, _MAX_CHUNK_BYTES)
        return self._read_ahead.allows(chunk.largest)


class DoGetHandler:
    """Serves DoGet."""

    def __init__(self) -> None:
        self._read_ahead = ReadAhead()

    async def do_get(self, call: Call, message: bytes) -> None:
        """Send the data of a ticket."""
        ticket: bytes = parse_message(flight.Ticket, message).ticket
        max_bytes = call.server.limits.ticket_bytes
        if len(ticket) > max_bytes:
            raise LimitError(f"the ticket has {len(ticket)} bytes; the limit is {max_bytes}")
        plan = b""
        if PLAN_HEADER in call.headers:
            plan, planned = await self._plan(call, ticket)
            if planned is None:
                await call.write(plan)
                return
            ticket = planned
        claims = await call.redeem_ticket(ticket)
        call.check_draining(claims.request)
        if call.span is None:
            await self._send_dataset(call, claims, ticket, plan)
            return
        with call.span.stream(TRANSPORT) as span:
            await self._send_dataset(call, claims, ticket, plan, span)

    async def _plan(self, call: Call, command: bytes) -> tuple[bytes, bytes | None]:
        """Return the message that describes a read, and the ticket if the data has to follow."""
        transport = call.headers[PLAN_HEADER]
        call.context.set_trailing_metadata(((PLAN_HEADER, "1"),))
        request = Request.parse(command)
        call.check_draining(request)
        descriptor = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command)
        plan = await run_in_thread(build_plan, call, request, descriptor)
        endpoints = plan.info.endpoint
        follows = (
            len(endpoints) == 1
            and not is_tensor_content(call.find_dataset(request.dataset).schema)
            and (transport == TRANSPORT or prefers_do_get(call, plan))
        )
        message = bytes([follows]) + plan.info.SerializeToString()
        ticket = endpoints[0].ticket.ticket if follows else None
        return pack_flight_data(app_metadata=message), ticket

    async def _send_dataset(
        self,
        call: Call,
        claims: TicketClaims,
        ticket: bytes,
        plan: bytes,
        span: StreamSpan | None = None,
    ) -> None:
        request, server = claims.request, call.server
        dataset = call.find_dataset(request.dataset)
        if is_tensor_content(dataset.schema):
            raise refuse_do_get(request)
        dataset, request = view_files(dataset, request)
        request = replace(request, format=None)  # Flight carries Arrow only
        encoding = replace(server.encoding, group_bytes=_GROUP_BYTES)
        scope = anyio.CancelScope()
        stream = server.streams.begin(
            dataset=request.dataset,
            principal=claims.principal,
            peer=call.peer,
            transport=TRANSPORT,
            cancel=scope.cancel,
            signed_ticket=ticket if claims.signed else None,
        )
        metrics = server.metrics
        metrics.streams += 1
        metrics.streams_total += 1
        try:
            with scope, server.reads.stream(request), self._read_ahead.stream():
                source = await run_in_thread(
                    open_rows, dataset, request, encoding, limiter=server.threads
                )
                if span is not None:
                    span.opened()
                slot = server.read_slots.slot_for(request, claims.principal)
                pace = _Pace(self._read_ahead)
                await _send_chunks(call, pace, source, stream, slot, plan)
            if scope.cancelled_caught:
                stream.outcome = Outcome.CANCELLED
                # Not CANCELLED, which pyarrow raises as a KeyboardInterrupt.
                raise remote_error("ABORTED", "the stream was cancelled", stream=request.dataset)
            stream.outcome = Outcome.COMPLETE
        except Exception as error:
            if not call.is_lost(error):
                metrics.failures += 1
                if stream.outcome is not Outcome.CANCELLED:
                    stream.outcome = Outcome.FAILED
            raise
        finally:
            metrics.streams -= 1
            server.streams.end(stream)
            if span is not None:
                span.end(stream)


async def _send_chunks(
    call: Call,
    pace: _Pace,
    source: Source,
    stream: RunningStream,
    slot: ReadSlot,
    plan: bytes,
) -> None:
    """Send a source. A plan, unless it is empty, goes with the first chunk or before a slow one."""
    await call.confirm_client()
    interval = call.headers.get(KEEP_ALIVE_HEADER, "")
    idle_seconds = max(int(interval) / 1000, MIN_INTERVAL) if interval.isdecimal() else None
    signs = [plan] if plan else []
    metrics, write, threads = call.server.metrics, call.context.write, call.server.threads

    async def send_sign() -> None:
        prefetched.idle_seconds = idle_seconds
        await write(signs.pop() if signs else _KEEP_ALIVE)

    async with anyio.create_task_group() as tasks:
        with Prefetch(
            _build_chunks(source, pace),
            source.close,
            tasks,
            threads,
            slot,
            memory=call.server.memory.share(stream.principal),
            measure=lambda chunk: chunk.nbytes,
            idle_seconds=_PLAN_SECONDS if plan else idle_seconds,
            on_idle=send_sign,
        ) as prefetched:
            prefetched.is_ahead = False
            async for chunk in prefetched:
                if signs:
                    await send_sign()
                began, messages = time.monotonic(), chunk.messages
                stream.messages += len(messages)
                while messages:
                    message = messages.popleft()  # freed once gRPC has copied it
                    stream.writing_since = time.monotonic()
                    stream.waits.begin()
                    await write(message)
                    stream.waits.end()
                    stream.writing_since = None
                    metrics.bytes_sent += len(message)
                    stream.nbytes += len(message)
                    del message
                prefetched.is_ahead = pace.is_ahead(chunk, time.monotonic() - began)
                stream.rows += chunk.rows
                if chunk.rows and stream.first_rows_seconds is None:
                    stream.record_first_rows()


class _Chunk:
    """FlightData messages that a worker thread prepares together, up to a number of bytes."""

    __slots__ = ("_full_bytes", "_started", "largest", "messages", "nbytes", "rows")

    def __init__(self, full_bytes: int) -> None:
        self.messages = deque[bytes]()
        self.rows = self.largest = self.nbytes = 0
        self._full_bytes = full_bytes
        self._started = time.monotonic()

    def add(self, message: SourceMessage) -> None:
        data = build_flight_data(message)
        self.messages.append(data)
        self.rows += message.rows
        self.nbytes += len(data)
        self.largest = max(self.largest, len(data))

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self._full_bytes

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._started > _CHUNK_SECONDS


def _build_chunks(source: Source, pace: _Pace) -> Iterator[_Chunk]:
    """Yield the messages of a source in chunks.

    Prefetching them pays for every source, even for one that does not block: reading files and
    copying bodies takes as long as sending them. A chunk of a slow source is sent after a short
    time, even if it is small.
    """
    chunk = _Chunk(pace.chunk_bytes)
    for group in source:
        last = group[-1]
        for message in group:
            chunk.add(message)
            if chunk.is_full or (message is last and chunk.is_late):
                yield chunk
                chunk = _Chunk(pace.chunk_bytes)
    if chunk.messages:
        yield chunk


def build_flight_data(message: SourceMessage) -> bytes:
    """Return the FlightData for a message of a dataset. This copies or reads the body once.

    Raises `ExhaustedError` if the message is larger than gRPC can carry. Raises `DatasetError` if a
    region of a file cannot be read, or has changed.
    """
    metadata, body, body_length, *_ = message
    if body is None:
        return pack_flight_data(metadata)
    if body_length + len(metadata) + _FIELD_BYTES > _MAX_MESSAGE_BYTES:
        raise ExhaustedError(
            f"a record batch of {body_length} bytes is too large for DoGet; "
            "request smaller ones with batch_rows"
        )
    if not any(isinstance(part, FileSpan) for part in body):
        return pack_flight_data(metadata, body, body_length)
    return _read_body(pack_flight_data(metadata, (), body_length), body, body_length)


def _read_body(head: bytes, body: Sequence[Any], body_length: int) -> bytes:
    """Return the message that begins with `head`. Files are read straight into it."""
    message = BytesIO(bytes(len(head) + body_length))
    with message.getbuffer() as view:
        end = len(head)
        view[:end] = head
        for part in body:
            if isinstance(part, FileSpan):
                begin, end = end, end + part.nbytes
                with view[begin:end] as target:
                    part.read_into(target)
            else:
                begin, end = end, end + memoryview(part).nbytes
                view[begin:end] = memoryview(part).cast("B")
    return message.getvalue()  # the memory of the BytesIO, not a copy of it
