"""Run a server until a signal drains it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from .logs import get_logger


class Drainable(Protocol):
    """A daemon, or the workers that share its listeners."""

    async def run(self, *, task_status: TaskStatus[object]) -> None:
        """Report that the server is ready. Return when it has drained or was cut."""
        ...

    def drain(self) -> None:
        """Refuse new streams, and let the running ones finish."""
        ...

    def cut(self) -> None:
        """End every stream now."""
        ...


@contextmanager
def paused_collection() -> Generator[None]:
    """Pause the garbage collector of this process until a server runs in it.

    What a server loads stays, and is never examined: that would hold up its readers for a twentieth
    of a second, and longer with many files.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _resume_collection() -> None:
    """Resume what `paused_collection` has paused, except for the objects of this moment."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


async def run_until_signalled(
    server: Drainable,
    signals: Sequence[signal.Signals],
    on_ready: Callable[[TaskGroup], None],
    on_drain: Callable[[], object] = lambda: None,
    on_hangup: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a server. The first signal drains it, and the second one cuts its streams.

    SIGHUP calls `on_hangup`; those that arrive meanwhile lead to one more call. If the terminal has
    gone, SIGHUP drains instead.
    """
    async with anyio.create_task_group() as background:
        async with anyio.create_task_group() as serving:
            await serving.start(server.run)
            _resume_collection()
            await background.start(_drain_on_signals, server, signals, on_drain)
            if on_hangup is not None:
                await background.start(_call_on_hangup, server, on_hangup)
            on_ready(background)
        background.cancel_scope.cancel()


async def _drain_on_signals(
    server: Drainable,
    numbers: Sequence[signal.Signals],
    on_drain: Callable[[], object],
    *,
    task_status: TaskStatus[None],
) -> None:
    log = get_logger("daemon")
    with anyio.open_signal_receiver(*numbers) as received:
        task_status.started()
        await anext(received)
        log.info("draining; another signal cuts the running streams")
        on_drain()
        server.drain()
        await anext(received)
        log.warning("cutting the running streams")
        server.cut()


async def _call_on_hangup(
    server: Drainable, on_hangup: Callable[[], Awaitable[None]], *, task_status: TaskStatus[None]
) -> None:
    had_terminal = _has_terminal()
    with anyio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            if had_terminal and not _has_terminal():
                server.drain()
            else:
                await on_hangup()


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal that still exists."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
