"""DoPut: a stream of FlightData becomes a dataset or a shard, completely or not at all."""

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
from ...formats.flight_data import FlightData, parse_flight_data
from ...proto import Flight_pb2 as flight
from ..auth.principal import Permission
from ..uploads.publication import ShardKey
from ..uploads.store import UploadStore
from ..uploads.upload import Upload
from .call import NO_UPLOADS, Call, parse_message


class DoPutHandler:
    """Serves DoPut. Without a store, it refuses uploads."""

    def __init__(self, store: UploadStore | None, max_uploads: int) -> None:
        self._store = store
        self._max_uploads = max_uploads
        self._running = 0
        self._threads: anyio.CapacityLimiter | None = None

    async def do_put(self, call: Call, requests: object) -> None:
        """Receive an upload. Respond when it is stored, and served if it is a dataset.

        Raises `SplitArrowError` if the upload is refused or cannot be stored. Nothing of it is kept
        then.
        """
        del requests  # `Call.read` returns them
        if self._store is None:
            raise remote_error("UNIMPLEMENTED", NO_UPLOADS)
        first = await _receive(call)
        if first is None or first.descriptor is None:
            raise InvalidRequestError("the first message of an upload must have a descriptor")
        target = _parse_target(parse_message(flight.FlightDescriptor, bytes(first.descriptor)))
        name = target.dataset if isinstance(target, ShardKey) else target
        call.authorize(Permission.WRITE, name)
        if self._running >= self._max_uploads:
            raise ExhaustedError(
                f"{self._running} uploads are running, which is the limit; retry later"
            )
        self._running += 1
        try:
            limits = call.server.limits
            if isinstance(target, ShardKey):
                upload = self._store.publications.begin_upload(target, limits)
            else:
                upload = self._store.begin_upload(target, limits)
            with upload:
                await self._store_upload(call, upload, first)
        finally:
            self._running -= 1
        response = json.dumps(upload.response, ensure_ascii=False).encode()
        await call.write(flight.PutResult(app_metadata=response).SerializeToString())

    async def _store_upload(self, call: Call, upload: Upload, first: FlightData) -> None:
        """Store messages on a worker thread while the next ones arrive. Finish the upload."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._max_uploads)
        sender, receiver = anyio.create_memory_object_stream[FlightData | None](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_write_messages, receiver, upload, self._threads)
                with sender:
                    data: FlightData | None = first
                    while data is not None:
                        await sender.send(data)
                        data = await _receive(call)
                    await call.confirm_client()
                    await sender.send(None)
        except* anyio.BrokenResourceError:
            pass  # the writing task raises the reason


async def _write_messages(
    receiver: MemoryObjectReceiveStream[FlightData | None],
    upload: Upload,
    threads: anyio.CapacityLimiter,
) -> None:
    """Write messages up to None, which finishes the upload."""
    try:
        with receiver:
            while (data := await receiver.receive()) is not None:
                await to_thread.run_sync(upload.write, data, limiter=threads)
            await to_thread.run_sync(upload.finish, limiter=threads)
    except LimitError:
        raise
    except ProtocolError as error:
        raise InvalidRequestError(f"the upload is refused: {error.message}") from None


async def _receive(call: Call) -> FlightData | None:
    seconds = call.server.settings.idle_seconds
    with anyio.move_on_after(seconds):
        message = await call.read()
        try:
            return None if message is None else parse_flight_data(message)
        except ProtocolError as error:
            raise InvalidRequestError(error.message) from None
    raise UnavailableError(f"the client sent nothing for {seconds:g} s")


def _parse_target(descriptor: flight.FlightDescriptor) -> str | ShardKey:
    """Return the name of the dataset to upload, or the key of the shard."""
    if descriptor.type == flight.FlightDescriptor.CMD and descriptor.cmd[:1] == b"{":
        return ShardKey.parse(descriptor.cmd)
    if descriptor.type != flight.FlightDescriptor.PATH or len(descriptor.path) != 1:
        raise InvalidRequestError(
            "the descriptor of an upload must be a path of one element, the name of the dataset"
        )
    return descriptor.path[0]
