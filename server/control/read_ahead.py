"""The memory for the messages that DoGet prepares before it sends them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

_TOTAL_BYTES = 32 << 20
_CHUNKS_PER_STREAM = 2
_MAX_CHUNK_BYTES = 3 << 19
_MIN_CHUNK_BYTES = 64 << 10


class ReadAhead:
    """Divides 32 MiB among the streams that DoGet sends now.

    A stream holds two chunks of messages: it sends one while a worker thread prepares the other.

    Examples
    --------
    >>> read_ahead = ReadAhead()
    >>> with read_ahead.stream():
    ...     read_ahead.chunk_bytes
    1572864
    """

    def __init__(self) -> None:
        self._streams = 0

    @property
    def chunk_bytes(self) -> int:
        """The size at which a chunk is complete, in bytes: from 64 KiB to 1.5 MiB.

        Any thread may read it.
        """
        share = _TOTAL_BYTES // (_CHUNKS_PER_STREAM * max(1, self._streams))
        return min(max(share, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream while the context lasts."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
