"""Prefetching: reading ahead of the consumer, within a window of bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import pyarrow as pa
from anyio.lowlevel import checkpoint


class _Window:
    """The batches that wait for the consumer, and their size.

    One thread may append while another one takes: each counter has one writer.
    """

    __slots__ = ("_appended_bytes", "_batches", "_limit", "_taken_bytes")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()
        self._appended_bytes = 0
        self._taken_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def has_room(self) -> bool:
        """Whether another batch may be read."""
        return self._appended_bytes - self._taken_bytes < self._limit

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        # `nbytes` subtracts what a slice leaves out, which takes 20 times as long.
        nbytes = batch.get_total_buffer_size()
        self._appended_bytes += nbytes
        self._batches.append((batch, nbytes))

    def take(self) -> pa.RecordBatch:
        """Remove and return the oldest batch."""
        batch, nbytes = self._batches.popleft()
        self._taken_bytes += nbytes
        return batch

    def clear(self) -> None:
        """Remove all batches."""
        self._batches.clear()


class ThreadPrefetcher:
    """Prefetches batches on its own thread.

    Parameters
    ----------
    read : callable
        Waits for the next batch and returns it, or None at the end. From here on, only the
        prefetcher calls it.
    window : int
        The size of the batches that may wait for the consumer, in bytes. Reading continues below
        this size, so that the last batch may exceed it.
    """

    def __init__(self, read: Callable[[], pa.RecordBatch | None], window: int) -> None:
        self._read = read
        self._waiting = _Window(window)
        # A lock for each small batch would cost more than the batch. A thread takes the lock only
        # to wait, and to wake the other one.
        self._changed = threading.Condition()
        self._producer_waits = self._consumer_waits = False
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="splitarrow-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        waiting = self._waiting
        try:
            while not self._stopped and (batch := self._read()) is not None:
                waiting.append(batch)
                if self._consumer_waits:
                    self._notify()
                if not waiting.has_room:
                    self._wait_for_room()
        except BaseException as error:
            self._error = error
        self._ended = True
        self._notify()

    def _wait_for_room(self) -> None:
        with self._changed:
            self._producer_waits = True
            self._changed.wait_for(lambda: self._stopped or self._waiting.has_room)
            self._producer_waits = False

    def _wait_for_batch(self) -> None:
        with self._changed:
            self._consumer_waits = True
            self._changed.wait_for(lambda: self._ended or self._waiting)
            self._consumer_waits = False

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def next(self) -> pa.RecordBatch | None:
        """Wait for the next batch; return None at the end. Errors of `read` are raised again."""
        if not self._waiting:
            self._wait_for_batch()
            if not self._waiting:
                if self._error is not None:
                    raise self._error
                return None
        batch = self._waiting.take()
        if self._producer_waits:
            self._notify()
        return batch

    def stop(self) -> None:
        """Drop the waiting batches and end the thread. Interrupt a pending `read` first."""
        self._stopped = True
        self._notify()
        self._thread.join()
        self._waiting.clear()


class TaskPrefetcher:
    """Prefetches batches in a task; the parameters are those of `ThreadPrefetcher`."""

    def __init__(self, read: Callable[[], Awaitable[pa.RecordBatch | None]], window: int) -> None:
        self._read = read
        self._waiting = _Window(window)
        self._changed = anyio.Event()
        self._ended = False
        self._error: Exception | None = None

    async def run(self) -> None:
        """Read until the stream ends or fails. The owner runs this in a task group."""
        try:
            while (batch := await self._read()) is not None:
                self._waiting.append(batch)
                self._notify()
                while not self._waiting.has_room:
                    await self._changed.wait()
        except Exception as failure:
            self._error = failure
        finally:
            self._ended = True
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def next(self) -> pa.RecordBatch | None:
        """Wait for the next batch; return None at the end. Errors of `read` are raised again."""
        if not self._waiting:
            await checkpoint()
        while not self._waiting and not self._ended:
            await self._changed.wait()
        if self._waiting:
            batch = self._waiting.take()
            self._notify()
            return batch
        if self._error is not None:
            raise self._error
        return None
