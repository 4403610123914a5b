"""What a draining server waits for: reads of several parts, whose further parts it still serves.

A client reads the parts of a dataset over several connections, one after the other. It holds the
dataset at the control plane meanwhile. Clients that hold nothing start the next part right after
the one before, so that a part that has just ended counts as a read for a moment.

With several worker processes, the parts of one read are at any of them, and the hold is at their
parent. While the server drains, the processes exchange the datasets that each of them knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

import anyio

from ..protocol.request import Request
from .usage import KeyedCounter

LINGER_SECONDS = 1.0
"""How long a read without a hold may take to start its next part."""


class ReadsInProgress:
    """The datasets of which parts are being read. The clock returns seconds, from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holds = KeyedCounter()
        self._running = KeyedCounter()
        self._ended: dict[str, float] = {}
        """When the last part of a dataset without holds ended. It has few, recent entries."""
        self._elsewhere: frozenset[str] = frozenset()
        self._have_ended = False
        self._changed: anyio.Event | None = None

    def __bool__(self) -> bool:
        return bool(self._elsewhere or self.names())

    def names(self) -> frozenset[str]:
        """Return the datasets of which parts are being read here."""
        if self._have_ended:
            return frozenset()
        self._forget_ended()
        return frozenset((*self._holds, *self._running, *self._ended))

    def set_elsewhere(self, names: Collection[str]) -> None:
        """Set the datasets of which parts are being read at other processes of the server."""
        self._elsewhere = frozenset(names)
        if self._changed is not None:
            self._changed.set()

    def end(self) -> None:
        """Count no read as in progress any more: its further parts have to be read elsewhere."""
        self._have_ended = True
        self.set_elsewhere(())

    def includes(self, request: Request) -> bool:
        """Return whether a request may belong to a read in progress.

        A control plane issues the tickets for parts, and they name a shard or a version. One that
        must be the current version begins a read.
        """
        is_part = request.shard is not None or request.version is not None
        is_part = is_part and not request.current
        name = request.dataset
        return is_part and (name in self._elsewhere or name in self.names())

    @contextmanager
    def hold(self, dataset: str) -> Generator[None]:
        """Count a read of a dataset as in progress while the context lasts."""
        try:
            with self._count(self._holds, dataset):
                yield
        finally:
            if dataset not in self._holds:
                self._ended.pop(dataset, None)

    @contextmanager
    def stream(self, request: Request) -> Generator[None]:
        """Track the stream of a request while the context lasts, if it is a part."""
        if request.shard is None:
            yield
            return
        try:
            with self._count(self._running, request.dataset):
                yield
        finally:
            if request.dataset not in self._holds:
                self._forget_ended()
                self._ended[request.dataset] = self._clock()

    @contextmanager
    def _count(self, counter: KeyedCounter, dataset: str) -> Generator[None]:
        counter.take(dataset)
        try:
            yield
        finally:
            counter.release(dataset)
            if self._changed is not None:
                self._changed.set()

    def _forget_ended(self) -> None:
        oldest = self._clock() - LINGER_SECONDS
        for dataset, ended in list(self._ended.items()):
            if ended <= oldest:
                del self._ended[dataset]

    async def wait_idle(self) -> None:
        """Return when no read is in progress."""
        while self:
            if self._changed is None or self._changed.is_set():
                self._changed = anyio.Event()  # shared by all that wait
            oldest = min(self._ended.values(), default=None)
            seconds = None if oldest is None else oldest + LINGER_SECONDS - self._clock()
            with anyio.move_on_after(seconds):
                await self._changed.wait()
