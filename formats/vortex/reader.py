"""The messages of a Vortex IPC stream, read from pieces of any size or from a whole file.

A stream begins with a dtype, and arrays or buffers follow. It has no end marker: it ends after any
complete message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError, ProtocolError
from .message import (
    DEFAULT_LIMITS,
    PREFIX,
    Message,
    MessageHeader,
    MessageKind,
    VortexLimits,
    read_header,
)

Read = Callable[[int, int], Any]
"""Returns bytes of a file: ``read(offset, nbytes)``."""

_SMALLEST_HEADER = 8


class FramedHeader(NamedTuple):
    """The place of a message in a stream, and its header."""

    offset: int
    """The offset of its length in bytes."""
    metadata: bytes
    """The FlatBuffer of its header, with the zeros after it."""
    header: MessageHeader
    """The fields of its header."""

    @property
    def body_offset(self) -> int:
        """The offset of its body in bytes."""
        return self.offset + PREFIX.size + len(self.metadata)

    @property
    def end(self) -> int:
        """The offset after its body in bytes."""
        return self.body_offset + self.header.body_size


class FramedMessage(NamedTuple):
    """The place of a message in a stream, and the message."""

    place: FramedHeader
    """Its place and its header."""
    message: Message
    """The message. Its body is one piece."""


class _StreamOrder:
    """Checks each header, and that a stream begins with its only dtype."""

    def __init__(self, limits: VortexLimits) -> None:
        self._limits = limits
        self._has_dtype = False

    def check_length(self, offset: int, length: int) -> None:
        if length < _SMALLEST_HEADER:
            raise ProtocolError(
                f"the message at byte {offset} declares a header of {length} bytes; expected at "
                f"least {_SMALLEST_HEADER}"
            )
        if length > self._limits.metadata_bytes:
            raise LimitError(
                f"the message at byte {offset} declares a header of {length} bytes; the limit is "
                f"{self._limits.metadata_bytes}"
            )

    def read_header(self, offset: int, metadata: bytes) -> FramedHeader:
        try:
            header = read_header(metadata, self._limits)
        except ProtocolError as error:
            raise type(error)(f"the message at byte {offset}: {error.message}") from None
        is_dtype = header.kind is MessageKind.DTYPE
        if is_dtype == self._has_dtype:
            problem = "is a second DTYPE" if is_dtype else f"is of the type {header.kind.name}"
            expected = "an ARRAY or a BUFFER" if is_dtype else "a DTYPE first"
            raise ProtocolError(f"the message at byte {offset} {problem}; expected {expected}")
        self._has_dtype = True
        return FramedHeader(offset, metadata, header)


class HeaderReader:
    """Reads the headers of a stream in a file, and skips the bodies.

    `end` is the size of the file in bytes.

    Attributes
    ----------
    offset : int
        The offset of the next message in bytes.
    """

    def __init__(self, read: Read, end: int, limits: VortexLimits = DEFAULT_LIMITS) -> None:
        self._read = read
        self._end = end
        self._order = _StreamOrder(limits)
        self.offset = 0

    def next_header(self) -> FramedHeader | None:
        """Return the header of the next message and move behind its body; None at the end.

        Raises `ProtocolError` if the header is malformed, of an unknown version or type, or out of
        order. The error names the offset and the field. Raises `InvalidDataError` if the file ends
        inside of the message. Raises `LimitError` if the message declares a size above the limits.
        """
        offset, end = self.offset, self._end
        if offset == end:
            return None
        begin = offset + PREFIX.size
        if begin > end:
            raise truncation_error(offset, f"its length ends at byte {begin}", end)
        (length,) = PREFIX.unpack(self._read(offset, PREFIX.size))
        self._order.check_length(offset, length)
        if begin + length > end:
            raise truncation_error(offset, f"its header ends at byte {begin + length}", end)
        found = self._order.read_header(offset, bytes(self._read(begin, length)))
        if found.end > end:
            raise truncation_error(offset, f"its body ends at byte {found.end}", end)
        self.offset = found.end
        return found


def read_messages(data: Any, limits: VortexLimits = DEFAULT_LIMITS) -> Iterator[FramedMessage]:
    """Yield the messages of a whole stream. The bodies are views of `data`, without a copy.

    `data`: It must live as long as the bodies. Raises `ProtocolError` as
    `HeaderReader.next_header`, or if the stream has no message.

    Examples
    --------
    >>> from splitarrow.formats.vortex.message import build_message, encode_message
    >>> stream = b"".join(encode_message(build_message(MessageKind.DTYPE, [b"12345678"])))
    >>> [bytes(found.message.body[0]) for found in read_messages(stream)]
    [b'12345678']
    """
    view = memoryview(data).cast("B")
    reader = HeaderReader(lambda at, nbytes: view[at : at + nbytes], view.nbytes, limits)
    while (place := reader.next_header()) is not None:
        body = view[place.body_offset : place.end]
        yield FramedMessage(place, Message(place.metadata, place.header, (body,)))
    if not view.nbytes:
        raise ProtocolError("the stream is empty; expected a DTYPE message first")


class StreamReader:
    """Reads a stream from pieces of any size.

    `limits`: Memory grows with the bytes that have arrived, not with the sizes that they declare.
    """

    def __init__(self, limits: VortexLimits = DEFAULT_LIMITS) -> None:
        self._order = _StreamOrder(limits)
        self._pending = bytearray()
        self._needed = PREFIX.size
        self._header: FramedHeader | None = None
        self._offset = 0

    def feed(self, data: Any) -> list[FramedMessage]:
        """Add bytes, and return the messages that they complete. Each owns its body.

        Raises `ProtocolError` as `HeaderReader.next_header`. No call may follow.
        """
        pending = self._pending
        pending += data
        found: list[FramedMessage] = []
        begin = 0
        while len(pending) - begin >= self._needed:
            end = begin + self._needed
            if self._header is not None:
                body = bytes(memoryview(pending)[begin:end])
                header = self._header
                message = Message(header.metadata, header.header, (body,))
                found.append(FramedMessage(header, message))
                self._offset, self._header, self._needed = header.end, None, PREFIX.size
                begin = end
            elif self._needed == PREFIX.size:
                (length,) = PREFIX.unpack_from(pending, begin)
                self._order.check_length(self._offset, length)
                self._needed = PREFIX.size + length
            else:
                metadata = bytes(memoryview(pending)[begin + PREFIX.size : end])
                self._header = self._order.read_header(self._offset, metadata)
                self._needed = self._header.header.body_size
                begin = end
        del pending[:begin]
        return found

    def finish(self) -> None:
        """Check that the stream may end here.

        Raises `ProtocolError` if it has no message. Raises `InvalidDataError` if it ends inside of
        a message.
        """
        end = self._offset + len(self._pending)
        if self._header is not None:
            end += self._header.body_offset - self._offset
            raise truncation_error(self._offset, f"its body ends at byte {self._header.end}", end)
        if self._pending:
            part = "length" if self._needed == PREFIX.size else "header"
            last = self._offset + self._needed
            raise truncation_error(self._offset, f"its {part} ends at byte {last}", end)
        if not self._offset:
            raise ProtocolError("the stream is empty; expected a DTYPE message first")


def truncation_error(offset: int, reason: str, end: int) -> InvalidDataError:
    """Return the error for a stream that ends inside of a message."""
    return InvalidDataError(
        f"the stream is truncated: a message begins at byte {offset} and {reason}, but the stream "
        f"has {end} bytes"
    )
