"""Readahead: asking the kernel to read a file before a stream needs it."""

from __future__ import annotations

import os

from ....transport.memory.files import SourceFile

READAHEAD_BYTES = 16 << 20
"""The distance that the kernel reads ahead of the stream, in bytes."""
_STEP = 1 << 20


class Readahead:
    """Keeps the kernel's readahead in front of a stream that reads a file in order.

    The kernel caps how much one call requests, so the requests are small steps. A step that is in
    the page cache already costs one read of one byte, which is less than a request.

    Parameters
    ----------
    file : SourceFile
        The file.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._requested = 0
        self._byte = [bytearray(1)]

    def advance(self, position: int) -> None:
        """Request the bytes after a position.

        Parameters
        ----------
        position : int
            The offset in bytes that the stream reads next.
        """
        file, requested = self._file, self._requested
        if not requested - READAHEAD_BYTES - _STEP <= position <= requested:
            requested = position  # the stream jumped
        end = min(position + READAHEAD_BYTES, file.size)
        while requested < end:
            if not self._is_cached(min(requested + _STEP, file.size) - 1):
                file.prefetch(requested, _STEP)
            requested += _STEP
        self._requested = requested

    def _is_cached(self, position: int) -> bool:
        try:
            return os.preadv(self._file.fileno(), self._byte, position, os.RWF_NOWAIT) == 1
        except OSError:
            return False  # not cached, or the file system cannot say
