"""Blocking calls in worker threads, for the asynchronous clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from anyio import to_thread

T = TypeVar("T")


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


async def run_in_thread(function: Callable[[], T]) -> T:
    """Call a function in a worker thread. A task that is cancelled does not wait for it."""
    return await to_thread.run_sync(function, abandon_on_cancel=True)


async def open_in_thread(open_resource: Callable[[], C]) -> C:
    """Open a resource in a worker thread.

    If the task is cancelled, it does not wait, and the thread closes the resource.
    """
    lock = threading.Lock()
    abandoned = False
    opened: list[C] = []

    def open_or_close() -> None:
        resource = open_resource()
        with lock:
            if not abandoned:
                opened.append(resource)
                return
        resource.close()

    try:
        await run_in_thread(open_or_close)
    except BaseException:
        with lock:
            abandoned = True
        for resource in opened:
            resource.close()
        raise
    return opened[0]
