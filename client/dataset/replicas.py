"""The servers that hold the same rows, and the order in which a read tries them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import (
    ConnectError,
    ConnectionLostError,
    NotAPeerError,
    SplitArrowError,
    StallError,
    UnavailableError,
)
from ...protocol.request import Request
from ..rpc.channel import FlightChannel
from ..rpc.info import DatasetInfo, Endpoint
from .backoff import draw_pause

BROKEN = (ConnectionLostError, StallError)
"""Errors of a connection that worked before."""
TRANSIENT = (*BROKEN, ConnectError, NotAPeerError, UnavailableError)
"""Errors that a later attempt may not meet, for example while a server restarts. A connection that
ends before its preface raises NotAPeerError."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server that holds the rows of an endpoint, and how to request them there."""

    channel: FlightChannel
    """The channel to the server."""
    describe: Callable[[Request], DatasetInfo]
    """Requests a new ticket from the server."""
    request: Request
    """The request for the dataset, without shard and offset."""
    version: str
    """The version of the dataset at the server; empty if unknown, which disables resuming."""
    shard: int | None
    """The index of the part at the server; None if the dataset has one part there."""
    endpoint: Endpoint | None
    """The endpoint to open first; None to request it when it is needed."""
    known: Endpoint | None = None
    """An endpoint to try before one is requested. It may be out of date."""


class ReplicaSet:
    """The replicas of one endpoint, the current one, and the failed attempts.

    Parameters
    ----------
    replicas : sequence of Replica
        The replicas in order of preference; at least one.
    attempts : int
        Consecutive retries per replica without receiving a row.
    unreachable : set of str
        The addresses of servers that failed lately. All endpoints of a read share this set.
    """

    def __init__(self, replicas: Sequence[Replica], attempts: int, unreachable: set[str]) -> None:
        self._replicas = list(replicas)
        self._attempts = attempts
        self._unreachable = unreachable
        self._index = 0
        self._failed_attempts = 0
        self._reasons: dict[str, str] = {}

    @property
    def current(self) -> Replica:
        """The replica that is in use."""
        return self._replicas[self._index]

    @property
    def is_single(self) -> bool:
        """Whether only one replica is left."""
        return len(self._replicas) == 1

    @property
    def can_resume(self) -> bool:
        """Whether a read that breaks may continue."""
        return bool(self.current.version and self._attempts)

    @property
    def reasons(self) -> str:
        """The last error of each server, as one text."""
        return "; ".join(f"{address}: {reason}" for address, reason in self._reasons.items())

    def prefer_reachable(self) -> None:
        """Move the servers that failed lately to the end."""
        self._replicas.sort(key=lambda each: each.channel.address in self._unreachable)

    def record_success(self) -> None:
        """Record that the current replica is reachable."""
        self._unreachable.discard(self.current.channel.address)

    def record_failure(self, error: SplitArrowError) -> None:
        """Record an error of the current replica."""
        address = self.current.channel.address
        self._reasons[address] = error.message
        if isinstance(error, TRANSIENT):
            self._unreachable.add(address)

    def reset_attempts(self) -> None:
        """Forget the failed attempts, after rows have arrived."""
        self._failed_attempts = 0

    def drop_current(self) -> bool:
        """Drop the current replica, which refuses; return whether others are left.

        The last replica stays, so that `current` is always defined.
        """
        if self.is_single:
            return False
        del self._replicas[self._index]
        # The next attempt advances the index, to the replica after the one that was dropped.
        self._index = (self._index or len(self._replicas)) - 1
        return True

    def next_attempts(
        self,
        pause: Callable[[float], object],
        *,
        limit: int | None = None,
        start_with_current: bool = False,
    ) -> Iterator[Replica]:
        """Yield the replica for each further attempt, which becomes the current one.

        A pause precedes each round over all replicas; see `draw_pause`.

        Parameters
        ----------
        pause : callable
            Waits for a number of seconds.
        limit : int, optional
            The number of failed attempts to allow. By default, `attempts` per replica.
        start_with_current : bool
            Whether the first attempt uses the current replica instead of the next one.
        """
        advance = not start_with_current
        while self._failed_attempts < self._limit(limit):
            rounds, position = divmod(self._failed_attempts, len(self._replicas))
            if not position:
                pause(draw_pause(rounds))
            self._failed_attempts += 1
            if advance:
                self._index = (self._index + 1) % len(self._replicas)
            advance = True
            yield self.current

    def _limit(self, limit: int | None) -> int:
        return self._attempts * len(self._replicas) if limit is None else limit

    def __len__(self) -> int:
        return len(self._replicas)
