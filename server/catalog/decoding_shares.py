"""Shares of the memory in which a process decodes row groups.

A reader holds the share of a row group while it decodes it. Readers wait for each other, in the
order in which they came, for a limited time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from anyio import from_thread

from ...errors import ClosedError, ExhaustedError
from ...formats.text import format_bytes, format_size

WAIT_SECONDS = 60.0
"""The longest time that a reader waits for its share, in seconds."""
MAX_WAITING = 64
"""The number of readers that wait at a time. Each has a thread."""
_POLL_SECONDS = 0.1


class DecodingCancelledError(ClosedError):
    """The reader left while it waited for its share."""


class DecodingShares:
    """Divides a number of bytes among the row groups that are decoded. Safe to use from threads.

    A waiting reader blocks its thread. `report_waiting` is called with 1 before, and with -1 after
    it, so that the event loop can lend another thread to the readers that have their shares.
    """

    def __init__(
        self,
        limit: int,
        report_waiting: Callable[[int], object] = lambda change: None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.limit = limit
        """The size of all shares, in bytes."""
        self._report_waiting = report_waiting
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()
        self._used = 0
        self._queue = deque[object]()

    @property
    def used(self) -> int:
        """The size of the shares that are held now, in bytes."""
        return self._used

    @property
    def waiting(self) -> int:
        """The number of readers that wait for their shares."""
        return len(self._queue)

    @contextmanager
    def hold(self, nbytes: int, label: str) -> Generator[None]:
        """Hold a share of some bytes; wait until it is free.

        `label` names what is decoded, for errors. Raises `ExhaustedError` if the share exceeds the
        limit, or does not become free in time. Raises `DecodingCancelledError` if the task that
        runs this worker thread is cancelled.
        """
        if nbytes > self.limit:
            raise ExhaustedError(
                f"decoding {label} takes {format_bytes(nbytes)}; the limit is "
                f"{format_size(self.limit)}: write smaller row groups or pages, read fewer "
                "columns, or start the server with more parquet_decoding_bytes"
            )
        with self._changed:
            if self._queue or self._used + nbytes > self.limit:
                self._wait(nbytes, label)
            self._used += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._used -= nbytes
                self._changed.notify_all()

    def _wait(self, nbytes: int, label: str) -> None:
        """Wait until all earlier readers have their shares, and the share is free."""
        if len(self._queue) >= MAX_WAITING:
            raise self._exhausted(nbytes, label, f"{MAX_WAITING} readers wait already")
        place = object()
        self._report_waiting(1)
        self._queue.append(place)
        end = time.monotonic() + self._wait_seconds
        try:
            while self._queue[0] is not place or self._used + nbytes > self.limit:
                left = end - time.monotonic()
                if left <= 0:
                    waited = f"it was not free within {self._wait_seconds:g} s"
                    raise self._exhausted(nbytes, label, waited)
                self._changed.wait(min(left, _POLL_SECONDS))
                _check_cancelled(label)
        finally:
            self._queue.remove(place)
            self._report_waiting(-1)
            self._changed.notify_all()

    def _exhausted(self, nbytes: int, label: str, reason: str) -> ExhaustedError:
        return ExhaustedError(
            f"decoding {label} takes {format_bytes(nbytes)} of the {format_size(self.limit)} for "
            f"all readers, and {reason}: retry later, or start the server with more "
            "parquet_decoding_bytes"
        )


def _check_cancelled(label: str) -> None:
    try:
        from_thread.check_cancelled()
    except asyncio.CancelledError:
        raise DecodingCancelledError(
            f"the reader left while it waited for memory to decode {label}"
        ) from None
    except RuntimeError:
        pass  # not a worker thread of an event loop, so nothing can cancel it
