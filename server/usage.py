"""What a process of a server uses of the limits that all of its processes share.

`Usage` is for a server with one process. `SharedUsage` keeps the numbers in memory that the
processes share.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from .shared_lock import SharedLock


def measure_host_memory() -> int:
    """Return the size of this host's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class KeyedCounter:
    """Numbers of things in use, by a key: the streams of a principal, for example."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def take(self, key: str, limit: float = math.inf) -> bool:
        """Count one more, and return whether it is within a limit. If not, it is not counted."""
        count = self._counts.get(key, 0)
        if count >= limit:
            return False
        self._counts[key] = count + 1
        return True

    def release(self, key: str) -> None:
        """Count one less."""
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of what is in use."""
        return iter(self._counts)

    def __contains__(self, key: str) -> bool:
        return key in self._counts


class Usage:
    """What the only process of a server uses of its limits."""

    processes: int = 1
    """The number of processes of the server. They divide its memory for caches."""

    def __init__(self) -> None:
        self.streams: KeyedCounter | SharedCounter = KeyedCounter()
        """The streams with signed tickets, by principal."""
        self.addresses: KeyedCounter | SharedCounter = KeyedCounter()
        """The connections of readers, by address."""
        self._numbers = count(1)

    def make_number(self) -> int:
        """Return the number of a new stream, which no other process of the server uses."""
        return next(self._numbers)

    def set_load(self, connections: int | None) -> None:
        """Let the other processes know how many connections this one serves; None: no new ones."""

    @property
    def is_busier(self) -> bool:
        """Whether another process that accepts connections serves fewer of them."""
        return False


_BUCKET_ROWS = 64
_KEY = np.dtype([("high", "<u8"), ("low", "<u8")])
_ROW = np.dtype([("key", _KEY), ("count", "<u4"), ("padding", "<u4")])
_ABSENT = -1
"""The load of a process that accepts no connections."""


class UsageTable:
    """The usage of all processes of a server, in an anonymous memory file.

    Each process writes rows of its own, so that one that dies or is stopped at any point leaves the
    table consistent. `clear` then removes what it used. A lock keeps limits exact while processes
    count at the same time.
    The kernel allocates only the pages that were written. The table can be full a little before a
    process has `capacity` keys, when one of its buckets is.

    Notes
    -----
    A table pickles only for a worker process that is being started. Both processes then share it.
    """

    def __init__(
        self, processes: int, capacity: int = 1 << 16, *, _descriptor: int | None = None
    ) -> None:
        self.processes = processes
        self._capacity = capacity
        self._buckets = -(-capacity // _BUCKET_ROWS)
        layout: Any = [("numbers", "<u8", (processes,)), ("loads", "<i4", (processes,))]
        header: Any = np.dtype([*layout, ("padding", "<u4", (processes % 2,))])
        shape = (processes, self._buckets, _BUCKET_ROWS)
        nbytes = header.itemsize + math.prod(shape) * _ROW.itemsize
        is_new = _descriptor is None
        if _descriptor is None:
            _descriptor = os.memfd_create("splitarrow-usage", os.MFD_CLOEXEC)
            os.ftruncate(_descriptor, nbytes)
        self._descriptor = _descriptor
        self._memory = mmap.mmap(_descriptor, nbytes)
        self._header: Any = np.frombuffer(self._memory, header, count=1)
        self._rows: Any = np.frombuffer(self._memory, _ROW, offset=header.itemsize).reshape(shape)
        self._lock = SharedLock(_descriptor)
        self._threads = threading.Lock()
        if is_new:
            self._header["loads"] = _ABSENT

    def make_number(self, process: int) -> int:
        """Return a number that no process got before, from 1."""
        with self._threads:
            numbers = self._header["numbers"][0]
            numbers[process] += 1
            return (int(numbers[process]) - 1) * self.processes + process + 1

    def take(self, key: bytes, process: int, limit: float) -> bool:
        """Count one more for a key; see `KeyedCounter.take`. A full table refuses."""
        digest = _hash(key)
        with self._lock.take():
            rows = self._find_bucket(digest)
            is_key = rows["key"] == digest
            if rows["count"][is_key].sum() >= limit:
                return False
            mine = rows[process]
            found = np.flatnonzero(is_key[process])
            if not found.size:
                found = np.flatnonzero(mine["count"] == 0)
                if not found.size:
                    return False
                mine["key"][found[0]] = digest
            mine["count"][found[0]] += 1
            return True

    def release(self, key: bytes, process: int) -> None:
        """Count one less for a key."""
        digest = _hash(key)
        with self._lock.take():
            mine = self._find_bucket(digest)[process]
            for row in np.flatnonzero(mine["key"] == digest)[:1]:
                if mine["count"][row]:
                    mine["count"][row] -= 1

    def set_load(self, process: int, connections: int | None) -> None:
        """Set the number of connections that a process serves; None if it accepts none."""
        self._header["loads"][0, process] = _ABSENT if connections is None else connections

    def is_busier(self, process: int) -> bool:
        """Return whether another process that accepts connections serves fewer of them."""
        loads = self._header["loads"][0]
        return bool(((loads != _ABSENT) & (loads < loads[process])).any())

    def clear(self, process: int) -> None:
        """Remove what a process used that has ended."""
        self._header["loads"][0, process] = _ABSENT
        self._rows["count"][process] = 0

    def _find_bucket(self, digest: Any) -> Any:
        """Return the rows of each process that may have a key."""
        return self._rows[:, int(digest["high"]) % self._buckets]

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _unpickle, (self.processes, self._capacity, DupFd(self._descriptor))


class SharedCounter:
    """The numbers of one kind, as one process counts them in the table; see `KeyedCounter`."""

    def __init__(self, table: UsageTable, kind: bytes, process: int) -> None:
        self._table = table
        self._kind = kind
        self._process = process

    def take(self, key: str, limit: float) -> bool:
        """Count one more; see `KeyedCounter.take`."""
        return self._table.take(self._kind + key.encode(), self._process, limit)

    def release(self, key: str) -> None:
        """Count one less."""
        self._table.release(self._kind + key.encode(), self._process)


class SharedUsage(Usage):
    """What one of several processes uses. The parent has the number 0, and shares no listener."""

    def __init__(self, table: UsageTable, process: int) -> None:
        self._table = table
        self._process = process
        self.processes = table.processes
        self.streams = SharedCounter(table, b"stream ", process)
        self.addresses = SharedCounter(table, b"address ", process)

    def make_number(self) -> int:
        """Return the number of a new stream."""
        return self._table.make_number(self._process)

    def set_load(self, connections: int | None) -> None:
        """Let the other processes know how many connections this one serves; None: no new ones."""
        if self._process:
            self._table.set_load(self._process, connections)

    @property
    def is_busier(self) -> bool:
        """Whether another process that accepts connections serves fewer of them."""
        return bool(self._process) and self._table.is_busier(self._process)


def _hash(key: bytes) -> Any:
    return np.frombuffer(blake2b(key, digest_size=_KEY.itemsize).digest(), _KEY)[0]


def _unpickle(processes: int, capacity: int, descriptor: Any) -> UsageTable:
    return UsageTable(processes, capacity, _descriptor=descriptor.detach())
