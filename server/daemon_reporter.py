"""The report of a daemon that runs in this process."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Protocol, TypeVar

from .report import ProcessReport
from .streams import StreamRegistry

_RESPONSE_SECONDS = 5.0
"""The time in which an event loop that works responds."""
_T = TypeVar("_T")


class ReportingDaemon(Protocol):
    """A daemon, as its reporter sees it; see `Daemon`."""

    process: str
    loop: AbstractEventLoop
    streams: StreamRegistry

    @property
    def is_draining(self) -> bool:
        """Whether the daemon refuses new reads."""
        ...

    def report(self, *, streams: bool) -> ProcessReport:
        """Return what the process does now."""
        ...


class DaemonReporter:
    """Reports on a daemon whose event loop runs on another thread; see `Reporter`.

    Parameters
    ----------
    daemon : ReportingDaemon
        The daemon. It runs.
    """

    def __init__(self, daemon: ReportingDaemon) -> None:
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
        return process == self._daemon.process and self.cancel_number(number, owner)

    def cancel_number(self, number: int, owner: str | None) -> bool:
        """Cancel a stream, and return whether it exists."""
        daemon = self._daemon
        return bool(call_in_time(daemon.loop, lambda: daemon.streams.cancel(number, owner)))

    def cancel_ticket(self, ticket: bytes, principal: str) -> bool:
        """Cancel a principal's streams of one signed ticket, and return whether there are any."""
        daemon = self._daemon
        return bool(
            call_in_time(daemon.loop, lambda: daemon.streams.cancel_ticket(ticket, principal))
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
