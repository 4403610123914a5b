"""The time that streams wait for their readers."""

from __future__ import annotations

import time


class ReaderWaits:
    """Measures how long a stream cannot go on until its reader or the network takes data.

    A wait costs two readings of the clock. Data that is taken at once costs nothing.
    """

    __slots__ = ("_seconds", "_since")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time of all waits, the current one included, in seconds. Any thread may read it."""
        since = self._since
        return self._seconds if since is None else self._seconds + time.monotonic() - since

    def begin(self) -> None:
        """Begin a wait."""
        self._since = time.monotonic()

    def end(self) -> None:
        """End the wait."""
        if self._since is not None:
            self._seconds += time.monotonic() - self._since
            self._since = None
