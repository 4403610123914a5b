"""Reads in progress: which requests they include, and when they end."""

from __future__ import annotations

import anyio
import pytest

from helpers.clock import Clock
from splitarrow.protocol.request import Request
from splitarrow.server.reads import LINGER_SECONDS, ReadsInProgress

PART = Request("d", shard=3)
VERSION = Request("d", version="7")
WHOLE = Request("d")
OTHER = Request("other", shard=3)


def test_without_a_read_nothing_is_in_progress() -> None:
    reads = ReadsInProgress()
    assert not reads
    assert not reads.includes(PART)


def test_a_held_dataset_includes_its_parts_only() -> None:
    reads = ReadsInProgress()
    with reads.hold("d"):
        with reads.hold("d"):
            assert reads
        assert [reads.includes(each) for each in (PART, VERSION, WHOLE, OTHER)] == [
            *(True, True),
            *(False, False),
        ]
    assert not reads


def test_a_part_lingers_after_its_stream() -> None:
    clock = Clock()
    reads = ReadsInProgress(clock)
    with reads.stream(PART):
        clock.now += 10 * LINGER_SECONDS
        assert reads.includes(PART)
    clock.now += 0.9 * LINGER_SECONDS
    assert reads.includes(PART)
    clock.now += 0.2 * LINGER_SECONDS
    assert not reads
    assert not reads.includes(PART)


def test_a_whole_dataset_does_not_linger() -> None:
    reads = ReadsInProgress()
    with reads.stream(WHOLE):
        assert not reads


def test_a_hold_ends_the_lingering_of_its_parts() -> None:
    reads = ReadsInProgress(Clock())
    with reads.hold("d"), reads.stream(PART):
        pass
    assert not reads
    with reads.stream(PART):
        pass
    with reads.hold("d"):
        pass
    assert not reads


def test_a_stream_or_hold_that_fails_has_ended() -> None:
    reads = ReadsInProgress(Clock())
    with pytest.raises(ValueError, match="broken"), reads.hold("d"), reads.stream(PART):
        raise ValueError("broken")
    assert not reads


async def test_all_that_wait_return_when_the_last_read_ends() -> None:
    reads = ReadsInProgress()
    returned: list[int] = []

    async def wait(number: int) -> None:
        await reads.wait_idle()
        returned.append(number)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            with reads.hold("d"), reads.hold("e"):
                for number in range(3):
                    tasks.start_soon(wait, number)
                    await anyio.wait_all_tasks_blocked()
            assert returned == []
        assert sorted(returned) == [0, 1, 2]


async def test_a_wait_returns_after_the_last_part_has_lingered() -> None:
    reads = ReadsInProgress()
    with reads.stream(PART):
        pass
    started = anyio.current_time()
    with anyio.fail_after(20):
        await reads.wait_idle()
    assert anyio.current_time() - started > 0.5 * LINGER_SECONDS


def test_the_reads_of_other_processes_count_but_are_not_reported_as_its_own() -> None:
    reads = ReadsInProgress()
    reads.set_elsewhere({"d"})
    assert reads
    assert reads.includes(PART)
    assert not reads.includes(WHOLE)
    assert not reads.includes(OTHER)
    assert reads.names() == frozenset()
    with reads.hold("other"):
        assert reads.names() == {"other"}
        reads.set_elsewhere(())
        assert not reads.includes(PART)
        assert reads
    assert not reads


def test_waiting_ends_when_no_other_process_has_a_read() -> None:
    async def run() -> None:
        reads = ReadsInProgress()
        reads.set_elsewhere({"d"})
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reads.wait_idle)
                await anyio.wait_all_tasks_blocked()
                reads.set_elsewhere(())

    anyio.run(run)


def test_no_read_is_in_progress_after_the_end() -> None:
    async def run() -> None:
        reads = ReadsInProgress()
        reads.set_elsewhere({"other"})
        with reads.hold("d"), reads.stream(PART), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reads.wait_idle)
                await anyio.wait_all_tasks_blocked()
                reads.end()
            assert not reads
            assert not reads.includes(PART)

    anyio.run(run)
