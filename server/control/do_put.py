"""DoPut: a stream of FlightData becomes a dataset, whole or not at all."""

from __future__ import annotations

import json

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from ...errors import (
    ExhaustedError,
    InvalidRequestError,
    LimitError,
    ProtocolError,
    UnavailableError,
    remote_error,
)
from ...proto import Flight_pb2 as flight
from .call import Call, parsed
from .ports import WRITE
from .shards import ShardKey, shard_of
from .store import UploadStore
from .upload import Upload
from .wire import FlightData, parse_flight_data


class Receiver:
    """Serves DoPut.

    Parameters
    ----------
    store : UploadStore or None
        Where uploads go; None: there are none.
    uploads : int
        How many may run at a time.
    """

    def __init__(self, store: UploadStore | None, uploads: int) -> None:
        self._store = store
        self._most = uploads
        self._running = 0
        self._threads: anyio.CapacityLimiter | None = None

    async def do_put(self, call: Call) -> None:
        """Take in a dataset, and answer when it is stored and served.

        Raises
        ------
        SplitArrowError
            If it cannot be taken in; nothing of it is kept then.
        """
        if self._store is None:
            raise remote_error(
                "UNIMPLEMENTED", "this server takes no uploads: it has no directory for them"
            )
        first = await _next(call)
        if first is None or first.descriptor is None:
            raise InvalidRequestError("the upload begins without a descriptor")
        target = _target(parsed(flight.FlightDescriptor, bytes(first.descriptor)))
        name = target if isinstance(target, str) else target.dataset
        call.subject = name
        call.require(name, WRITE)
        if self._running >= self._most:
            raise ExhaustedError(f"{self._running} uploads are running, as many as may")
        self._running += 1
        try:
            limits = call.daemon.limits
            if isinstance(target, str):
                upload = self._store.begin(target, limits)
            else:
                upload = self._store.publications.begin(target, limits)
            try:
                await self._take(call, upload, first)
            finally:
                upload.abort()
        finally:
            self._running -= 1
        answer = json.dumps(upload.answer(), ensure_ascii=False)
        await call.write(flight.PutResult(app_metadata=answer.encode()).SerializeToString())

    async def _take(self, call: Call, upload: Upload, first: FlightData) -> None:
        """Receive and store at the same time; finish if the client said all it had to say."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._most)
        sender, receiver = anyio.create_memory_object_stream[FlightData | None](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_store, receiver, upload, self._threads)
                with sender:
                    data: FlightData | None = first
                    while data is not None:
                        await sender.send(data)
                        data = await _next(call)
                    await call.confirm()
                    await sender.send(None)
        except* anyio.BrokenResourceError:
            pass  # the other task says why


async def _store(
    receiver: MemoryObjectReceiveStream[FlightData | None],
    upload: Upload,
    threads: anyio.CapacityLimiter,
) -> None:
    try:
        with receiver:
            while (data := await receiver.receive()) is not None:
                await to_thread.run_sync(upload.feed, data, limiter=threads)
            await to_thread.run_sync(upload.finish, limiter=threads)
    except LimitError:
        raise
    except ProtocolError as error:
        raise InvalidRequestError(f"the upload is refused: {error.message}") from None


async def _next(call: Call) -> FlightData | None:
    seconds = call.daemon.idle_seconds
    with anyio.move_on_after(seconds):
        message = await call.read()
        return None if message is None else parse_flight_data(message)
    raise UnavailableError(f"the client said nothing for {seconds:g} s")


def _target(descriptor: flight.FlightDescriptor) -> str | ShardKey:
    """Return what an upload shall become: the dataset of a name, or a shard."""
    if descriptor.type == flight.FlightDescriptor.CMD and descriptor.cmd[:1] == b"{":
        return shard_of(descriptor.cmd)
    if descriptor.type != flight.FlightDescriptor.PATH or len(descriptor.path) != 1:
        raise InvalidRequestError(
            "the descriptor of an upload is a path of one element, the name of the dataset"
        )
    return descriptor.path[0]
