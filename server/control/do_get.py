"""DoGet: a dataset as a stream of FlightData, for clients that use no data transport."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ExhaustedError, LimitError
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
from ...protocol.splitter import PackedRun, SourceMessage
from ..auth.tickets import TicketClaims
from ..caller import run_in_thread
from ..catalog.dataset import Source
from ..catalog.selection import open_rows
from ..catalog.stored_files import view_files
from ..catalog.tensors import refuse_do_get
from ..chunks import (
    Buffers,
    Chunk,
    Pace,
    ReadAhead,
    build_chunks,
    iter_buffers,
    run_stream,
    send_chunks,
)
from ..streams import ReadSlot, RunningStream
from .call import Call, parse_message
from .grpc_server import PREFIX_BYTES, pack_prefix
from .info import build_plan, prefers_do_get

if TYPE_CHECKING:
    from ..spans import StreamSpan


TRANSPORT = "flight"
"""The name of this transport."""
_MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The largest message that gRPC and protobuf can carry, in bytes."""
_MIN_SHARED_BYTES = 16 << 10
"""The smallest body of a run that is not copied."""
_FIELD_BYTES = 64
"""An upper bound for the tags and lengths of a message's fields, in bytes."""


_KEEP_ALIVE = pack_flight_data(app_metadata=KEEP_ALIVE_METADATA)
_PLAN_SECONDS = 0.1
"""How long a plan waits for the first chunk, to arrive with it."""


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
        pace = Pace(self._read_ahead)
        with (
            run_stream(
                server,
                request,
                principal=claims.principal,
                peer=call.peer,
                transport=TRANSPORT,
                signed_ticket=ticket if claims.signed else None,
                is_lost=call.is_lost,
                span=span,
            ) as stream,
            self._read_ahead.stream(),
        ):
            source = await run_in_thread(
                open_rows, dataset, request, pace.adapt(server.encoding), limiter=server.threads
            )
            if span is not None:
                span.opened()
            slot = server.read_slots.slot_for(request, claims.principal)
            await _send_source(call, pace, source, stream, slot, plan)


async def _send_source(
    call: Call, pace: Pace, source: Source, stream: RunningStream, slot: ReadSlot, plan: bytes
) -> None:
    """Send a source. A plan, unless it is empty, goes with the first chunk or before a slow one."""
    interval = call.headers.get(KEEP_ALIVE_HEADER, "")
    idle_seconds = max(int(interval) / 1000, MIN_INTERVAL) if interval.isdecimal() else None
    signs = [plan] if plan else []
    metrics, write = call.server.metrics, call.context.write

    async def send_sign() -> float | None:
        await write(signs.pop() if signs else _KEEP_ALIVE)
        return idle_seconds

    async def write_chunk(chunk: Chunk) -> None:
        if signs:
            await send_sign()
        nbytes = chunk.nbytes - chunk.count * PREFIX_BYTES
        stream.writing_since = time.monotonic()
        stream.waits.begin()
        await call.context.send(chunk.buffers)
        stream.waits.end()
        stream.writing_since = None
        metrics.bytes_sent += nbytes
        stream.nbytes += nbytes

    await send_chunks(
        call.server,
        build_chunks(source, pace, build_flight_data, build_flight_run),
        source.close,
        pace,
        stream,
        slot,
        write_chunk,
        first_idle_seconds=_PLAN_SECONDS if plan else None,
        idle_seconds=idle_seconds,
        on_idle=send_sign,
    )


def build_flight_data(message: SourceMessage) -> Iterable[bytes | memoryview]:
    """Return the FlightData for a message of a dataset, as gRPC sends it.

    Raises `ExhaustedError` if the message is larger than gRPC can carry. Raises `DatasetError` if a
    region of a file cannot be read, or has changed.
    """
    metadata, body, body_length, *_ = message
    if body is None:
        data = pack_flight_data(metadata)
        return pack_prefix(len(data)), data
    return iter_buffers(_pack_head(metadata, body_length), message)


def _pack_head(metadata: bytes | memoryview, body_length: int) -> bytes:
    """Return what precedes a body: the prefix, and the beginning of the FlightData."""
    if body_length + len(metadata) + _FIELD_BYTES > _MAX_MESSAGE_BYTES:
        raise ExhaustedError(
            f"a record batch of {body_length} bytes is too large for DoGet; "
            "request smaller ones with batch_rows"
        )
    head = pack_flight_data(metadata, (), body_length)
    return pack_prefix(len(head) + body_length) + head


def build_flight_run(run: PackedRun) -> Buffers:
    """Return what `build_flight_data` does for each message of a run."""
    count, body_length = run.bodies.shape
    head = _pack_head(run.metadata, body_length)
    if body_length >= _MIN_SHARED_BYTES:
        return [part for body in run.bodies for part in (head, body.data)]
    joined = np.empty((count, len(head) + body_length), np.uint8)
    joined[:, : len(head)] = np.frombuffer(head, np.uint8)
    joined[:, len(head) :] = run.bodies
    return (joined.data.cast("B"),)
