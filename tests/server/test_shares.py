"""Principals get equal shares of worker threads and of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio import CapacityLimiter

import splitarrow
from helpers.clock import Clock
from helpers.files import write_parquet
from helpers.publication import numbers
from helpers.waiting import wait_until
from splitarrow.server.prefetch import Prefetch
from splitarrow.server.shares import StreamMemory, ThreadShares


class Work:
    """Tasks of principals that hold a thread until they are told to end."""

    def __init__(self, shares: ThreadShares) -> None:
        self._shares = shares
        self._ends: dict[str, list[anyio.Event]] = {}
        self.began: list[str] = []
        """The principals of the tasks that have begun, in order."""

    async def run(self, principal: str) -> None:
        end = anyio.Event()
        await self._shares.acquire(principal)
        try:
            self.began.append(principal)
            self._ends.setdefault(principal, []).append(end)
            await end.wait()
        finally:
            self._shares.release(principal)

    async def end(self, principal: str) -> None:
        """End the oldest running task of a principal."""
        self._ends[principal].pop(0).set()
        await anyio.wait_all_tasks_blocked()

    def count(self, principal: str) -> int:
        """Return the number of running tasks of a principal."""
        return len(self._ends.get(principal, []))


async def start(tasks: anyio.abc.TaskGroup, work: Work, principals: str) -> None:
    for principal in principals:
        tasks.start_soon(work.run, principal)
    await anyio.wait_all_tasks_blocked()


async def test_a_principal_does_not_wait_behind_the_many_streams_of_another() -> None:
    work = Work(ThreadShares(threads=1, processors=8))
    async with anyio.create_task_group() as tasks:
        await start(tasks, work, "a" * 60 + "b" + "cc")
        for principal in "abca":
            await work.end(principal)
        assert "".join(work.began) == "abcac"
        tasks.cancel_scope.cancel()


async def test_a_free_thread_goes_to_the_principal_with_the_fewest() -> None:
    work = Work(ThreadShares(threads=3, processors=8))
    async with anyio.create_task_group() as tasks:
        await start(tasks, work, "aaa" + "bb" + "a")
        assert (work.count("a"), work.count("b")) == (3, 0)
        await work.end("a")
        assert (work.count("a"), work.count("b")) == (2, 1)
        await work.end("b")  # a has its part of the threads
        assert (work.count("a"), work.count("b")) == (2, 1)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("threads", "processors", "principals", "most"),
    [
        (16, 2, "a", 16),
        (16, 2, "ab", 2),
        (16, 2, "abcdef", 1),
        (16, 32, "ab", 8),
        (16, 3, "abc", 2),
    ],
)
async def test_active_principals_divide_two_threads_for_each_processor(
    threads: int, processors: int, principals: str, most: int
) -> None:
    clock = Clock()
    shares = ThreadShares(threads, processors, clock)
    work = Work(shares)
    for principal in principals:
        shares.record(principal)
    async with anyio.create_task_group() as tasks:
        await start(tasks, work, "a" * 20)
        assert work.count("a") == most
        shares.lend(1)  # one of them waits for memory
        await anyio.wait_all_tasks_blocked()
        assert work.count("a") == most + 1
        shares.lend(-1)
        clock.now += 2  # the others are not active any more
        await work.end("a")
        assert work.count("a") == threads
        tasks.cancel_scope.cancel()


async def test_a_cancelled_task_gives_up_its_place_and_its_thread() -> None:
    work = Work(ThreadShares(threads=1, processors=8))
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as cancelled:
            await start(cancelled, work, "aab")
            cancelled.cancel_scope.cancel()
        await start(tasks, work, "c")
        assert work.began == ["a", "c"]
        tasks.cancel_scope.cancel()


def test_memory_goes_to_the_principal_that_holds_least_and_then_in_order() -> None:
    memory = StreamMemory(100)
    woken: list[str] = []
    first, second, third, other = (memory.share(name) for name in ("a", "a", "a", "b"))
    first.hold(45)
    assert not second.reserve(10, lambda: woken.append("second"))  # half belongs to others
    assert not third.reserve(6, lambda: woken.append("third"))
    assert other.reserve(50, lambda: woken.append("other"))
    assert memory.held == 95
    first.hold(43)
    assert woken == ["third"]  # the other one has no room yet
    first.hold(30)
    assert woken == ["third", "second"]
    fourth, fifth, later = memory.share("a"), memory.share("a"), memory.share("b")
    assert not fourth.reserve(10, lambda: woken.append("fourth"))
    assert not fifth.reserve(10, lambda: woken.append("fifth"))
    assert not later.reserve(10, lambda: woken.append("later"))
    other.hold(20)
    assert woken[2:] == ["later"]  # its principal held least; a has its half
    first.close()
    assert woken[2:] == ["later", "fourth", "fifth"]


def test_each_stream_may_hold_a_group_beyond_the_limit() -> None:
    memory = StreamMemory(10)
    shares = [memory.share("a") for _ in range(3)]
    for share in shares:
        share.hold(100)
    assert memory.held == 300
    assert not shares[0].reserve(1, lambda: None)
    for share in shares:
        share.close()
        share.close()
        share.hold(5)
        assert not share.reserve(1, lambda: None)
    assert memory.held == 0


@pytest.mark.parametrize(
    ("streams", "mebibytes"), [(0, 64), (1, 64), (4, 16), (64, 1), (2048, 0.5)]
)
def test_batches_shrink_as_streams_share_the_memory(streams: int, mebibytes: float) -> None:
    memory = StreamMemory(256 << 20)
    shares = [memory.share("a") for _ in range(streams)]
    assert memory.batch_bytes == mebibytes * (1 << 20)
    for share in shares:
        share.close()
    assert memory.batch_bytes == 64 << 20


async def test_a_stream_goes_ahead_only_while_there_is_room() -> None:
    memory, threads = StreamMemory(60), CapacityLimiter(1)
    prepared = [0, 0]

    def prepare(stream: int) -> Iterator[bytes]:
        for _ in range(5):
            prepared[stream] += 1
            yield bytes(10)

    async with anyio.create_task_group() as tasks:

        def prefetch(stream: int) -> Prefetch[bytes]:
            share = memory.share("a")
            return Prefetch(
                prepare(stream), lambda: None, tasks, threads, memory=share, measure=len
            )

        with prefetch(0) as first, prefetch(1) as second:
            assert await anext(first)
            assert await anext(second)
            # What a stream wants is held before a thread has prepared it.
            await anyio.to_thread.run_sync(
                wait_until, lambda: (memory.held, sum(prepared)) == (30, 3)
            )
            await anyio.wait_all_tasks_blocked()
            # 20 bytes are sent, and one stream has the next 10.
            assert (sorted(prepared), memory.held) == ([1, 2], 30)
            waiting = [first, second][prepared.index(1)]
            going = second if waiting is first else first
            for _ in range(4):  # the reader of one stream reads all
                assert await anext(waiting)
            with pytest.raises(StopAsyncIteration):
                await anext(waiting)
            await anyio.wait_all_tasks_blocked()
            for _ in range(4):
                assert await anext(going)
        assert prepared == [5, 5]
    assert memory.held == 0


def test_streams_that_nobody_reads_make_progress_in_any_order(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "n.parquet", numbers(0, 60_000), row_group_size=10_000)
    with splitarrow.serve({"n": path}, stream_memory="64KiB", batch_rows=10_000) as server:
        for format in ("arrow", "vortex"):
            streams = [splitarrow.open(server.uri("n"), format=format) for _ in range(6)]
            for stream in reversed(streams):
                assert stream.read_all().num_rows == 60_000
                stream.close()
