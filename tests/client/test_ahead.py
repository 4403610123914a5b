"""Reading ahead: bounded, equal to reading on demand, and gone with its stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import anyio
import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import NotFoundError

BATCH = 1 << 20
COUNT = 64


@pytest.fixture(scope="module")
def table() -> pa.Table:
    batch = pa.record_batch([pa.array(range(BATCH // 8), pa.int64())], names=["n"])
    return pa.Table.from_batches([batch] * COUNT)


@pytest.fixture(scope="module")
def uri(table: pa.Table) -> Iterator[str]:
    with splitarrow.serve({"data": table}) as server:
        yield server.uri("data")


def settled(value: Callable[[], int]) -> int:
    """Return a value once it has stayed the same for a while."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < 0.2:
        now = value()
        if now != last:
            last, since = now, time.monotonic()
        threading.Event().wait(0.01)
    return last


def ahead_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "splitarrow-ahead"]


@pytest.mark.parametrize("window", [1, 3 * BATCH, 1 << 30])
def test_equal(uri: str, table: pa.Table, window: int) -> None:
    with splitarrow.open(uri, prefetch_bytes=window) as stream:
        assert stream.read_all().equals(table)
    assert not ahead_threads()


def test_the_window_bounds_what_waits(uri: str) -> None:
    window = 8 * BATCH
    with splitarrow.open(uri, prefetch_bytes=window) as stream:
        next(stream)
        received = settled(lambda: stream.bytes_received)
        assert window <= received
        # The window, what one read may add to it, and the batch that was taken.
        assert received <= window + 4 * BATCH
        assert sum(1 for _ in stream) == COUNT - 1
    assert not ahead_threads()


def test_close_in_the_middle_ends_the_thread(uri: str) -> None:
    for taken in (0, 1, 5):
        stream = splitarrow.open(uri, prefetch_bytes=4 * BATCH)
        for _ in range(taken):
            next(stream)
        stream.close()
        assert not ahead_threads()


async def test_async_equal_and_bounded(uri: str, table: pa.Table) -> None:
    window = 8 * BATCH
    async with splitarrow.aio.open(uri, prefetch_bytes=window) as stream:
        await anext(stream)
        received = -1
        while received != stream.bytes_received:
            received = stream.bytes_received
            await anyio.sleep(0.2)
        assert window <= received <= window + 4 * BATCH
    async with splitarrow.aio.open(uri, prefetch_bytes=window) as stream:
        assert (await stream.read_all()).equals(table)


async def test_errors_of_the_body_pass_through(uri: str) -> None:
    async def fail() -> None:
        async with splitarrow.aio.open(uri, prefetch_bytes=BATCH) as stream:
            await anext(stream)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()


async def test_errors_of_the_server_pass_through(uri: str) -> None:
    with pytest.raises(NotFoundError):
        async with splitarrow.aio.open(uri[: uri.index("&ticket")], "nothing") as stream:
            await stream.read_all()
    with pytest.raises(NotFoundError):
        splitarrow.open(uri[: uri.index("&ticket")], "nothing", prefetch_bytes=BATCH)
