"""Blocking calls in threads: a cancelled task does not wait, and leaves nothing open."""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio
import pytest

from helpers.waiting import wait_until
from splitarrow.client.dataset import aio
from splitarrow.client.dataset.aio import open_in_thread, run_in_thread


class Resource:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_a_call_returns_its_result_or_raises_its_error() -> None:
    resource = Resource()
    assert await run_in_thread(lambda: 7) == 7
    assert await open_in_thread(lambda: resource) is resource
    assert not resource.is_closed
    for call in (run_in_thread, open_in_thread):
        with pytest.raises(ZeroDivisionError):
            await call(lambda: 1 // 0)  # pyright: ignore[reportArgumentType]


async def test_a_cancelled_task_does_not_wait_for_its_thread() -> None:
    released = threading.Event()
    resource = Resource()

    def wait() -> Resource:
        assert released.wait(10), "the task waits for the thread"
        return resource

    try:
        for call in (run_in_thread, open_in_thread):
            with anyio.move_on_after(0.01) as scope:
                await call(wait)
            assert scope.cancelled_caught
            assert not resource.is_closed
    finally:
        released.set()
    # What a cancelled task opens is closed by its thread.
    wait_until(lambda: resource.is_closed)


async def test_what_was_opened_before_the_task_was_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run_and_fail(function: Callable[[], None]) -> None:
        function()
        raise KeyboardInterrupt

    monkeypatch.setattr(aio, "run_in_thread", run_and_fail)
    resource = Resource()
    with pytest.raises(KeyboardInterrupt):
        await open_in_thread(lambda: resource)
    assert resource.is_closed
