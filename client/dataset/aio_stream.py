"""The asynchronous form of `DatasetStream`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pyarrow as pa
from anyio import CancelScope, to_thread

from ...errors import ClosedError, SplitArrowError
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ..stream.async_batch_stream import AsyncBatchStream
from ..stream.custom_metadata import CustomMetadata
from .dataset_stream import DatasetStream
from .threads import open_in_thread, run_in_thread


class AsyncDatasetStream(AsyncBatchStream):
    """A dataset being read: an async context manager and an async iterator of record batches.

    `AsyncClient.read` returns it. It connects when the context is entered. A cancelled read loses
    no rows: the next read returns them. See `DatasetStream` for the rest.
    """

    def __init__(self, open_stream: Callable[[], DatasetStream]) -> None:
        self._open_stream = open_stream
        self._stream: DatasetStream | None = None
        self._lock = threading.Lock()
        self._fetched: deque[pa.RecordBatch | None] = deque()
        self._fetched_tensors: deque[AnyTensor | None] = deque()
        self._fetched_arrays: deque[Any] = deque()

    async def __aenter__(self) -> AsyncDatasetStream:
        self._stream = await open_in_thread(self._open_stream)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with CancelScope(shield=True):
            await to_thread.run_sync(self.close)

    @property
    def _entered(self) -> DatasetStream:
        if self._stream is None:
            raise ClosedError("the stream is not open; enter it with 'async with'")
        return self._stream

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._entered.schema

    @property
    def error(self) -> SplitArrowError | None:
        """The error that ended the stream; None if there was none."""
        return self._entered.error

    @property
    def is_exhausted(self) -> bool:
        """Whether the stream was read to its end, and has closed itself."""
        return self._entered.is_exhausted

    @property
    def footer_metadata(self) -> CustomMetadata | None:
        """The custom metadata of the file's footer; see `DatasetStream.footer_metadata`."""
        return self._entered.footer_metadata

    @property
    def format(self) -> str:
        """The format of the record batches that arrive; see `DatasetStream.format`."""
        return self._entered.format

    @property
    def transport(self) -> str:
        """The transports in use, separated by commas: ``tcp``, ``shm``, ``flight`` and so on."""
        return self._entered.transport

    @property
    def rows_received(self) -> int:
        """The number of rows received and decoded so far."""
        return self._entered.rows_received

    @property
    def bytes_received(self) -> int:
        """The size of everything received so far, in bytes."""
        return self._entered.bytes_received

    @property
    def resumed(self) -> int:
        """The number of times that the read continued over a new connection."""
        return self._entered.resumed

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next record batch; raises as `DatasetStream` does."""
        await run_in_thread(self._fetch)
        batch = self._fetched.popleft()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _fetch(self) -> None:
        """Fetch a batch, unless the thread of a cancelled read has left one."""
        with self._lock:
            if not self._fetched:
                self._fetched.append(next(self._entered, None))

    async def next_tensor(self) -> AnyTensor | None:
        """Return the next tensor, or None at the end; raises as `DatasetStream` does."""
        await run_in_thread(self._fetch_tensor)
        return self._fetched_tensors.popleft()

    async def next_array(self) -> Any:
        """Return the next Vortex array, or None at the end; raises as `DatasetStream` does."""
        await run_in_thread(self._fetch_array)
        return self._fetched_arrays.popleft()

    def _fetch_array(self) -> None:
        """Fetch an array, unless the thread of a cancelled read has left one."""
        with self._lock:
            if not self._fetched_arrays:
                self._fetched_arrays.append(self._entered.next_array())

    def _fetch_tensor(self) -> None:
        """Fetch a tensor, unless the thread of a cancelled read has left one."""
        with self._lock:
            if not self._fetched_tensors:
                self._fetched_tensors.append(self._entered.next_tensor())

    def cancel(self) -> None:
        """Interrupt a read that waits in another task: it raises `ClosedError`."""
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Close all connections. Batches that were returned stay valid. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()
            with self._lock:  # the thread of a cancelled read may still use the stream
                self._stream.close()

    def __repr__(self) -> str:
        if self._stream is None:
            return "<splitarrow.AsyncDatasetStream, not open>"
        return repr(self._stream).replace("DatasetStream", "AsyncDatasetStream")
