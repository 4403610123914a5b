"""Reading ahead of the consumer, within a window of bytes."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import anyio
import pyarrow as pa

from .reader import Reader


class ThreadAhead:
    """Reads ahead on a thread that lives as long as its stream is read.

    Parameters
    ----------
    reader : Reader
        The stream. From here on only the thread receives for it.
    receive : callable
        Waits for what comes next, and hands it to `reader`; notes errors there.
    window : int
        How many bytes of batches may wait for the consumer. A batch that is larger may wait
        alone.
    """

    def __init__(self, reader: Reader, receive: Callable[[], None], window: int) -> None:
        self._reader = reader
        self._receive = receive
        self._window = window
        self._changed = threading.Condition()
        self._done = False
        self._thread = threading.Thread(target=self._run, name="splitarrow-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        reader, changed = self._reader, self._changed
        while True:
            with changed:
                changed.wait_for(lambda: self._done or reader.waiting_bytes < self._window)
                if self._done or not reader.is_open:
                    self._done = True
                    changed.notify_all()
                    return
            self._receive()
            with changed:
                changed.notify_all()

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None if no more will come."""
        batch = self._reader.pop()
        if batch is None:
            with self._changed:
                self._changed.wait_for(lambda: self._done or self._reader.has_batches)
            batch = self._reader.pop()
        with self._changed:
            self._changed.notify_all()
        return batch

    def stop(self) -> None:
        """End the thread; a wait of its has to be interrupted before."""
        with self._changed:
            self._done = True
            self._changed.notify_all()
        self._thread.join()


class TaskAhead:
    """Reads ahead in a task; see `ThreadAhead`."""

    def __init__(self, reader: Reader, receive: Callable[[], Awaitable[None]], window: int) -> None:
        self._reader = reader
        self._receive = receive
        self._window = window
        self._changed = anyio.Event()
        self._done = False

    async def run(self) -> None:
        """Read until the stream ends or fails."""
        reader = self._reader
        try:
            while reader.is_open:
                if reader.waiting_bytes < self._window:
                    await self._receive()
                    self.tell()
                else:
                    await self._changed.wait()
        finally:
            self._done = True
            self.tell()

    def tell(self) -> None:
        """Wake whoever waits for a change: something came, or was taken."""
        self._changed.set()
        self._changed = anyio.Event()

    async def next(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None if no more will come."""
        while not self._reader.has_batches and not self._done:
            await self._changed.wait()
        return self._reader.pop()
