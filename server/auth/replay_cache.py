"""Used tickets: a hash table of fixed size that all workers of a server share."""

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
from ...protocol.uri import Streams

NONCE_BYTES = 16
"""The size of a nonce, in bytes."""
_SLOT = struct.Struct("<16sQQ")
"""The nonce of a ticket, its expiry in seconds, and the bits of the streams that were read."""
_BUCKET_SLOTS = 64
_BUCKET_BYTES = _BUCKET_SLOTS * _SLOT.size
_STREAM_BITS = {Streams.METADATA: 1, Streams.BODY: 2, Streams.BOTH: 3}


class ReplayCache:
    """Remembers used tickets until they expire.

    The table is an anonymous memory file. The kernel allocates only the pages that were written.
    A process that dies at any point leaves the table consistent.

    Parameters
    ----------
    capacity : int
        The number of tickets to remember, 32 bytes each. The table can be full a little earlier,
        when one of its buckets is. It never forgets a ticket that has not expired.

    Notes
    -----
    A cache pickles only for a worker process that is being started. Both processes then share it.
    """

    def __init__(self, capacity: int = 1 << 18, *, _descriptor: int | None = None) -> None:
        if capacity < 1:
            raise UsageError(f"capacity={capacity}: a replay cache needs at least 1")
        self._buckets = -(-capacity // _BUCKET_SLOTS)
        nbytes = self._buckets * _BUCKET_BYTES
        if _descriptor is None:
            _descriptor = os.memfd_create("splitarrow-tickets", os.MFD_CLOEXEC)
            os.ftruncate(_descriptor, nbytes)
        self._descriptor = _descriptor
        self._table = mmap.mmap(_descriptor, nbytes)
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, os.close, _descriptor)

    def add(self, nonce: bytes, stream: Streams, expires: int, now: float) -> bool:
        """Record the use of a ticket, and return whether this is its first use for the stream.

        Parameters
        ----------
        nonce : bytes
            The 16 random bytes that identify the ticket.
        stream : Streams
            The stream to read. ``BOTH`` uses the ticket for the metadata and for the body stream.
        expires : int
            The time at which to forget the ticket, in seconds.
        now : float
            The current time on the same clock, in seconds.

        Raises
        ------
        ExhaustedError
            If the table is full.
        UnavailableError
            After `close`.
        """
        bits = _STREAM_BITS[stream]
        bucket = int.from_bytes(nonce[:8], "little") % self._buckets
        with self._lock:
            if not self._close.alive:
                raise UnavailableError("the server is shutting down")
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                return self._add(bucket * _BUCKET_BYTES, nonce, bits, expires, now)
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _add(self, start: int, nonce: bytes, bits: int, expires: int, now: float) -> bool:
        bucket = self._table[start : start + _BUCKET_BYTES]
        free: int | None = None
        for offset in range(0, _BUCKET_BYTES, _SLOT.size):
            slot_nonce, slot_expires, used = _SLOT.unpack_from(bucket, offset)
            if slot_nonce == nonce and used and slot_expires > now:
                if used & bits:
                    return False
                _SLOT.pack_into(self._table, start + offset, nonce, slot_expires, used | bits)
                return True
            if free is None and slot_expires <= now:
                free = offset
            if not used:
                break  # slots are filled from the front and never emptied
        if free is None:
            raise ExhaustedError("too many tickets are in use; retry after some have expired")
        _SLOT.pack_into(self._table, start + free, nonce, expires, bits)
        return True

    def close(self) -> None:
        """Release the table. Idempotent."""
        with self._lock:
            if self._close.alive:
                self._table.close()
                self._close()

    def __repr__(self) -> str:
        return f"<ReplayCache {self._buckets * _BUCKET_SLOTS} tickets>"

    def __reduce__(self) -> tuple[Any, ...]:
        assert_spawning(self)
        return _unpickle, (self._buckets * _BUCKET_SLOTS, DupFd(self._descriptor))


def _unpickle(capacity: int, descriptor: Any) -> ReplayCache:
    return ReplayCache(capacity, _descriptor=descriptor.detach())
