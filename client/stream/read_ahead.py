"""Reading ahead of the consumer, within a window of bytes.

The caller can ask for it (`ThreadPrefetcher`, `TaskPrefetcher`). By default, `ReadAhead` starts a
thread where a measurement shows that it pays.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Generic, TypeVar

import anyio
import pyarrow as pa
from anyio.lowlevel import checkpoint

from ...errors import SplitArrowError
from ...transport import blocking
from .reader import Reader

_Item = TypeVar("_Item")
# Of a record batch or a `DeviceBatch`. `nbytes` subtracts what a slice leaves out, which takes 20
# times as long.
_measure_batch = methodcaller("get_total_buffer_size")


class _Window(Generic[_Item]):
    """The items that wait for the consumer, and their size.

    One thread may append while another one takes: each counter has one writer.
    """

    __slots__ = ("_appended_bytes", "_items", "_limit", "_measure", "_taken_bytes")

    def __init__(self, limit: int, measure: Callable[[_Item], int]) -> None:
        self._limit = limit
        self._measure = measure
        self._items: deque[tuple[_Item, int]] = deque()
        self._appended_bytes = 0
        self._taken_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def has_room(self) -> bool:
        """Whether another item may be read."""
        return self._appended_bytes - self._taken_bytes < self._limit

    def append(self, item: _Item) -> None:
        """Add an item."""
        nbytes = self._measure(item)
        self._appended_bytes += nbytes
        self._items.append((item, nbytes))

    def take(self) -> _Item:
        """Remove and return the oldest item."""
        item, nbytes = self._items.popleft()
        self._taken_bytes += nbytes
        return item

    def clear(self) -> None:
        """Remove all items."""
        self._items.clear()


class ThreadPrefetcher(Generic[_Item]):
    """Prefetches batches or runs on its own thread, which alone calls `read` from then on.

    It reads on while fewer bytes than the window wait for the consumer, so that the last item may
    exceed the window. `read` returns None at the end.
    """

    def __init__(
        self,
        read: Callable[[], _Item | None],
        window: int,
        measure: Callable[[_Item], int] = _measure_batch,
        *,
        name: str = "splitarrow-prefetch",
    ) -> None:
        self._read = read
        self._waiting = _Window(window, measure)
        # A lock for each small batch would cost more than the batch. A thread takes the lock only
        # to wait, and to wake the other one.
        self._changed = threading.Condition()
        self._producer_waits = self._consumer_waits = False
        self._ended = False
        self.is_stopped = False
        """Whether the thread ends after what it reads now."""
        self.reached_end = False
        """Whether `read` has returned None."""
        self._close: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        waiting = self._waiting
        try:
            while not self.is_stopped:
                item = self._read()
                if item is None:
                    self.reached_end = True
                    break
                waiting.append(item)
                if self._consumer_waits:
                    self._notify()
                if not waiting.has_room:
                    self._wait_for_room()
        except BaseException as error:
            self._error = error
        if self._close is not None:
            self._close()
        self._ended = True
        self._notify()

    def _wait_for_room(self) -> None:
        with self._changed:
            self._producer_waits = True
            self._changed.wait_for(lambda: self.is_stopped or self._waiting.has_room)
            self._producer_waits = False

    def _wait_for_item(self) -> None:
        with self._changed:
            self._consumer_waits = True
            self._changed.wait_for(lambda: self._ended or self._waiting)
            self._consumer_waits = False

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def next(self) -> _Item | None:
        """Wait for the next item; return None at the end. Errors of `read` are raised again."""
        if not self._waiting:
            self._wait_for_item()
            if not self._waiting:
                if self._error is not None:
                    raise self._error
                return None
        item = self._waiting.take()
        if self._producer_waits:
            self._notify()
        return item

    def end(self, close: Callable[[], None] | None = None) -> None:
        """Let the thread end after what it reads now, and call `close`. What waits can be taken."""
        self._close = close
        self.is_stopped = True
        self._notify()

    def stop(self) -> None:
        """End the thread and drop the waiting items. Interrupt a pending `read` first."""
        self.end(self._close)
        self._thread.join()
        self._waiting.clear()


class TaskPrefetcher:
    """Prefetches batches in a task; the parameters are those of `ThreadPrefetcher`."""

    def __init__(self, read: Callable[[], Awaitable[pa.RecordBatch | None]], window: int) -> None:
        self._read = read
        self._waiting: _Window[pa.RecordBatch] = _Window(window, _measure_batch)
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


_SAMPLE_SECONDS = 0.05
"""The time over which a share or a rate is measured."""
_LEAST_SHARE = 0.2
"""The share of the time that a thread must be able to save, which is that of the faster side."""
_LEAST_GAIN = 1.03
"""How much faster a stream must become with the thread to keep it."""
_START_SECONDS = 0.1
"""The time before the first attempt: a short read can only lose by one."""
_PAUSE_SECONDS = 1.0
"""The time without a thread after it did not pay; doubled with each further attempt."""

WINDOW_BYTES = 32 << 20
"""The size of the batches that wait for the consumer, in bytes, unless an option sets another."""

Run = deque[pa.RecordBatch]
"""Batches that were decoded together, in their order."""


class ReaderSource:
    """Drives the connections of a reader.

    One thread at a time uses it: that of the consumer, or the one that reads ahead.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def receive(self) -> None:
        """Wait for frames and pass them to the reader, which records errors."""
        reader = self.reader
        stream, channel = reader.next_channel()
        try:
            frames = blocking.receive(channel, reader.options.stall_timeout)
        except SplitArrowError as error:
            reader.fail_receiving(error)
        else:
            reader.feed(stream, frames)

    def read(self) -> pa.RecordBatch | None:
        """Wait for the next batch and return it, or None at the end."""
        reader = self.reader
        while (batch := reader.take()) is None and reader.expects_more():
            self.receive()
        return batch

    def read_run(self) -> Run:
        """Wait for the next batch and return it with those decoded with it; empty at the end."""
        batch = self.read()
        if batch is None:
            return Run()
        run = self.reader.batches
        if not run:
            return Run((batch,))
        self.reader.batches = Run()
        run.appendleft(batch)
        return run

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.reader.close()

    def interrupt(self) -> None:
        """Let a thread that waits for the server fail."""
        self.reader.interrupt()


