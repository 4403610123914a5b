"""The driver of a reader whose thread waits for the server."""

from __future__ import annotations

import pyarrow as pa

from ...errors import ClosedError, SplitArrowError, TransportError
from ...transport import blocking as driver
from .read_ahead import Run
from .reader import Reader


class ReaderSource:
    """Drives the connections of a reader.

    One thread at a time uses it: that of the consumer, or the one that reads ahead.

    Parameters
    ----------
    reader : Reader
        The reader.
    stall_timeout : float or None
        The longest wait for data from the server, in seconds.
    """

    def __init__(self, reader: Reader, stall_timeout: float | None) -> None:
        self.reader = reader
        self.is_cancelled = False
        self._stall_timeout = stall_timeout

    def receive(self) -> None:
        """Wait for frames and pass them to the reader, which records errors."""
        stream, channel = self.reader.next_channel()
        try:
            frames = driver.receive(channel, self._stall_timeout)
        except SplitArrowError as error:
            if self.is_cancelled and isinstance(error, TransportError):
                error = ClosedError("the stream was cancelled")
            self.reader.fail(error)
        else:
            self.reader.feed(stream, frames)

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
        self.is_cancelled = True
        for channel in self.reader.channels.values():
            channel.interrupt()
