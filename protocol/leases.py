"""Leases: which places of the server's memory its readers still hold.

A lease is counted: a place that was delivered k times is freed k times. Places are keys into
these tables and never pointers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import LimitError
from .bodies import Span


@dataclass(slots=True)
class _Lease:
    lengths: list[int]
    since: float


class LeaseLedger:
    """What one connection holds of the server's memory; the server keeps one for each.

    Parameters
    ----------
    bad_frees : int
        How many unknown or surplus frees are ignored before the peer is refused.
    """

    def __init__(self, *, bad_frees: int = 1000) -> None:
        self._leases: dict[int, _Lease] = {}
        self._tolerated = bad_frees
        self._held = 0
        self._held_bytes = 0
        self.bad_frees = 0
        """How many frees named a place that the connection does not hold."""

    @property
    def held(self) -> int:
        """How many leases are held, each counted as often as it was delivered."""
        return self._held

    @property
    def held_bytes(self) -> int:
        """How many bytes are held; a place counts as often as it was delivered."""
        return self._held_bytes

    @property
    def oldest(self) -> float | None:
        """When the oldest of the places that are held was first granted; None if none is."""
        while True:
            try:
                return next((lease.since for lease in self._leases.values()), None)
            except RuntimeError:  # another thread asks while one is granted or freed
                continue

    def grant(self, spans: Iterable[Span], now: float = 0.0) -> None:
        """Enter places that are about to be delivered. Empty buffers are no leases.

        Parameters
        ----------
        spans : iterable of (offset, length)
            The places.
        now : float
            The time, by any clock that only goes forward.
        """
        for offset, length in spans:
            if not length:
                continue
            self._held += 1
            lease = self._leases.get(offset)
            self._held_bytes += length
            if lease is None:
                self._leases[offset] = _Lease([length], now)
            else:
                lease.lengths.append(length)

    def free(self, offsets: Iterable[int]) -> list[int]:
        """Take back places; return those that nobody on this connection holds any more.

        Raises
        ------
        LimitError
            If the peer has sent more bad frees than are tolerated. What this call has taken
            back is then still held, for `free_all` to return.
        """
        released: dict[int, _Lease] = {}
        for offset in offsets:
            lease = self._leases.get(offset)
            if lease is None:
                self.bad_frees += 1
                continue
            self._held -= 1
            if len(lease.lengths) > 1:
                self._held_bytes -= lease.lengths.pop(0)
            else:
                released[offset] = self._leases.pop(offset)
                self._held_bytes -= lease.lengths[0]
        if self.bad_frees > self._tolerated:
            for offset, lease in released.items():
                self._leases[offset] = lease
                self._held += 1
                self._held_bytes += lease.lengths[0]
            raise LimitError(f"{self.bad_frees} frees of memory that was not leased")
        return list(released)

    def free_all(self) -> list[int]:
        """Take back everything: the peer is gone."""
        released = list(self._leases)
        self._leases.clear()
        self._held = self._held_bytes = 0
        return released


class LeaseReturns:
    """What a client no longer needs and has not told the server yet.

    `give_back` may be called from a finalizer, on any thread: it takes no lock and does no
    I/O. The owner of the connection calls `take` and sends what it returns.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def give_back(self, offsets: Iterable[int]) -> None:
        """Note that one delivery of each of `offsets` is no longer needed."""
        self._offsets.extend(offsets)

    def take(self, limit: int) -> list[int]:
        """Return, and forget, at most `limit` noted offsets, the oldest first."""
        taken = self._offsets[:limit]
        del self._offsets[: len(taken)]
        return taken

    def __len__(self) -> int:
        return len(self._offsets)
