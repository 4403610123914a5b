"""The streams that DoGet sends now: what they are, and ending one before its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any

import anyio

from ..auth.principal import Principal
from .ports import READ


@dataclass(slots=True, eq=False)
class RunningStream:
    """A stream that is being sent."""

    number: int
    """What tells it from the others."""
    dataset: str
    """What it is of."""
    principal: str
    """For whom."""
    key: bytes
    """What tells its ticket from others; empty for a plain one."""
    scope: anyio.CancelScope
    """Ends it."""
    since: float = field(default_factory=time.monotonic)
    """When it began, on the monotonic clock, in seconds."""
    rows: int = 0
    """How many rows were sent."""
    nbytes: int = 0
    """How many bytes were sent, framing included."""


class RunningStreams:
    """All streams that are being sent by DoGet."""

    def __init__(self) -> None:
        self._streams: dict[int, RunningStream] = {}
        self._numbers = count(1)

    def begin(
        self, dataset: str, principal: str, key: bytes, scope: anyio.CancelScope
    ) -> RunningStream:
        """Note that a stream begins."""
        stream = RunningStream(next(self._numbers), dataset, principal, key, scope)
        self._streams[stream.number] = stream
        return stream

    def end(self, stream: RunningStream) -> None:
        """Note that a stream has ended, one way or the other."""
        self._streams.pop(stream.number, None)

    def described(self, principal: Principal) -> list[dict[str, Any]]:
        """Return what is told of those streams whose datasets a principal may read."""
        now = time.monotonic()
        return [
            {
                "stream": stream.number,
                "dataset": stream.dataset,
                "rows": stream.rows,
                "bytes": stream.nbytes,
                "seconds": round(now - stream.since, 3),
            }
            for stream in self._streams.values()
            if principal.may(stream.dataset, READ)
        ]

    def cancel(self, number: int, principal: str) -> bool:
        """End a stream; return whether there is one of that number, and of that principal."""
        stream = self._streams.get(number)
        if stream is None or stream.principal != principal:
            return False
        stream.scope.cancel()
        return True

    def cancel_ticket(self, key: bytes, principal: str) -> bool:
        """End the streams of one signed ticket; return whether there was one."""
        found = [
            stream
            for stream in self._streams.values()
            if key and (stream.key, stream.principal) == (key, principal)
        ]
        for stream in found:
            stream.scope.cancel()
        return bool(found)


def ticket_key(ticket: bytes) -> bytes:
    """Return what stands for a ticket here: not the ticket itself."""
    return sha256(ticket).digest()
