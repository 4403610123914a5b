"""From messages to record batches, without copying a body.

Two ways lead there. Where nothing depends on earlier messages (no dictionaries, this machine's
byte order), the metadata is written into the room in front of the received body, and pyarrow
decodes the contiguous message where it lies: some 2 µs a batch. Otherwise one stream reader of
pyarrow lives as long as the stream; it keeps the dictionaries, merges deltas and swaps bytes,
and is handed the pieces as they came.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, Literal, cast, get_args

import pyarrow as pa

from ..errors import InvalidDataError, LimitError, ProtocolError, UsageError
from ..formats.arrow.message import (
    CONTINUATION,
    HeaderType,
    batch_facts,
    decoded_bytes,
    encapsulate,
    is_compressed,
    message_facts,
    padded,
)
from ..formats.arrow.schema import has_dictionaries, is_native_endian, read_schema
from ..protocol.frames import ReceivedBody
from ..protocol.limits import Limits
from ..protocol.messages import Message
from ..protocol.tags import BodyType

Validation = Literal["full", "cheap", "off"]
"""How thoroughly decoded batches are checked."""

_PREFIX = struct.Struct("<4sI")
_DECODING = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError)


def checked_validation(value: str) -> Validation:
    """Return `value` if it is a `Validation`.

    Raises
    ------
    UsageError
        If it is not.
    """
    if value not in get_args(Validation):
        raise UsageError(f"validate={value!r}: it is one of {', '.join(get_args(Validation))}")
    return value  # pyright: ignore[reportReturnType]


class _Pieces:
    """A file for pyarrow to read from that hands out buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self._pieces: deque[pa.Buffer] = deque()
        self._position = 0

    def add(self, metadata: bytes, body: pa.Buffer | None) -> None:
        head = pa.py_buffer(encapsulate(metadata))
        self._pieces.append(head)
        if body is not None and body.size:
            self._pieces.append(body)

    def read_buffer(self, nbytes: int) -> pa.Buffer:
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
        return self.read_buffer(nbytes)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._pieces.clear()


class BatchDecoder:
    """Decodes the messages of one stream, in order.

    The record batches share the memory of the received bodies and keep it alive.

    Parameters
    ----------
    schema_message : Message
        Message 0 of the stream.
    limits : Limits
        Bounds on nesting, buffers and decompressed sizes.
    validate : {"full", "cheap", "off"}
        ``full`` checks every value that a consumer relies on (offsets, UTF-8, indices);
        ``cheap`` only the sizes of buffers; ``off`` nothing, for peers that are trusted.
    stream : str, optional
        The stream's name, for errors.

    Raises
    ------
    InvalidDataError
        If the schema cannot be decoded.
    LimitError
        If it nests too deep.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the stream.
    """

    def __init__(
        self,
        schema_message: Message,
        limits: Limits,
        validate: Validation = "full",
        stream: str | None = None,
    ) -> None:
        self._limits = limits
        self._validate = validate
        self._stream = stream
        self._known = b""
        metadata = schema_message.metadata
        self.schema: pa.Schema = read_schema(metadata, max_nesting=limits.nesting)
        self._pieces: _Pieces | None = None
        self._reader: pa.RecordBatchStreamReader | None = None
        if has_dictionaries(self.schema) or not is_native_endian(metadata):
            self._pieces = _Pieces()
            self._pieces.add(metadata, None)
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._pieces), mode="r"))
            self.schema = self._reader.schema

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message; None for a dictionary batch, which is kept.

        Raises
        ------
        ProtocolError
            If the message is of a kind that a stream of record batches does not hold.
        InvalidDataError
            If it cannot be decoded or does not validate; the message says what was refused.
        LimitError
            If it would grow beyond the limits when decompressed.
        """
        body = message.body
        if body is None or message.body_type is not BodyType.PACKED:
            raise ProtocolError(
                "a message without packed body among record batches",
                stream=self._stream,
                sequence=message.sequence,
            )
        try:
            if message.metadata != self._known:
                self._check(message, body)
            if self._pieces is None:
                batch = self._decode_alone(message.metadata, body)
            else:
                batch = self._decode_in_stream(message.metadata, body)
            if batch is not None and self._validate != "off":
                batch.validate(full=self._validate == "full")
        except ProtocolError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise
        except _DECODING as error:
            raise InvalidDataError(
                f"the data is refused: {error}", stream=self._stream, sequence=message.sequence
            ) from None
        return batch

    def _check(self, message: Message, body: ReceivedBody) -> None:
        """Check what depends on the metadata; uncompressed messages alike need it only once."""
        metadata = message.metadata
        header_type = message_facts(metadata).header_type
        if header_type is HeaderType.DICTIONARY_BATCH:
            if self._pieces is None:
                raise ProtocolError("a dictionary for a schema that has none")
        elif header_type is not HeaderType.RECORD_BATCH:
            raise ProtocolError(f"a {header_type.name} message among record batches")
        if not is_compressed(metadata):
            self._known = metadata
            return
        facts = batch_facts(metadata, max_buffers=self._limits.buffers)
        size = decoded_bytes(facts, body.view[body.start :])
        if size > self._limits.decoded_bytes:
            raise LimitError(
                f"the body of {body.nbytes} bytes declares {size} bytes decompressed; "
                f"the limit is {self._limits.decoded_bytes}"
            )

    def _decode_alone(self, metadata: bytes, body: ReceivedBody) -> pa.RecordBatch:
        size = padded(len(metadata))
        begin = body.start - size - _PREFIX.size
        if begin < 0:
            pieces = _Pieces()
            pieces.add(metadata, body.payload())
            message = pa.ipc.read_message(pa.PythonFile(cast(Any, pieces), mode="r"))
            return pa.ipc.read_record_batch(message, self.schema)
        view = body.view
        at = begin + _PREFIX.size
        view[begin:at] = _PREFIX.pack(CONTINUATION, size)
        view[at : at + len(metadata)] = metadata
        if size != len(metadata):
            view[at + len(metadata) : body.start] = bytes(size - len(metadata))
        return pa.ipc.read_record_batch(body.buffer.slice(begin), self.schema)

    def _decode_in_stream(self, metadata: bytes, body: ReceivedBody) -> pa.RecordBatch | None:
        assert self._pieces is not None
        assert self._reader is not None
        self._pieces.add(metadata, body.payload())
        if message_facts(metadata).header_type is HeaderType.DICTIONARY_BATCH:
            return None  # the reader takes it in before the next record batch
        return self._reader.read_next_batch()
