"""Several endpoints read at a time, and handed out in their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import pyarrow as pa

from ..errors import ClosedError, InvalidDataError, SplitArrowError
from .batches import BatchStream
from .resuming import ResumingPart


class DatasetStream(BatchStream):
    """A dataset being read: a context manager and an iterator of record batches.

    Made by `Client.read`. The batches belong to the caller, and stay valid after the stream is
    closed. One thread at a time may read; any thread may `cancel`.

    Parameters
    ----------
    name : str
        The dataset.
    schema : pyarrow.Schema
        What the control plane says that the schema is; it counts where there are no endpoints.
    parts : sequence of ResumingPart
        The endpoints, in order.
    at_once : int
        How many of them are read at a time.
    window : int
        How many bytes of batches may wait for the consumer, over all endpoints.
    prefetch : bool
        Whether to read ahead even where there is but one endpoint.
    limit : int, optional
        How many rows to hand out at most, of all endpoints together.
    """

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        parts: Sequence[ResumingPart],
        at_once: int,
        window: int,
        *,
        prefetch: bool = False,
        limit: int | None = None,
    ) -> None:
        self._name = name
        self._parts = list(parts)
        self._at_once = max(1, at_once)
        share = max(1, window // min(self._at_once, max(1, len(self._parts))))
        self._share = share
        self._threaded = prefetch or len(self._parts) > 1
        self._ahead: deque[_Ahead] = deque()
        self._started = self._current = 0
        self._closed = self._cancelled = False
        self._error: BaseException | None = None
        self._limit = self._left = limit
        self._schema = schema
        if self._parts:
            try:
                self._parts[0].open(first=True)
            except BaseException:
                self.close()
                raise
            self._schema = self._parts[0].schema

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._schema

    @property
    def transport(self) -> str:
        """How it comes: ``tcp``, ``shm``, …; ``flight`` for DoGet; several with commas."""
        taken = [part.transport for part in self._parts if part.transport]
        return ",".join(dict.fromkeys(taken)) or "flight"

    @property
    def rows_received(self) -> int:
        """How many rows have been received and decoded."""
        received = sum(part.rows for part in self._parts)
        return received if self._limit is None else min(received, self._limit)

    @property
    def bytes_received(self) -> int:
        """How many bytes have arrived, headers included."""
        return sum(part.bytes_received for part in self._parts)

    @property
    def resumed(self) -> int:
        """How many times the reading went on over a new connection."""
        return sum(part.resumed for part in self._parts)

    def __next__(self) -> pa.RecordBatch:
        """Return the next record batch.

        Raises
        ------
        StopIteration
            At the proven end of all endpoints, and only there.
        ProtocolError, RemoteError, TransportError
            If the stream breaks. Everything returned before is good, and not the whole.
        """
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ClosedError("the stream is closed", stream=self._name)
        while self._current < len(self._parts) and self._left != 0:
            try:
                batch = self._next_of_part()
                if batch is not None:
                    return self._within_limit(batch)
            except (SplitArrowError, MemoryError) as error:
                if self._cancelled and not isinstance(error, ClosedError):
                    error = ClosedError("the stream was cancelled", stream=self._name)
                self._error = error
                self._let_go()
                raise error from None
            self._current += 1
        raise StopIteration

    def _within_limit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
            if not self._left:
                self._let_go()
        return batch

    def _next_of_part(self) -> pa.RecordBatch | None:
        if not self._threaded:
            return self._checked(self._parts[self._current].next())
        while self._started < min(len(self._parts), self._current + self._at_once):
            self._ahead.append(_Ahead(self._parts[self._started], self._share))
            self._started += 1
        batch = self._checked(self._ahead[0].next())
        if batch is None:
            self._ahead.popleft().stop()
        return batch

    def _checked(self, batch: pa.RecordBatch | None) -> pa.RecordBatch | None:
        if batch is not None and not batch.schema.equals(self._schema):
            raise InvalidDataError("the parts have different schemas", stream=self._name)
        if batch is None:
            self._parts[self._current].close()
        return batch

    def cancel(self) -> None:
        """Stop a read that another thread waits in: it raises `ClosedError`."""
        self._cancelled = True
        for part in self._parts:
            part.cancel()

    def close(self) -> None:
        """Close all connections. Batches already handed out stay valid. Idempotent."""
        if not self._closed:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        for part in self._parts:
            part.cancel()
        while self._ahead:
            self._ahead.popleft().stop()
        for part in self._parts:
            part.close()

    def __enter__(self) -> DatasetStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<splitarrow.DatasetStream {self._name!r} {state}, {len(self._parts)} parts>"


class _Ahead:
    """Reads one endpoint on a thread, as far ahead as its window allows."""

    def __init__(self, part: ResumingPart, window: int) -> None:
        self._part = part
        self._window = window
        self._changed = threading.Condition()
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()
        self._waiting = 0
        self._done = self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="splitarrow-part", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stopped and (batch := self._part.next()) is not None:
                nbytes = batch.nbytes
                with self._changed:
                    self._batches.append((batch, nbytes))
                    self._waiting += nbytes
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopped or self._waiting < self._window)
        except BaseException as failed:
            error = failed
        with self._changed:
            self._error = error
            self._done = True
            self._changed.notify_all()

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, waiting for it; None at the end; raise what the read raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._batches)
            if self._batches:
                batch, nbytes = self._batches.popleft()
                self._waiting -= nbytes
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def stop(self) -> None:
        """End the thread; the part has to be cancelled, or at its end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
