"""A file over message buffers, which pyarrow reads without a copy."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from .framing import encapsulate

DECODING_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    MemoryError,
    StopIteration,
)
"""The exceptions that pyarrow raises for data that it cannot decode.

`StopIteration` means that it found no message.
"""


class BufferFile:
    """A readable file that returns slices of its buffers instead of copies."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()
        self._position = 0

    def add(self, metadata: bytes, body: pa.Buffer | None) -> None:
        """Append a message: its FlatBuffer and its body."""
        self._pieces.append(pa.py_buffer(encapsulate(metadata)))
        if body is not None and body.size:
            self._pieces.append(body)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Return the next bytes: at most `nbytes`, and never across the end of a buffer."""
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
        """Return the next bytes; see `read_buffer`."""
        return self.read_buffer(nbytes)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: the file has no random access."""
        return False

    def writable(self) -> bool:
        """Return False."""
        return False

    def tell(self) -> int:
        """Return the number of bytes read."""
        return self._position

    def close(self) -> None:
        """Release the buffers."""
        self._pieces.clear()
