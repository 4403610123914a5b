"""The shares of principals in what all streams of a process use: threads, and memory.

A principal gets the same share whether it reads one stream or a thousand. All of this is used on
the event loop only.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import count

import anyio

_RECENT_SECONDS = 1.0
"""How long a principal counts as active after it has used a thread or begun a stream."""
_THREADS_PER_PROCESSOR = 2
"""The threads that active principals divide: some of them wait for a disk or a network."""
_MIN_BATCH_BYTES = 512 << 10
_PRINCIPAL_PART = 2
"""One principal gets at most one part in so many of the memory."""


class ThreadShares:
    """Divides worker threads among the principals that are active at a time.

    A principal that is alone may use all of them. Several divide two for each processor: with
    more, the threads of one would only slow down those of another. A free thread goes to the
    waiting principal with the fewest, and among equals to the one that has waited longest.
    """

    def __init__(
        self, threads: int, processors: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threads = threads
        self._processors = processors
        self._clock = clock
        self._lent = 0
        self._used = Counter[str]()
        self._waiting: dict[str, deque[anyio.Event]] = {}
        self._turn = count(1)
        self._turns = Counter[str]()
        """The last turn of each principal; 0 for one that has had none."""
        self._seen: dict[str, float] = {}

    def lend(self, change: int) -> None:
        """Change the number of threads by those that wait for memory."""
        self._lent += change
        self._grant()

    def record(self, principal: str) -> None:
        """Record that a principal is active."""
        self._seen[principal] = self._clock()

    async def acquire(self, principal: str) -> None:
        """Take a thread of a principal, which has to release it; wait until there is one."""
        self.record(principal)
        is_free = not any(self._waiting.values()) and self._count_free() > 0
        if is_free and self._used[principal] < self._find_limit():
            self._take(principal)
            return
        granted = anyio.Event()
        queue = self._waiting.setdefault(principal, deque())
        queue.append(granted)
        self._grant()
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self._used[principal] -= 1
            else:
                queue.remove(granted)
            self._grant()
            raise

    def release(self, principal: str) -> None:
        """Return a thread of a principal."""
        self.record(principal)
        self._used[principal] -= 1
        self._grant()

    def _count_free(self) -> int:
        return self._threads + self._lent - self._used.total()

    def _take(self, principal: str) -> None:
        self._used[principal] += 1
        self._turns[principal] = next(self._turn)

    def _grant(self) -> None:
        """Give free threads to those that wait."""
        while any(self._waiting.values()) and self._count_free() > 0:
            most = self._find_limit()
            allowed = [
                each for each, queue in self._waiting.items() if queue and self._used[each] < most
            ]
            if not allowed:
                return
            principal = min(allowed, key=lambda each: (self._used[each], self._turns[each]))
            self._waiting[principal].popleft().set()
            self._take(principal)

    def _find_limit(self) -> int:
        """Return the number of threads that one principal may use now."""
        oldest = self._clock() - _RECENT_SECONDS
        for principal, seen in list(self._seen.items()):
            is_waiting = bool(self._waiting.get(principal))
            if seen < oldest and not self._used[principal] and not is_waiting:
                del self._seen[principal]
                for mapping in (self._used, self._turns, self._waiting):
                    mapping.pop(principal, None)
        threads, active = self._threads, len(self._seen)
        if active > 1:
            divided = min(_THREADS_PER_PROCESSOR * self._processors, threads)
            threads = max(divided // active, 1)
        return threads + self._lent


class StreamMemory:
    """Bounds the messages that streams hold ready beyond the group that each of them sends.

    A principal gets at most half of the bytes. A stream may always prepare the group that its
    reader waits for, so that each of them makes progress. It prepares the next one ahead if there
    is room; otherwise it waits for its reader or for room. Room goes to the waiting stream whose
    principal holds least, and among equals to the one that has waited longest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = Counter[str]()
        self._waiting: dict[MemoryShare, None] = {}
        self._streams = 0

    @property
    def held(self) -> int:
        """The bytes that all streams hold or have reserved."""
        return self._held.total()

    @property
    def batch_bytes(self) -> int:
        """The size of batches of which each stream may hold two. Any thread may read it."""
        return max(self._limit // (2 * _PRINCIPAL_PART * max(self._streams, 1)), _MIN_BATCH_BYTES)

    def share(self, principal: str) -> MemoryShare:
        """Return the share of a new stream, which closes it."""
        self._streams += 1
        return MemoryShare(self, principal)

    def close(self, share: MemoryShare) -> None:
        """Count one stream less."""
        self._streams -= 1
        self.stop_waiting(share)
        self.change(share.principal, -share.nbytes)

    def change(self, principal: str, nbytes: int) -> None:
        """Count more bytes for a principal, or fewer."""
        self._held[principal] += nbytes
        if not self._held[principal]:
            del self._held[principal]
        if nbytes < 0:
            self._grant()

    def wait(self, share: MemoryShare) -> None:
        """Let a stream wait for the room that it wants, unless there is room now."""
        self._waiting.setdefault(share)
        self._grant()

    def stop_waiting(self, share: MemoryShare) -> None:
        """Forget a stream that waits."""
        self._waiting.pop(share, None)

    def _grant(self) -> None:
        while fitting := [each for each in self._waiting if self._has_room(each)]:
            share = min(fitting, key=lambda each: self._held[each.principal])
            del self._waiting[share]
            share.grant()

    def _has_room(self, share: MemoryShare) -> bool:
        most = self._limit // _PRINCIPAL_PART
        return (
            self._held.total() + share.wanted <= self._limit
            and self._held[share.principal] + share.wanted <= most
        )


class MemoryShare:
    """What one stream holds of the `StreamMemory`."""

    __slots__ = ("_is_closed", "_is_granted", "_memory", "_wake", "nbytes", "principal", "wanted")

    def __init__(self, memory: StreamMemory, principal: str) -> None:
        self._memory = memory
        self._is_closed = self._is_granted = False
        self._wake: Callable[[], object] = lambda: None
        self.principal = principal
        """The principal that reads the stream."""
        self.nbytes = 0
        """What it holds, in bytes."""
        self.wanted = 0
        """What it waits for, in bytes."""

    def hold(self, nbytes: int) -> None:
        """Hold exactly so many bytes, whether or not there is room, and reserve none."""
        self._is_granted = False
        self._memory.stop_waiting(self)
        if not self._is_closed:
            change, self.nbytes = nbytes - self.nbytes, nbytes
            self._memory.change(self.principal, change)

    def reserve(self, nbytes: int, wake: Callable[[], object]) -> bool:
        """Return whether so many more bytes are reserved; if not, `wake` is called once they are.

        The reservation ends with the next `hold`.
        """
        if not (self._is_granted or self._is_closed):
            self.wanted, self._wake = nbytes, lambda: None
            self._memory.wait(self)
            self._wake = wake
        return self._is_granted

    def grant(self) -> None:
        """Reserve what the stream waits for."""
        self._is_granted = True
        self.nbytes += self.wanted
        self._memory.change(self.principal, self.wanted)
        self._wake()

    def close(self) -> None:
        """Release everything. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._wake = lambda: None  # it refers to the stream, and that to this share
            self._memory.close(self)
            self.nbytes = 0
