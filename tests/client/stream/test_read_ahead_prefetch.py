"""Prefetching: bounded by its window, equal to reading on demand, and ended with its stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.waiting import wait_until
from splitarrow.client.stream.read_ahead import TaskPrefetcher, ThreadPrefetcher
from splitarrow.errors import ConnectionLostError, NotFoundError

BATCH_BYTES = 1 << 20
COUNT = 64
BATCH = pa.record_batch([pa.array(range(BATCH_BYTES // 8), pa.int64())], names=["n"])


class Source:
    """A number of batches, of which no more may be read than fit into a window.

    A test counts the batches that it takes in `taken`.
    """

    def __init__(self, count: int, window: int, error: Exception | None = None) -> None:
        self.count = count
        self.window = window
        self.error = error
        self.read_count = 0
        self.taken = 0

    def read(self) -> pa.RecordBatch | None:
        # The batch that the test is about to count is no longer in the window.
        waiting = self.read_count - self.taken - 1
        assert waiting * BATCH_BYTES < self.window, "a batch is read although the window is full"
        if self.read_count == self.count:
            if self.error is not None:
                raise self.error
            return None
        self.read_count += 1
        return BATCH

    async def read_async(self) -> pa.RecordBatch | None:
        await anyio.lowlevel.checkpoint()
        return self.read()


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.Table.from_batches([BATCH] * COUNT)


@pytest.fixture(scope="module")
def uri(table: pa.Table) -> Iterator[str]:
    with splitarrow.serve({"data": table}) as server:
        yield server.uri("data")


def prefetch_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "splitarrow-prefetch"]


@pytest.mark.parametrize("batches", [0, 1, 3, 1000])
def test_a_thread_fills_its_window_and_reads_no_further(batches: int) -> None:
    window = batches * BATCH_BYTES or 1
    source = Source(20, window)
    prefetcher = ThreadPrefetcher(source.read, window)
    wait_until(lambda: source.read_count == min(20, max(1, batches)), "a full window")
    while prefetcher.next() is not None:
        source.taken += 1
    assert source.taken == 20
    assert prefetcher.next() is None
    prefetcher.stop()
    assert not prefetch_threads()


async def test_a_task_fills_its_window_and_reads_no_further() -> None:
    window = 3 * BATCH_BYTES
    source = Source(20, window)
    prefetcher = TaskPrefetcher(source.read_async, window)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(prefetcher.run)
        with anyio.fail_after(10):
            while source.read_count < 3:
                await anyio.lowlevel.checkpoint()
        while await prefetcher.next() is not None:
            source.taken += 1
    assert source.taken == 20
    assert await prefetcher.next() is None


async def test_an_error_comes_after_the_batches_before_it() -> None:
    def source() -> Source:
        return Source(2, 1 << 30, ConnectionLostError("cut"))

    threaded = ThreadPrefetcher(source().read, 1 << 30)
    tasked = TaskPrefetcher(source().read_async, 1 << 30)
    await tasked.run()
    for _ in range(2):
        assert threaded.next() is BATCH
        assert await tasked.next() is BATCH
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            threaded.next()
        with pytest.raises(ConnectionLostError):
            await tasked.next()
    threaded.stop()


@pytest.mark.parametrize("window", [1, 3 * BATCH_BYTES, 1 << 30])
def test_a_prefetched_stream_equals_one_read_on_demand(
    uri: str, table: pa.Table, window: int
) -> None:
    with splitarrow.open(uri, prefetch_bytes=window) as stream:
        assert stream.read_all().equals(table)
    assert not prefetch_threads()


async def test_a_prefetched_async_stream_equals_one_read_on_demand(
    uri: str, table: pa.Table
) -> None:
    async with splitarrow.aio.open(uri, prefetch_bytes=8 * BATCH_BYTES) as stream:
        assert (await stream.read_all()).equals(table)


def allowed_bytes(taken: int, window: int) -> int:
    """The most that a stream may have received: batches taken, its window, and one receive."""
    return taken * BATCH_BYTES + window + 4 * BATCH_BYTES


def test_a_stream_receives_no_more_than_its_window(uri: str) -> None:
    window = 8 * BATCH_BYTES
    with splitarrow.open(uri, prefetch_bytes=window) as stream:
        next(stream)
        wait_until(lambda: stream.bytes_received >= window, "a full window")
        for taken in range(1, COUNT):
            assert stream.bytes_received <= allowed_bytes(taken, window)
            next(stream)
        assert next(stream, None) is None
    assert not prefetch_threads()


async def test_an_async_stream_receives_no_more_than_its_window(uri: str) -> None:
    window = 8 * BATCH_BYTES
    async with splitarrow.aio.open(uri, prefetch_bytes=window) as stream:
        await anext(stream)
        with anyio.fail_after(10):
            while stream.bytes_received < window:
                await anyio.lowlevel.checkpoint()
        for taken in range(1, COUNT):
            assert stream.bytes_received <= allowed_bytes(taken, window)
            await anext(stream)
        assert await anext(stream, None) is None


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_closing_a_stream_ends_its_thread(uri: str, taken: int) -> None:
    stream = splitarrow.open(uri, prefetch_bytes=4 * BATCH_BYTES)
    for _ in range(taken):
        next(stream)
    stream.close()
    assert not prefetch_threads()
    with pytest.raises(splitarrow.errors.ClosedError):
        next(stream)


async def test_closing_an_async_stream_ends_its_task(uri: str) -> None:
    before = len(anyio.get_running_tasks())
    async with splitarrow.aio.open(uri, prefetch_bytes=BATCH_BYTES) as stream:
        await anext(stream)
        assert len(anyio.get_running_tasks()) == before + 1
    assert len(anyio.get_running_tasks()) == before


async def test_an_error_in_the_context_of_a_stream_is_not_wrapped(uri: str) -> None:
    async def fail() -> None:
        async with splitarrow.aio.open(uri, prefetch_bytes=BATCH_BYTES) as stream:
            await anext(stream)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()


def open_blocking(uri: str) -> None:
    splitarrow.open(uri, "nothing", prefetch_bytes=BATCH_BYTES)


def open_async(uri: str) -> None:
    async def enter() -> None:
        async with splitarrow.aio.open(uri, "nothing", prefetch_bytes=BATCH_BYTES):
            pass

    anyio.run(enter)


@pytest.mark.parametrize("open_stream", [open_blocking, open_async])
def test_a_refusal_is_not_wrapped(uri: str, open_stream: Callable[[str], None]) -> None:
    with pytest.raises(NotFoundError):
        open_stream(uri[: uri.index("&ticket")])


@pytest.mark.parametrize("error", [None, NotFoundError("gone")])
async def test_a_consumer_that_waits_for_the_end_is_woken(error: Exception | None) -> None:
    gate = anyio.Event()

    async def read() -> None:
        await gate.wait()
        if error is not None:
            raise error

    prefetcher = TaskPrefetcher(read, 1)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prefetcher.run)

            async def release() -> None:
                await anyio.lowlevel.checkpoint()
                gate.set()

            tasks.start_soon(release)
            if error is None:
                assert await prefetcher.next() is None
            else:
                with pytest.raises(NotFoundError):
                    await prefetcher.next()
