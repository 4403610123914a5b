"""The report of a daemon that runs in this process."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TypeVar

from .daemon import Daemon
from .report import ProcessReport

_RESPONSE_SECONDS = 5.0
"""The time in which an event loop that works responds."""
_T = TypeVar("_T")


class DaemonReporter:
    """Reports on a daemon whose event loop runs on another thread; see `Reporter`.

    Parameters
    ----------
    daemon : Daemon
        The daemon. It runs.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @property
    def draining(self) -> bool:
        """Whether the daemon refuses new reads."""
        return self._daemon.is_draining

    def responds(self) -> bool:
        """Return whether the event loop runs."""
        return responds(self._daemon.loop)

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the report of the daemon."""
        return [self._daemon.report(streams=streams)]

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream, and return whether it exists."""
        daemon = self._daemon
        return process == daemon.process and bool(
            call_in_time(daemon.loop, lambda: daemon.streams.cancel(number, owner))
        )


def responds(loop: AbstractEventLoop) -> bool:
    """Return whether an event loop runs."""
    return call_in_time(loop, lambda: True) is not None


def call_in_time(loop: AbstractEventLoop, function: Callable[[], _T]) -> _T | None:
    """Return the result of a function that an event loop calls; None if it does not do so soon.

    Parameters
    ----------
    loop : AbstractEventLoop
        The event loop, which runs on another thread.
    function : callable
        The function. It raises nothing.
    """

    async def call() -> _T:
        return function()

    # In a task, because functions of anyio need one.
    coroutine = call()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:  # the loop is closed
        coroutine.close()
        return None
    try:
        return future.result(_RESPONSE_SECONDS)
    except TimeoutError:
        future.cancel()
        return None
