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
    count: int
    nbytes: int


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
        self.bad_frees = 0
        """How many frees named a place that the connection does not hold."""

    @property
    def held(self) -> int:
        """How many leases are held, each counted as often as it was delivered."""
        return sum(lease.count for lease in self._leases.values())

    @property
    def held_bytes(self) -> int:
        """How many bytes are held; a place delivered twice counts once."""
        return sum(lease.nbytes for lease in self._leases.values())

    def grant(self, spans: Iterable[Span]) -> None:
        """Enter places that are about to be delivered. Empty buffers are no leases."""
        for offset, length in spans:
            if not length:
                continue
            lease = self._leases.get(offset)
            if lease is None:
                self._leases[offset] = _Lease(1, length)
            else:
                lease.count += 1
                lease.nbytes = max(lease.nbytes, length)

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
            elif lease.count > 1:
                lease.count -= 1
            else:
                released[offset] = self._leases.pop(offset)
        if self.bad_frees > self._tolerated:
            self._leases.update(released)
            raise LimitError(f"{self.bad_frees} frees of memory that was not leased")
        return list(released)

    def free_all(self) -> list[int]:
        """Take back everything: the peer is gone."""
        released = list(self._leases)
        self._leases.clear()
        return released


class LeaseReturns:
    """What a client no longer needs and has not told the server yet.

    `give_back` may be called from a finalizer, on any thread: it takes no lock and does no
    I/O. The owner of the connection calls `take` and sends what it returns.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []

    def give_back(self, offset: int) -> None:
        """Note that one delivery of `offset` is no longer needed."""
        self._offsets.append(offset)

    def take(self, limit: int) -> list[int]:
        """Return, and forget, at most `limit` noted offsets, the oldest first."""
        taken = self._offsets[:limit]
        del self._offsets[: len(taken)]
        return taken

    def __len__(self) -> int:
        return len(self._offsets)
