"""The progress of a stream, which duplicates do not make."""

from __future__ import annotations

import time

from ...protocol.reassembler import Reassembler


class ProgressWatch:
    """Finds out that the frames of the last seconds were duplicates.

    Keep-alives show that the server works. The driver fails if no frame arrives.

    Parameters
    ----------
    reassembler : Reassembler
        Receives the frames of the stream.
    timeout : float or None
        The time limit in seconds. None disables it.
    """

    def __init__(self, reassembler: Reassembler, timeout: float | None) -> None:
        self._reassembler = reassembler
        self._timeout = timeout
        self._progress: object = None
        self._repeating_since: float | None = None

    def is_stalled(self) -> bool:
        """Return whether the time limit has passed. Call this after each of the frames."""
        progress = (self._reassembler.position, self._reassembler.keep_alives.total)
        if progress != self._progress or self._timeout is None:
            self._progress, self._repeating_since = progress, None
            return False
        now = time.monotonic()
        if self._repeating_since is None:
            self._repeating_since = now
        return now - self._repeating_since >= self._timeout
