"""Which tickets were used: a table of fixed size that the workers of a server share."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import weakref
from multiprocessing.context import assert_spawning
from multiprocessing.reduction import DupFd
from typing import Any

from ...errors import ExhaustedError, UnavailableError, UsageError

NONCE_BYTES = 16
_SLOT = struct.Struct("<16sQQ")
_BUCKET_SLOTS = 64
_BUCKET_BYTES = _BUCKET_SLOTS * _SLOT.size
_USES = {"metadata": 1, "body": 2, "both": 3}


class ReplayMemory:
    """Remembers what was used until it expires.

    The table is a hash table in memory without a name, of which the kernel provides only what
    was written to. A process that dies leaves it in order.

    Parameters
    ----------
    capacity : int
        How many tickets may be remembered at once, of 32 bytes each. With some less in it the
        table may be full already; it never forgets one before its time.

    Notes
    -----
    It pickles for nobody but a worker process that is being started; both then share it.
    """

    def __init__(self, capacity: int = 1 << 18, *, _descriptor: int | None = None) -> None:
        if capacity < 1:
            raise UsageError("a memory of used tickets needs room for one at least")
        self._buckets = -(-capacity // _BUCKET_SLOTS)
        nbytes = self._buckets * _BUCKET_BYTES
        if _descriptor is None:
            _descriptor = os.memfd_create("splitarrow-tickets", os.MFD_CLOEXEC)
            os.ftruncate(_descriptor, nbytes)
        self._descriptor = _descriptor
        self._table = mmap.mmap(_descriptor, nbytes)
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, _descriptor)

    def use(self, nonce: bytes, use: str, expires: int, now: float) -> bool:
        """Note a use; tell whether it was still free.

        Parameters
        ----------
        nonce : bytes
            What identifies the ticket: 16 random bytes.
        use : {"both", "metadata", "body"}
            What for. ``both`` takes the other two.
        expires : int
            Until when to remember it, in seconds.
        now : float
            The time, on the same clock.

        Raises
        ------
        ExhaustedError
            If there is no room.
        UnavailableError
            After `close`.
        """
        bits = _USES[use]
        begin = int.from_bytes(nonce[:8], "little") % self._buckets * _BUCKET_BYTES
        with self._lock:
            if not self._close.alive:
                raise UnavailableError("the server is closing")
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                return self._use(begin, nonce, bits, expires, now)
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _use(self, begin: int, nonce: bytes, bits: int, expires: int, now: float) -> bool:
        bucket = self._table[begin : begin + _BUCKET_BYTES]
        free: int | None = None
        for offset in range(0, _BUCKET_BYTES, _SLOT.size):
            held, until, used = _SLOT.unpack_from(bucket, offset)
            if held == nonce and used and until > now:
                if used & bits:
                    return False
                _SLOT.pack_into(self._table, begin + offset, nonce, until, used | bits)
                return True
            if free is None and until <= now:
                free = offset
            if not used:
                break  # slots are filled from the front, and never emptied
        if free is None:
            raise ExhaustedError("too many tickets are in use; try again when some have expired")
        _SLOT.pack_into(self._table, begin + free, nonce, expires, bits)
        return True

    def close(self) -> None:
        """Forget everything. Idempotent."""
        with self._lock:
            if self._close.alive:
                self._table.close()
                self._close()

    def __repr__(self) -> str:
        return f"<ReplayMemory {self._buckets * _BUCKET_SLOTS} tickets>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _restored, (self._buckets * _BUCKET_SLOTS, DupFd(self._descriptor))


def _restored(capacity: int, descriptor: Any) -> ReplayMemory:
    return ReplayMemory(capacity, _descriptor=descriptor.detach())
