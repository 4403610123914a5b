"""DoGet: a dataset as a stream of FlightData, for clients that no data transport reaches."""

from __future__ import annotations

import time

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectSendStream

from ...errors import (
    InvalidRequestError,
    LimitError,
    remote_error,
)
from ...proto import Flight_pb2 as flight
from ..catalog.base import Source
from .call import Call, parsed
from .ports import Office
from .running import RunningStream, RunningStreams, ticket_key
from .wire import flight_data

_USE = "both"
_AHEAD_BYTES = 1 << 20
_AHEAD_SECONDS = 0.01


class Sender:
    """Serves DoGet.

    Parameters
    ----------
    office : Office
        Reads the tickets.
    running : RunningStreams
        Where streams are noted while they are sent.
    """

    def __init__(self, office: Office, running: RunningStreams) -> None:
        self._office = office
        self._running = running

    async def do_get(self, call: Call, message: bytes) -> None:
        """Send the dataset that a ticket stands for.

        Raises
        ------
        SplitArrowError
            If the ticket is not good, or the dataset cannot be read to its end.
        """
        ticket: bytes = parsed(flight.Ticket, message).ticket
        if len(ticket) > call.daemon.limits.ticket_bytes:
            raise LimitError(f"a ticket of {len(ticket)} bytes")
        sealed = await to_thread.run_sync(self._office.open, ticket, _USE)
        request = sealed.request
        call.subject = request.dataset
        call.require_own(sealed)
        dataset = call.dataset(request.dataset)
        if request.format not in (None, "arrow"):
            raise InvalidRequestError(f"DoGet carries Arrow only, not {request.format!r}")
        daemon = call.daemon
        counters = daemon.counters
        counters.streams += 1
        counters.streams_total += 1
        scope = anyio.CancelScope()
        key = ticket_key(ticket) if sealed.nonce else b""
        stream = self._running.begin(request.dataset, sealed.principal, key, scope)
        try:
            with scope:
                source = await to_thread.run_sync(
                    dataset.open, request, daemon.encoding, limiter=daemon.threads
                )
                await _send(call, source, stream)
            if scope.cancelled_caught:
                # Not CANCELLED: pyarrow would take it for an interrupt from the keyboard.
                raise remote_error("ABORTED", "the stream was cancelled", stream=request.dataset)
        except Exception:
            counters.failures += 1
            raise
        finally:
            counters.streams -= 1
            self._running.end(stream)


_Made = tuple[list[bytes], int] | Exception | None
"""Some messages and how many rows they carry, why there are no more, or None at the end."""


async def _send(call: Call, source: Source, stream: RunningStream) -> None:
    await call.confirm()
    sender, receiver = anyio.create_memory_object_stream[_Made](0)
    counters, write = call.daemon.counters, call.context.write
    async with anyio.create_task_group() as group:
        group.start_soon(_make_ahead, source, sender, call.daemon.threads)
        with receiver:
            while (made := await receiver.receive()) is not None:
                if isinstance(made, Exception):
                    raise made
                messages, rows = made
                for message in messages:
                    await write(message)
                    counters.bytes_sent += len(message)
                    stream.nbytes += len(message)
                counters.messages += len(messages)
                counters.rows += rows
                stream.rows += rows


async def _make_ahead(
    source: Source, sender: MemoryObjectSendStream[_Made], threads: anyio.CapacityLimiter
) -> None:
    """Make messages on a worker thread while those before are on their way.

    Also for a source that does not block: reading files and copying bodies into messages takes
    as long as sending them. What a slow source has given is not held back until it gives more.
    """
    try:
        with sender:
            groups = iter(source)

            def make() -> _Made:
                messages: list[bytes] = []
                rows = nbytes = 0
                begun = time.monotonic()
                for group in groups:
                    for message in group:
                        messages.append(flight_data(message))
                        nbytes += message.body_length
                        rows += message.rows
                    if nbytes >= _AHEAD_BYTES or time.monotonic() - begun > _AHEAD_SECONDS:
                        break
                return (messages, rows) if messages else None

            made: _Made = ([], 0)
            while made is not None:
                try:
                    made = await to_thread.run_sync(make, limiter=threads)
                except Exception as error:
                    await sender.send(error)
                    return
                await sender.send(made)
    except anyio.BrokenResourceError:
        pass  # the reader is gone
    finally:
        source.close()
