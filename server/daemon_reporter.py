"""The report of a daemon that runs in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from anyio.from_thread import BlockingPortal

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
        return responds(self._daemon.portal)

    def reports(self, *, streams: bool = False) -> list[ProcessReport]:
        """Return the report of the daemon."""
        return [self._daemon.report(streams=streams)]

    def cancel(self, process: str, number: int, owner: str | None) -> bool:
        """Cancel a stream, and return whether it exists."""
        daemon = self._daemon
        return process == daemon.process and bool(
            call_in_time(daemon.portal, lambda: daemon.streams.cancel(number, owner))
        )


def responds(portal: BlockingPortal) -> bool:
    """Return whether the event loop of a portal runs."""
    return call_in_time(portal, lambda: True) is not None


def call_in_time(portal: BlockingPortal, function: Callable[[], _T]) -> _T | None:
    """Return the result of a function that an event loop calls; None if it does not do so soon."""

    async def call() -> _T:
        return function()

    with suppress(TimeoutError, RuntimeError):  # the loop is busy, or has ended
        future: Future[_T] = portal.start_task_soon(call)
        return future.result(_RESPONSE_SECONDS)
    return None
