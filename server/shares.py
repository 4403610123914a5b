"""The shares of listeners in what a process has: connections and descriptors."""

from __future__ import annotations

import os
import resource

from .config import ServerSettings

_UNLIMITED = 1 << 30
_MIN_RESERVE = 16
_RESERVE_SHARE = 8


class Shares:
    """Divides a capacity so that a flood of one listener leaves the others working.

    One half of the capacity is reserved for the listeners, in equal parts. The other half belongs
    to whoever comes first.

    Parameters
    ----------
    count : int
        The number of listeners.

    Examples
    --------
    >>> shares = Shares(2)
    >>> [shares.room(0, 8), shares.room(1, 8)]
    [6, 6]
    >>> shares.take(0, 6)
    >>> [shares.room(0, 8), shares.room(1, 8)]
    [0, 2]
    """

    def __init__(self, count: int) -> None:
        self._used = [0] * count

    def room(self, index: int, capacity: int) -> int:
        """Return the amount that a listener may still take of a capacity."""
        reserved = reserved_share(capacity, len(self._used))
        others = sum(max(0, reserved - used) for at, used in enumerate(self._used) if at != index)
        return capacity - sum(self._used) - others

    def take(self, index: int, amount: int) -> None:
        """Record that a listener uses an amount."""
        self._used[index] += amount

    def give_back(self, index: int, amount: int) -> None:
        """Record that a listener no longer uses an amount."""
        self._used[index] -= amount


def reserved_share(capacity: int, count: int) -> int:
    """Return what is reserved for each of `count` listeners."""
    return capacity // (2 * count)


def count_listeners(settings: ServerSettings) -> int:
    """Return the number of listeners of a server, with that of the control plane."""
    return len(settings.listen) + (settings.control is not None)


class Descriptors:
    """The descriptors that the process may use for connections.

    What it has open already, and a reserve for files and logs, are not among them.
    """

    def __init__(self) -> None:
        self._used_before = len(os.listdir("/proc/self/fd"))

    @property
    def capacity(self) -> int:
        """The number of descriptors for all connections together."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit in (resource.RLIM_INFINITY, -1):
            return _UNLIMITED
        reserve = max(_MIN_RESERVE, limit // _RESERVE_SHARE)
        return max(0, limit - self._used_before - reserve)
