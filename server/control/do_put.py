"""DoPut: a stream of FlightData becomes a dataset or a shard, completely or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

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
from ...formats.text import format_count
from ...proto import Flight_pb2 as flight
from ..auth.principal import Permission
from ..caller import NO_UPLOADS
from ..config import Settings
from ..uploads.publication import ShardKey
from ..uploads.store import UploadStore
from ..uploads.upload import Upload
from .call import Call, parse_message


class UploadSlots:
    """Divides the uploads that may run at a time among the principals that upload.

    Each principal has an equal share, and at least one upload. A principal that uploads alone may
    take all. Those that run beyond a share that has become smaller may finish.

    Examples
    --------
    >>> slots = UploadSlots(2)
    >>> with slots.take("a"), slots.take("a"), slots.take("b"):
    ...     with slots.take("b"):
    ...         pass
    Traceback (most recent call last):
    splitarrow.errors.ExhaustedError: 'b' has 1 running upload, which is its limit; retry later
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._running = Counter[str]()

    @contextmanager
    def take(self, principal: str) -> Generator[None]:
        """Count an upload while the context lasts. Refuse it beyond the share of its principal."""
        running = self._running[principal]
        share = max(1, self._total // len({*self._running, principal}))
        if running >= share:
            raise ExhaustedError(
                f"{principal!r} has {format_count(running, 'running upload')}, which is its "
                "limit; retry later"
            )
        self._running[principal] += 1
        try:
            yield
        finally:
            self._running[principal] -= 1
            if not self._running[principal]:
                del self._running[principal]


class Patience:
    """The time that an upload's client may still let the server wait.

    Waiting uses it up, and data renews it: the more, the longer the client may wait again.
    """

    def __init__(self, settings: Settings) -> None:
        self._seconds = settings.idle_seconds
        self._rate = settings.upload_rate
        self._left = self._seconds

    async def receive(self, call: Call) -> FlightData | None:
        """Return the next message, or None at the end.

        Raises `UnavailableError` if the client is slower than the setting `upload_rate`.
        """
        began = anyio.current_time()
        with anyio.move_on_after(self._left):
            message = await call.read()
            if message is None:
                return None
            earned = len(message) / self._rate if self._rate else self._seconds
            left = self._left - (anyio.current_time() - began)
            self._left = min(self._seconds, left + earned)
            try:
                return parse_flight_data(message)
            except ProtocolError as error:
                raise InvalidRequestError(error.message) from None
        amount = f"less than {self._rate} bytes per second" if self._rate else "nothing"
        raise UnavailableError(
            f"the server has ended the upload: the client sent {amount} for {self._seconds:g} s; "
            "retry, or raise the server's setting idle_seconds"
        )


class DoPutHandler:
    """Serves DoPut. Without a store, it refuses uploads."""

    def __init__(self, store: UploadStore | None, max_uploads: int) -> None:
        self._store = store
        self._slots = UploadSlots(max_uploads)
        self._threads = anyio.CapacityLimiter(max_uploads)

    async def do_put(self, call: Call, requests: object) -> None:
        """Receive an upload. Respond when it is stored, and served if it is a dataset.

        Raises `SplitArrowError` if the upload is refused or cannot be stored. Nothing of it is kept
        then.
        """
        del requests  # `Call.read` returns them
        if self._store is None:
            raise remote_error("UNIMPLEMENTED", NO_UPLOADS)
        patience = Patience(call.server.settings)
        first = await patience.receive(call)
        if first is None or first.descriptor is None:
            raise InvalidRequestError("the first message of an upload must have a descriptor")
        target = _parse_target(parse_message(flight.FlightDescriptor, bytes(first.descriptor)))
        name = target.dataset if isinstance(target, ShardKey) else target
        call.authorize(Permission.WRITE, name)
        with self._slots.take(call.principal.name):
            limits = call.server.limits
            if isinstance(target, ShardKey):
                upload = self._store.publications.begin_upload(target, limits)
            else:
                upload = self._store.begin_upload(target, limits)
            with upload:
                await self._store_upload(call, upload, patience, first)
        response = json.dumps(upload.response, ensure_ascii=False).encode()
        await call.write(flight.PutResult(app_metadata=response).SerializeToString())

    async def _store_upload(
        self, call: Call, upload: Upload, patience: Patience, first: FlightData
    ) -> None:
        """Store messages on a worker thread while the next ones arrive. Finish the upload."""
        sender, receiver = anyio.create_memory_object_stream[FlightData | None](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_write_messages, receiver, upload, self._threads)
                with sender:
                    data: FlightData | None = first
                    while data is not None:
                        await sender.send(data)
                        data = await patience.receive(call)
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
    except anyio.EndOfStream:
        pass  # the receiving task raises the reason
    except LimitError:
        raise
    except ProtocolError as error:
        raise InvalidRequestError(f"the upload is refused: {error.message}") from None


def _parse_target(descriptor: flight.FlightDescriptor) -> str | ShardKey:
    """Return the name of the dataset to upload, or the key of the shard."""
    if descriptor.type == flight.FlightDescriptor.CMD and descriptor.cmd[:1] == b"{":
        return ShardKey.parse(descriptor.cmd)
    if descriptor.type != flight.FlightDescriptor.PATH or len(descriptor.path) != 1:
        raise InvalidRequestError(
            "the descriptor of an upload must be a path of one element, the name of the dataset"
        )
    return descriptor.path[0]
