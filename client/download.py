"""DoGet: a stream by the connection of the control plane, where no data transport reaches."""

from __future__ import annotations

import threading
import time
from typing import Any

import grpc
import pyarrow as pa

from ..errors import ClosedError, ProtocolError, SplitArrowError, StallError
from ..formats.arrow.message import encapsulate
from ..proto import Flight_pb2 as flight
from ..protocol.frames import ReceivedBody
from ..protocol.messages import Message
from ..protocol.tags import BodyType
from .calls import Caller
from .decoder import BatchDecoder
from .flightdata import parse
from .reader import ReadOptions

SCHEME = "flight"
"""What this transport is called."""


class FlightStream:
    """What a ticket stands for, by DoGet: an iterator of record batches.

    Parameters
    ----------
    caller : Caller
        The connection.
    ticket : bytes
        What to ask for.
    name : str
        The dataset, for errors.
    options : ReadOptions
        How to read; batches are checked in full unless it says otherwise.
    """

    transport = SCHEME

    def __init__(self, caller: Caller, ticket: bytes, name: str, options: ReadOptions) -> None:
        self._caller = caller
        self._name = name
        self._options = options
        self.bytes_received = 0
        self._sequence = 0
        self._ended = False
        self._closed = False
        self._stalled = False
        self._call: Any = caller.download(flight.Ticket(ticket=ticket).SerializeToString())
        self._watch = _Watch(options.stall_timeout, self._stall)
        try:
            first = self._next_message()
            if first is None:
                raise ProtocolError("the stream has no schema", stream=name)
            validate = options.validate or "full"
            self._decoder = BatchDecoder(first, options.limits, validate, name)
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._decoder.schema

    def _stall(self) -> None:
        self._stalled = True
        self._call.cancel()

    def _next_message(self) -> Message | None:
        while True:
            self._watch.begin()
            try:
                data = next(self._call, None)
            except grpc.RpcError as error:
                raise self._failure(error) from None
            finally:
                self._watch.end()
            if data is None:
                self._ended = True
                return None
            self.bytes_received += len(data)
            message = self._message(data)
            if message is not None:
                return message

    def _message(self, data: bytes) -> Message | None:
        header, body = parse(data)
        if not header:
            return None  # what an application says besides
        metadata = bytes(header)
        if len(metadata) > self._options.limits.metadata_bytes:
            raise ProtocolError(f"metadata of {len(metadata)} bytes", stream=self._name)
        room = len(encapsulate(metadata))
        sequence, self._sequence = self._sequence, self._sequence + 1
        received = ReceivedBody.copy_of(body, room)
        return Message(sequence, metadata, received, BodyType.PACKED)

    def _failure(self, error: grpc.RpcError) -> Exception:
        if self._stalled:
            seconds = self._options.stall_timeout
            return StallError(f"nothing came from the server for {seconds:g} s", stream=self._name)
        return self._caller.failure(error, self._name, closed=self._closed)

    def __iter__(self) -> FlightStream:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `Stream` does."""
        if self._ended:
            raise StopIteration
        if self._closed:
            raise ClosedError("the stream is closed", stream=self._name)
        try:
            while (message := self._next_message()) is not None:
                batch = self._decoder.decode(message)
                if batch is not None:
                    return batch
        except SplitArrowError:
            self._call.cancel()
            raise
        raise StopIteration

    def cancel(self) -> None:
        """Stop a read that another thread waits in: it raises `ClosedError`."""
        self._closed = True
        self._call.cancel()

    def close(self) -> None:
        """End the call. Idempotent."""
        self._closed = True
        self._watch.stop()
        if not self._ended:
            self._call.cancel()


class _Watch:
    """Calls back if something takes too long; one thread, however many waits there are."""

    def __init__(self, seconds: float | None, late: Any) -> None:
        self._seconds = seconds
        self._late = late
        self._since: float | None = None
        self._stopped = threading.Event()
        if seconds is not None:
            threading.Thread(target=self._run, name="splitarrow-stall", daemon=True).start()

    def _run(self) -> None:
        seconds = self._seconds or 0
        wait = seconds
        while not self._stopped.wait(max(wait, 0.001)):
            since = self._since
            wait = seconds if since is None else since + seconds - time.monotonic()
            if wait <= 0:
                self._late()
                return

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        self._since = None

    def stop(self) -> None:
        self._stopped.set()
