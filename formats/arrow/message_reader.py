"""The messages of a stream in a file, one after the other, with their bodies unread.

Both framings may occur ("Encapsulated message format"). The module performs no I/O: the caller
passes a function that reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError, ProtocolError
from .framing import CONTINUATION, parse_prefix
from .message import HeaderType, read_message_info

Read = Callable[[int, int], bytes]
"""Returns bytes of a file: ``read(offset, nbytes)``."""

_WINDOW, _SMALL_WINDOW = 64 << 10, 4 << 10
_MAX_PADDING = 64


class FramedMessage(NamedTuple):
    """The position of a message in a file, and its metadata."""

    offset: int
    """The offset of its prefix in bytes."""
    prefix_bytes: int
    """The size of its prefix: 8 bytes, or 4 in the format before Arrow 0.15."""
    metadata: bytes
    """Its padded FlatBuffer."""
    header_type: HeaderType
    """Its type."""
    body_length: int
    """The size of its body in bytes."""

    @property
    def metadata_length(self) -> int:
        """The size of its prefix and its metadata in bytes."""
        return self.prefix_bytes + len(self.metadata)

    @property
    def body_offset(self) -> int:
        """The offset of its body in bytes."""
        return self.offset + self.metadata_length

    @property
    def end(self) -> int:
        """The offset after its body in bytes."""
        return self.body_offset + self.body_length


class MessageReader:
    """Reads the metadata of messages in order, and skips their bodies.

    Parameters
    ----------
    read : callable
        Returns bytes of the file: ``read(offset, nbytes)``.
    end : int
        The offset after the last message in bytes, usually the size of the file.
    offset : int
        The offset of the first message in bytes.
    max_metadata_bytes : int
        The largest size of the metadata of a message in bytes.

    Attributes
    ----------
    offset : int
        The offset of the next message; after the last one, that after the end marker.
    cut_message : FramedMessage or None
        The message whose metadata is complete and whose body is truncated, after that error.
    """

    def __init__(
        self, read: Read, end: int, offset: int = 0, *, max_metadata_bytes: int = 1 << 30
    ) -> None:
        self._read_file = read
        self._end = end
        self.offset = offset
        self.cut_message: FramedMessage | None = None
        self._max_metadata_bytes = max_metadata_bytes
        self._window = b""
        self._window_offset = 0
        self._last_message_bytes = 0

    def next_message(self) -> FramedMessage | None:
        """Return the next message and move behind it; None at the end. An end marker is optional.

        Raises
        ------
        InvalidDataError
            If the message is truncated or malformed. `offset` is then that of the message.
        LimitError
            If its metadata is too large.
        """
        offset, end = self.offset, self._end
        self.cut_message = None
        if offset == end:
            return None
        if end - offset < 4:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix_bytes = self._read(offset, min(8, end - offset))
        if prefix_bytes.startswith(CONTINUATION) and len(prefix_bytes) < 8:
            raise self._truncation_error("its prefix has 8 bytes")
        prefix = parse_prefix(prefix_bytes)
        begin = offset + prefix.nbytes
        if prefix.metadata_length == 0:
            self.offset = begin
            return None
        if begin + prefix.metadata_length > end:
            raise self._truncation_error(
                f"its metadata ends at byte {begin + prefix.metadata_length}"
            )
        if prefix.metadata_length > self._max_metadata_bytes:
            raise LimitError(
                f"the message at byte {offset} has {prefix.metadata_length} bytes of metadata; the "
                f"limit is {self._max_metadata_bytes}"
            )
        metadata = self._read(begin, prefix.metadata_length)
        try:
            header_type, body_length = read_message_info(metadata)
        except ProtocolError as error:
            raise InvalidDataError(
                f"the message at byte {offset} is malformed: {error.message}"
            ) from None
        message = FramedMessage(offset, prefix.nbytes, metadata, header_type, body_length)
        if message.end > end:
            self.cut_message = message
            raise self._truncation_error(f"its body ends at byte {message.end}")
        self._last_message_bytes = message.end - offset
        self.offset = message.end
        return message

    def _read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file. One read serves several small messages."""
        begin = offset - self._window_offset
        if begin < 0 or begin + nbytes > len(self._window):
            has_small_messages = self._last_message_bytes < _WINDOW // 2
            window = _WINDOW if has_small_messages else _SMALL_WINDOW
            count = min(max(nbytes, window), self._end - offset)
            self._window = self._read_file(offset, count)
            self._window_offset, begin = offset, 0
        return self._window[begin : begin + nbytes]

    def _truncation_error(self, reason: str) -> InvalidDataError:
        return InvalidDataError(
            f"the stream is truncated: a message begins at byte {self.offset} and {reason}, "
            f"but the file has {self._end} bytes"
        )


def check_trailing_bytes(read: Read, end: int, size: int) -> None:
    """Refuse data after the end marker of a stream, which would otherwise be lost silently.

    Parameters
    ----------
    read : callable
        Returns bytes of the file.
    end : int
        The offset after the end marker in bytes.
    size : int
        The size of the file in bytes.

    Raises
    ------
    InvalidDataError
        If more than padding follows.
    """
    rest = size - end
    if rest > _MAX_PADDING or any(read(end, rest)):
        raise InvalidDataError(
            f"the stream ends at byte {end}, but {rest} bytes follow its end marker"
        )
