"""Parsing an Arrow IPC stream that arrives in pieces ("IPC Streaming Format")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...errors import InvalidDataError, LimitError
from .message import MAX_PADDING, PREFIX, check_padding, parse_prefix, read_message_info


class ParsedMessage(NamedTuple):
    """A message of a stream."""

    metadata: bytes
    """The FlatBuffer, with its padding."""
    body: bytearray


class StreamParser:
    """Splits a stream into its messages. It keeps one message at a time.

    Raises `LimitError` if a message is larger than the limits, in bytes, before it arrives, and
    `InvalidDataError` if more than padding follows the end marker.

    Examples
    --------
    >>> import pyarrow as pa
    >>> stream = pa.BufferOutputStream()
    >>> with pa.ipc.new_stream(stream, pa.schema([("n", pa.int8())])) as writer:
    ...     writer.write_batch(pa.record_batch({"n": pa.array([1, 2], pa.int8())}))
    >>> parser, data = StreamParser(1 << 20, 1 << 20), stream.getvalue().to_pybytes()
    >>> messages = [message for byte in data for message in parser.feed(bytes([byte]))]
    >>> len(messages), parser.has_ended
    (2, True)
    """

    def __init__(self, max_metadata_bytes: int, max_body_bytes: int) -> None:
        self._max_metadata_bytes = max_metadata_bytes
        self._max_body_bytes = max_body_bytes
        self._head = bytearray()
        self._metadata: bytes | None = None
        self._body = bytearray()
        self._filled = 0
        self._nbytes = 0
        self._padding = bytearray()
        self.has_ended = False
        """Whether the end of the stream has arrived."""

    def feed(self, data: bytes) -> Iterator[ParsedMessage]:
        """Yield the messages that are complete with the next piece."""
        view = memoryview(data)
        while len(view):
            if self.has_ended:
                self._padding += view[: MAX_PADDING + 1]
                check_padding(self._padding, self._nbytes)
                return
            if self._metadata is None:
                view = self._read_head(view)
            else:
                part = view[: len(self._body) - self._filled]
                self._body[self._filled : self._filled + len(part)] = part
                self._filled += len(part)
                self._nbytes += len(part)
                view = view[len(part) :]
            if self._metadata is not None and self._filled == len(self._body):
                message = ParsedMessage(self._metadata, self._body)
                self._metadata, self._body, self._filled = None, bytearray(), 0
                yield message

    def _read_head(self, view: memoryview) -> memoryview:
        """Take the prefix or the metadata of a message, and return the rest."""
        wanted = PREFIX.size
        if len(self._head) >= wanted:
            prefix = parse_prefix(bytes(self._head[:wanted]))
            wanted = prefix.nbytes + prefix.metadata_length
        part = view[: wanted - len(self._head)]
        self._head += part
        self._nbytes += len(part)
        if len(self._head) == wanted:
            self._parse_head(wanted)
        return view[len(part) :]

    def _parse_head(self, wanted: int) -> None:
        prefix = parse_prefix(bytes(self._head[: PREFIX.size]))
        if prefix.nbytes != PREFIX.size:
            raise InvalidDataError(
                "the data is not an Arrow IPC stream, or one from before Arrow 0.15"
            )
        if prefix.metadata_length > self._max_metadata_bytes:
            raise LimitError(
                f"the metadata of a message has {prefix.metadata_length} bytes; "
                f"the limit is {self._max_metadata_bytes}"
            )
        if wanted == PREFIX.size:
            self.has_ended = not prefix.metadata_length
            if self.has_ended:
                self._head.clear()
            return
        self._metadata = bytes(self._head[PREFIX.size :])
        self._head.clear()
        nbytes = read_message_info(self._metadata).body_length
        if nbytes > self._max_body_bytes:
            raise LimitError(
                f"the body of a message has {nbytes} bytes; the limit is {self._max_body_bytes}"
            )
        self._body = bytearray(nbytes)
