"""Leases: the offsets in the server's memory that were delivered and not freed yet.

Leases are counted. An offset delivered k times is freed k times. Offsets are keys of these tables
and never pointers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import LimitError
from .payloads import Span


class _Lease(NamedTuple):
    lengths: tuple[int, ...]
    """The length of each delivery in bytes, the oldest first."""
    since: float


class LeaseTable:
    """The leases that one connection holds on the server's memory.

    It ignores a number of unknown or surplus frees, `bad_frees`, before it refuses the peer.

    Attributes
    ----------
    held : int
        The number of leases, one for each delivery.
    held_bytes : int
        The size of the leased memory in bytes. Each delivery of an offset counts.
    bad_frees : int
        The number of frees of offsets that the connection did not hold.
    """

    def __init__(self, *, bad_frees: int = 1000) -> None:
        self._leases: dict[int, _Lease] = {}
        self._max_bad_frees = bad_frees
        self.held = 0
        self.held_bytes = 0
        self.bad_frees = 0

    @property
    def oldest(self) -> float | None:
        """The time of the oldest lease, or None if there are no leases."""
        while True:
            try:
                return next((lease.since for lease in self._leases.values()), None)
            except RuntimeError:
                pass  # Another thread changed the table meanwhile.

    def grant(self, spans: Iterable[Span], now: float = 0.0) -> None:
        """Record leases on buffers that are about to be delivered, at the time `now`.

        Empty buffers need none.
        """
        for offset, length in spans:
            if not length:
                continue
            self.held += 1
            lease = self._leases.get(offset)
            self.held_bytes += length
            if lease is None:
                self._leases[offset] = _Lease((length,), now)
            else:
                self._leases[offset] = _Lease((*lease.lengths, length), lease.since)

    def grant_run(
        self, offsets: Sequence[Sequence[int]], lengths: Sequence[int], now: float = 0.0
    ) -> None:
        """Record leases on the buffers of many messages with equal metadata. None is empty.

        `offsets` has a column for each buffer, whose size in bytes is in `lengths`.
        """
        fresh: dict[int, _Lease] = {}
        count = 0
        for column, length in zip(offsets, lengths, strict=True):
            fresh.update(dict.fromkeys(column, _Lease((length,), now)))
            count += len(column)
        if len(fresh) < count or not self._leases.keys().isdisjoint(fresh):
            for column, length in zip(offsets, lengths, strict=True):
                self.grant([(offset, length) for offset in column], now)
            return
        self._leases.update(fresh)
        self.held += count
        self.held_bytes += sum(
            len(column) * length for column, length in zip(offsets, lengths, strict=True)
        )

    def free(self, offsets: Iterable[int]) -> list[int]:
        """Free one delivery of each offset and return the offsets without further leases.

        Raises `LimitError` if the peer has sent too many bad frees. The leases that this call would
        have ended then remain, for `free_all` to return.
        """
        released: dict[int, _Lease] = {}
        for offset in offsets:
            lease = self._leases.get(offset)
            if lease is None:
                self.bad_frees += 1
                continue
            self.held -= 1
            lengths = lease.lengths
            if lengths[1:]:
                self.held_bytes -= lengths[0]
                self._leases[offset] = _Lease(lengths[1:], lease.since)
            else:
                released[offset] = self._leases.pop(offset)
                self.held_bytes -= lengths[0]
        if self.bad_frees > self._max_bad_frees:
            for offset, lease in released.items():
                self._leases[offset] = lease
                self.held += 1
                self.held_bytes += sum(lease.lengths)
            raise LimitError(
                f"the peer freed {self.bad_frees} offsets that it did not hold; "
                f"the limit is {self._max_bad_frees}"
            )
        return list(released)

    def free_all(self) -> list[int]:
        """Free all leases of a peer that is gone, and return their offsets."""
        released = list(self._leases)
        self._leases.clear()
        self.held = self.held_bytes = 0
        return released


class FreedOffsets:
    """The offsets that a client has freed and not yet reported to the server.

    A finalizer may call `add` on any thread: it takes no lock and does no I/O. The owner of the
    connection calls `take` and sends the offsets.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def add(self, offsets: Iterable[int]) -> None:
        """Free one delivery of each offset."""
        self._offsets.extend(offsets)

    def take(self, limit: int) -> list[int]:
        """Remove and return at most `limit` offsets, the oldest first."""
        taken = self._offsets[:limit]
        del self._offsets[: len(taken)]
        return taken

    def __len__(self) -> int:
        return len(self._offsets)
