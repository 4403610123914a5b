"""Letting processes write to served files: streams of such a file fail, and its lease ends.

A process that opens a served file for writing waits until the server gives up its lease. Streams
that send the file notice it themselves, fail, and close the file. This task does it for those that
wait for their readers. A reader whose socket still holds pages of the file gets `_GRACE_SECONDS` to
read them; then its connection is reset, so that it never sees what the other process writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import anyio

from ..transport.memory.files import list_leased_files
from .logs import get_logger

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0


class FileSender(Protocol):
    """A session, as this module sees it."""

    @property
    def delays_writer(self) -> bool:
        """Whether a process waits to write to a file that the reader may not have read yet."""
        ...

    def reset(self) -> None:
        """Reset the connection."""
        ...


async def yield_to_writers(list_senders: Callable[[], Iterable[FileSender]]) -> None:
    """Let waiting processes write to served files, until cancelled.

    Parameters
    ----------
    list_senders : callable
        Returns the open sessions.
    """
    log = get_logger("files")
    deadlines: dict[FileSender, float] = {}
    while True:
        await anyio.sleep(_POLL_SECONDS)
        is_delayed = False
        for file in list_leased_files():
            file.yield_to_writers()
            is_delayed = is_delayed or file.delays_writer
        if not is_delayed:
            deadlines.clear()
            continue
        now = anyio.current_time()
        delaying = [sender for sender in list_senders() if sender.delays_writer]
        deadlines = {sender: deadlines.get(sender, now + _GRACE_SECONDS) for sender in delaying}
        for sender, deadline in deadlines.items():
            if now >= deadline:
                log.warning("connection reset: another process waits to write to a file it reads")
                sender.reset()
