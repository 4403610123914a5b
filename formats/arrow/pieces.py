"""Messages in pieces, as a file that pyarrow reads without copying them."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from .message import encapsulate

DECODING_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    MemoryError,
    StopIteration,
)
"""What pyarrow raises for data that it cannot decode; the last where it finds no message."""


class Pieces:
    """A file for pyarrow to read from that hands out buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()
        self._position = 0

    def add(self, metadata: bytes, body: pa.Buffer | None) -> None:
        """Append a message: its FlatBuffer, and its body."""
        self._pieces.append(pa.py_buffer(encapsulate(metadata)))
        if body is not None and body.size:
            self._pieces.append(body)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Return what comes next: `nbytes` bytes, or less where a piece ends."""
        if not self._pieces:
            return pa.py_buffer(b"")
        piece = self._pieces[0]
        if piece.size <= nbytes:
            self._pieces.popleft()
        else:
            self._pieces[0] = piece.slice(nbytes)
            piece = piece.slice(0, nbytes)
        self._position += piece.size
        return piece

    def read(self, nbytes: int) -> pa.Buffer:
        """Return what comes next; see `read_buffer`."""
        return self.read_buffer(nbytes)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return that it has no positions to go to."""
        return False

    def writable(self) -> bool:
        """Return that it cannot be written to."""
        return False

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._position

    def close(self) -> None:
        """Let go of the pieces."""
        self._pieces.clear()
