"""Prefetching: preparing the next item on a worker thread while the current one is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectSendStream

from ..errors import SplitArrowError
from .shares import MemoryShare

_START_CHECKPOINTS = 5
"""The turns of the event loop after which a free thread has an item to prepare. It takes four."""
_T = TypeVar("_T")


def start_task(tasks: TaskGroup, function: Callable[..., Awaitable[object]], *args: Any) -> None:
    """Start a task that keeps nothing alive once it was cancelled or has failed as expected.

    anyio keeps the error that ended a task in a cycle of references. The frames behind it would
    keep shared memory until the garbage collector runs.
    """

    async def run() -> None:
        try:
            await function(*args)
        except (anyio.get_cancelled_exc_class(), SplitArrowError) as error:
            error.__traceback__ = error.__context__ = None
            raise

    tasks.start_soon(run)


class Prefetch(Generic[_T]):
    """An asynchronous iterator over the items of a blocking iterator; a context manager.

    A worker thread prepares one item ahead of the consumer, while it holds the slot. The consumer
    may set `is_ahead` to False: each item is then prepared when it is requested. No item is None.
    With a share of memory, which is closed with the context, an item is prepared ahead only while
    there is room for one of the size of the last. `measure` returns the size of an item in bytes.
    `close` is called once, when the thread has finished: after the last item, after an
    error, or after the context was left, which cancels the task of the thread. The task group waits
    for that, so it may outlive the context. Each time the consumer has waited for `idle_seconds`,
    `on_idle` is called.
    """

    def __init__(
        self,
        items: Iterator[_T],
        close: Callable[[], object],
        tasks: TaskGroup,
        threads: CapacityLimiter,
        slot: AbstractAsyncContextManager[Any, Any] | None = None,
        *,
        idle_seconds: float | None = None,
        on_idle: Callable[[], Awaitable[object]] | None = None,
        memory: MemoryShare | None = None,
        measure: Callable[[_T], int] = lambda item: 0,
    ) -> None:
        self._memory = memory
        self._measure = measure
        self._sent_bytes = self._ready_bytes = self._last_bytes = 0
        slot = nullcontext() if slot is None else slot
        sender, self._receiver = anyio.create_memory_object_stream[_T | Exception | None](0)
        self.idle_seconds = idle_seconds
        """The wait after which `on_idle` is called, in seconds; None for no limit."""
        self._on_idle = on_idle
        self._scope = anyio.CancelScope()
        self.is_ahead = True
        """Whether the next item is prepared before it is requested."""
        self._requested = self._prepared = 0
        self._is_starting = False
        self._request = anyio.Event()
        start_task(tasks, self._produce, items, close, sender, threads, slot)

    def __enter__(self) -> Prefetch[_T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._receiver.close()
        self._scope.cancel()
        if self._memory is not None:
            self._memory.close()

    def __aiter__(self) -> Prefetch[_T]:
        return self

    async def __anext__(self) -> _T:
        """Return the next item; raise the error of the iterator if it raised one."""
        self._requested += 1
        self._hold(0, self._ready_bytes)  # the consumer is done with the item before
        self._request.set()
        item = await self._receive()
        self._sent_bytes, self._ready_bytes = self._ready_bytes, 0
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        await self._let_thread_start()
        return item

    async def _let_thread_start(self) -> None:
        """Let the thread start with the next item, if it is about to: sending blocks the loop."""
        for _ in range(_START_CHECKPOINTS):
            await checkpoint()
            if not self._is_starting:
                break

    def _hold(self, sent: int, ready: int) -> None:
        """Hold the memory of the item that the consumer has, and of the one that is ready."""
        self._sent_bytes, self._ready_bytes = sent, ready
        if self._memory is not None:
            self._memory.hold(sent + ready)

    async def _receive(self) -> _T | Exception | None:
        if self.idle_seconds is None or self._on_idle is None:
            return await self._receiver.receive()
        await checkpoint()
        try:
            return self._receiver.receive_nowait()
        except anyio.WouldBlock:
            pass
        while True:
            with anyio.move_on_after(self.idle_seconds):
                return await self._receiver.receive()
            await self._on_idle()

    async def _produce(
        self,
        items: Iterator[_T],
        close: Callable[[], object],
        sender: MemoryObjectSendStream[_T | Exception | None],
        threads: CapacityLimiter,
        slot: AbstractAsyncContextManager[Any, Any],
    ) -> None:
        """Send each item, and then None or the error of the iterator."""
        item: _T | None = None
        try:
            with self._scope, sender:
                while True:
                    await self._wait_for_turn()
                    self._is_starting = True
                    try:
                        async with slot:
                            item = await to_thread.run_sync(self._take, items, limiter=threads)
                    except Exception as error:
                        await sender.send(error)
                        return
                    if item is None:
                        await sender.send(None)
                        return
                    self._last_bytes = self._measure(item)
                    self._hold(self._sent_bytes, self._last_bytes)
                    await sender.send(item)
                    item = None
        except anyio.BrokenResourceError:
            pass  # the consumer has left the context
        finally:
            item = None  # the cancellation refers to this frame, which refers to it
            close()

    def _take(self, items: Iterator[_T]) -> _T | None:
        """Return the next item; None after the last. Runs on the worker thread."""
        self._is_starting = False
        return next(items, None)

    async def _wait_for_turn(self) -> None:
        """Wait until the next item may be prepared."""
        while self._prepared >= self._requested and not self._may_go_ahead():
            self._request = anyio.Event()
            await self._request.wait()
        self._prepared += 1

    def _may_go_ahead(self) -> bool:
        """Return whether the next item may be prepared before it is requested."""
        if not self.is_ahead or self._memory is None:
            return self.is_ahead
        return self._memory.reserve(self._last_bytes, lambda: self._request.set())
