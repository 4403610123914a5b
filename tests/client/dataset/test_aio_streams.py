"""The asynchronous form of a dataset's stream, over one that needs no server."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import anyio
import pyarrow as pa
import pytest

from helpers.waiting import PATIENCE
from splitarrow.client.dataset.aio import AsyncDatasetStream
from splitarrow.errors import ClosedError, ConnectionLostError

BATCHES = [pa.record_batch({"n": [number]}) for number in range(3)]
SCHEMA = BATCHES[0].schema


class Blocking:
    """A blocking stream that yields given items, and waits at None until it is cancelled."""

    schema = SCHEMA
    error = ConnectionLostError("lost")
    is_exhausted = False
    footer_metadata: ClassVar = {b"k": b"v"}
    transport = "tcp,shm"
    rows_received = 3
    bytes_received = 24
    resumed = 2

    def __init__(self, *items: Any) -> None:
        self._items = list(items)
        self.calls: list[str] = []
        self.waiting = threading.Event()
        self._cancelled = threading.Event()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> pa.RecordBatch:
        if not self._items:
            raise StopIteration
        item = self._items.pop(0)
        if item is None:
            self.waiting.set()
            assert self._cancelled.wait(PATIENCE), "the read was not cancelled"
            raise ClosedError("the stream was cancelled")
        return item

    def cancel(self) -> None:
        self.calls.append("cancel")
        self._cancelled.set()

    def close(self) -> None:
        self.calls.append("close")

    def __repr__(self) -> str:
        return "<splitarrow.DatasetStream 'd'>"


def stream_of(*items: Any) -> tuple[AsyncDatasetStream, Blocking]:
    blocking: Any = Blocking(*items)
    return AsyncDatasetStream(lambda: blocking), blocking


async def test_the_batches_and_facts_are_those_of_the_blocking_stream() -> None:
    stream, blocking = stream_of(*BATCHES)
    async with stream as entered:
        assert entered is stream
        assert [batch async for batch in stream] == BATCHES
        for name in (
            *("schema", "error", "is_exhausted", "footer_metadata", "transport"),
            *("rows_received", "bytes_received", "resumed"),
        ):
            assert getattr(stream, name) is getattr(blocking, name)
        assert repr(stream) == "<splitarrow.AsyncDatasetStream 'd'>"
        assert blocking.calls == []
    assert blocking.calls == ["cancel", "close"]


async def test_a_stream_that_was_not_entered_holds_nothing() -> None:
    stream, blocking = stream_of(*BATCHES)
    assert repr(stream) == "<splitarrow.AsyncDatasetStream, not open>"
    stream.cancel()
    stream.close()
    assert blocking.calls == []
    with pytest.raises(ClosedError, match="is not open; enter it with 'async with'"):
        await anext(stream)
    with pytest.raises(ClosedError, match="is not open"):
        _ = stream.rows_received


async def test_a_cancelled_read_is_fetched_once() -> None:
    stream, _ = stream_of(*BATCHES)
    async with stream:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stream)
        assert await anext(stream) == BATCHES[0]
        assert [batch async for batch in stream] == BATCHES[1:]


async def test_a_batch_that_a_cancelled_read_has_left_comes_next() -> None:
    stream, _ = stream_of(*BATCHES)
    async with stream:
        stream._fetched["batches"].append(BATCHES[2])
        assert await anext(stream) == BATCHES[2]
        assert await anext(stream) == BATCHES[0]


async def test_cancelling_interrupts_a_read_in_another_task() -> None:
    stream, blocking = stream_of(None)

    async def cancel() -> None:
        await anyio.to_thread.run_sync(blocking.waiting.wait, PATIENCE)
        stream.cancel()

    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with pytest.raises(ClosedError, match="cancelled"):
            await anext(stream)


async def test_leaving_the_context_ends_the_thread_of_a_cancelled_read() -> None:
    stream, blocking = stream_of(None)

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.to_thread.run_sync(blocking.waiting.wait, PATIENCE)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        async with stream:
            tasks.start_soon(cancel, tasks.cancel_scope)
            await anext(stream)
        raise AssertionError("the read was not cancelled")
    assert blocking.calls == ["cancel", "close"]  # although the task is cancelled
