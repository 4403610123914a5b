"""A part of a file whose bytes are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable


class LazyBytes:
    """A part of a file, which can be sliced as a view of its bytes.

    Parameters
    ----------
    read : callable
        Returns bytes of the file: ``read(offset, nbytes)``.
    offset : int
        The offset of the part in bytes.
    nbytes : int
        The size of the part in bytes.

    Examples
    --------
    >>> part = LazyBytes(lambda offset, nbytes: b"abcdef"[offset : offset + nbytes], 2, 3)
    >>> part[1:], part.nbytes
    (b'de', 3)
    """

    __slots__ = ("_offset", "_read", "nbytes")

    def __init__(self, read: Callable[[int, int], bytes], offset: int, nbytes: int) -> None:
        self._read = read
        self._offset = offset
        self.nbytes = nbytes

    def __getitem__(self, span: slice) -> bytes:
        begin, end, _ = span.indices(self.nbytes)
        return self._read(self._offset + begin, end - begin) if end > begin else b""