class Pace:
    """Decides whether to read ahead, by how long a stream and its consumer take in turns.

    Without a thread, receiving and consuming add up; with one, the longer of the two counts. A
    thread is tried after a tenth of a second if that would save a fifth of the time, and kept if
    the stream then is faster. It is not kept where the consumer holds the interpreter's lock, or
    where no core is idle. The next attempt follows later and later.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pause = _PAUSE_SECONDS
        self._paused_until = clock() + _START_SECONDS
        self._rate = 0.0
        self._is_kept = False
        self._restart(clock())

    def _restart(self, now: float) -> None:
        self._began = now
        self._waited = 0.0
        self._bytes = 0

    def enter(self) -> float:
        """Return the time at which the consumer asks for batches."""
        return self._clock()

    def wants_thread(self, entered: float, nbytes: int) -> bool:
        """Record bytes received without a thread; return whether to try one."""
        now = self._clock()
        self._waited += now - entered
        self._bytes += nbytes
        elapsed = now - self._began
        if elapsed < _SAMPLE_SECONDS:
            return False
        worked = elapsed - self._waited
        pays = min(worked, self._waited) >= _LEAST_SHARE * elapsed and now >= self._paused_until
        self._rate = self._bytes / elapsed
        self._restart(now)
        return pays

    def keeps_thread(self, nbytes: int) -> bool:
        """Record bytes taken from the thread; return whether to keep it."""
        if self._is_kept:
            return True
        self._bytes += nbytes
        now = self._clock()
        elapsed = now - self._began
        if elapsed < _SAMPLE_SECONDS:
            return True
        self._is_kept = self._bytes / elapsed >= _LEAST_GAIN * self._rate
        if not self._is_kept:
            self._paused_until = now + self._pause
            self._pause *= 2
            self._restart(now)
        return self._is_kept


def measure(run: Run) -> int:
    """Return the size of a run in bytes. Batches that were decoded together have one layout."""
    return run[0].get_total_buffer_size() * len(run)


def has_second_core() -> bool:
    """Return whether this process may use a second core."""
    return len(os.sched_getaffinity(0)) > 1


class ReadAhead:
    """Yields the runs of a source, read on the caller's thread or ahead of it.

    Without a `Pace`, it never reads ahead.
    """

    def __init__(self, source: ReaderSource, window: int, pace: Pace | None) -> None:
        self._source = source
        self._window = window
        self._pace = pace
        self.reader: ThreadPrefetcher[Run] | None = None
        """The thread that reads ahead now. Until it ends, it alone uses the source."""

    def next_run(self) -> Run:
        """Wait for the next batches and return them; an empty run at the end."""
        pace = self._pace
        if pace is None:
            return self._source.read_run()
        if (reader := self.reader) is not None:
            run = self._take(reader, pace)
            if run or reader.reached_end:
                return run
        entered = pace.enter()
        run = self._source.read_run()
        if run and pace.wants_thread(entered, measure(run)):
            source = self._source
            self.reader = ThreadPrefetcher(
                lambda: source.read_run() or None,
                self._window,
                measure,
                name="splitarrow-read-ahead",
            )
        return run

    def _take(self, reader: ThreadPrefetcher[Run], pace: Pace) -> Run:
        run = reader.next()
        if run is None:
            if not reader.reached_end:
                self.reader = None  # It was stopped because it did not pay.
            return Run()
        if not reader.is_stopped and not pace.keeps_thread(measure(run)):
            reader.end()
        return run

    def _abandon(self, reader: ThreadPrefetcher[Run]) -> None:
        """Interrupt the source, and let the thread close it. Nobody takes what waits."""
        reader.end(self._source.close)
        self._source.interrupt()

    def __del__(self) -> None:
        """End the thread of a stream that is dropped: the thread itself does not hold this."""
        if self.reader is not None:
            self._abandon(self.reader)

    def close(self) -> None:
        """End the thread, and drop the batches that wait."""
        if self.reader is not None:
            self._abandon(self.reader)
            self.reader.stop()
