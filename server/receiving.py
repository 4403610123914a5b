"""Receiving uploads, for DoPut and HTTP: within limits, completely or not at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ..errors import (
    ExhaustedError,
    InvalidRequestError,
    LimitError,
    ProtocolError,
    UnavailableError,
)
from ..formats.flight_data import FlightData
from ..formats.text import format_count
from .auth.principal import Permission
from .caller import Caller
from .config import Settings
from .uploads.publication import ShardKey
from .uploads.store import DatasetTarget, UploadStore
from .uploads.upload import Upload

_Data = TypeVar("_Data", bytes, memoryview)


_WRITE_BYTES = 2 << 20
"""The bytes of messages that are written at a time, if as many have arrived."""


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

    def earn(self, nbytes: int) -> None:
        """Record what the client has sent, which earns it time."""
        earned = nbytes / self._rate if self._rate else self._seconds
        self._left = min(self._seconds, self._left + earned)

    async def wait(self, read: Callable[[], Awaitable[_Data | None]]) -> _Data | None:
        """Return what the client sends next, or None at the end.

        Raises `UnavailableError` if the client is slower than the setting `upload_rate`.
        """
        began = anyio.current_time()
        with anyio.move_on_after(self._left):
            data = await read()
            if data is None:
                return None
            self._left -= anyio.current_time() - began
            self.earn(len(data))
            return data
        amount = f"less than {self._rate} bytes per second" if self._rate else "nothing"
        raise UnavailableError(
            f"the server has ended the upload: the client sent {amount} for {self._seconds:g} s; "
            "retry, or raise the server's setting idle_seconds"
        )


class UploadReceiver:
    """Receives the uploads of a server."""

    def __init__(self, store: UploadStore, max_uploads: int) -> None:
        self.store = store
        self._slots = UploadSlots(max_uploads)
        self._threads = anyio.CapacityLimiter(max_uploads)

    async def receive(
        self,
        caller: Caller,
        target: DatasetTarget | ShardKey,
        messages: AsyncIterator[FlightData],
    ) -> dict[str, Any]:
        """Store an upload, and return the response. It is served by then if it is a dataset.

        `messages` ends only after the client has said that the upload is complete. Raises
        `SplitArrowError` if the upload is refused or cannot be stored. Nothing of it is kept then.
        """
        caller.authorize(Permission.WRITE, target.dataset)
        with self._slots.take(caller.principal.name):
            limits = caller.server.limits
            if isinstance(target, ShardKey):
                upload = self.store.publications.begin_upload(target, limits)
            else:
                upload = self.store.begin_upload(target, limits)
            with upload:
                await self._write(upload, messages)
        assert upload.response is not None
        return upload.response

    async def _write(self, upload: Upload, messages: AsyncIterator[FlightData]) -> None:
        """Write messages on a worker thread while the next ones arrive. Finish the upload."""
        sender, receiver = anyio.create_memory_object_stream[list[FlightData]](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_write_messages, receiver, upload, self._threads)
                with sender:
                    async for together in _group_messages(messages, sender):
                        await sender.send(together)
                    await sender.send([])
        except* anyio.BrokenResourceError:
            pass  # the writing task raises the reason


async def _group_messages(
    messages: AsyncIterator[FlightData], sender: MemoryObjectSendStream[list[FlightData]]
) -> AsyncIterator[list[FlightData]]:
    """Yield the messages that arrive while those before are written: each write has its cost."""
    together: list[FlightData] = []
    nbytes = 0
    async for data in messages:
        together.append(data)
        nbytes += len(data.header) + len(data.body)
        if nbytes >= _WRITE_BYTES or sender.statistics().tasks_waiting_receive:
            yield together
            together, nbytes = [], 0
    if together:
        yield together


def _write_all(upload: Upload, messages: list[FlightData]) -> None:
    for data in messages:
        upload.write(data)


async def _write_messages(
    receiver: MemoryObjectReceiveStream[list[FlightData]],
    upload: Upload,
    threads: anyio.CapacityLimiter,
) -> None:
    """Write messages. Those before an empty list are all, and finish the upload."""
    try:
        with receiver:
            while messages := await receiver.receive():
                await to_thread.run_sync(_write_all, upload, messages, limiter=threads)
            await to_thread.run_sync(upload.finish, limiter=threads)
    except anyio.EndOfStream:
        pass  # the receiving task raises the reason
    except LimitError:
        raise
    except ProtocolError as error:
        raise InvalidRequestError(f"the upload is refused: {error.message}") from None
