"""From messages to record batches, without copying a body.

Two ways lead there. Where nothing depends on earlier messages (no dictionaries, this machine's
byte order), the metadata is written into the room in front of the received body, and pyarrow
decodes the contiguous message where it lies: some 2 µs a batch. Otherwise one stream reader of
pyarrow lives as long as the stream; it keeps the dictionaries, merges deltas and swaps bytes,
and is handed the pieces as they came. It wants every dictionary before the first batch, which
the Arrow specification does not ask for where a column is all null; empty ones stand in.
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import pyarrow as pa

from ..errors import InvalidDataError, LimitError, ProtocolError, SplitArrowError, UsageError
from ..formats.arrow.bounds import survey_custom_metadata
from ..formats.arrow.dictionaries import dictionary_types, empty_dictionary
from ..formats.arrow.message import (
    HeaderType,
    batch_facts,
    batch_traits,
    decoded_bytes,
    encapsulate,
    message_facts,
)
from ..formats.arrow.pieces import DECODING_ERRORS, Pieces
from ..formats.arrow.schema import is_native_endian, read_schema
from ..protocol.frames import ReceivedBody, Run
from ..protocol.limits import Limits
from ..protocol.messages import Message, single_messages
from ..protocol.tags import BodyType
from .borrowing import Borrower, FramedBody

Validation = Literal["full", "cheap", "off"]
"""How thoroughly decoded batches are checked."""

_PACKED = BodyType.PACKED
_read_record_batch = pa.ipc.read_record_batch


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
    borrower : Borrower, optional
        Finds bodies that lie in the server's memory.

    Raises
    ------
    InvalidDataError
        If the schema cannot be decoded.
    LimitError
        If it nests too deep, or becomes too large.

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
        borrower: Borrower | None = None,
    ) -> None:
        self._limits = limits
        self._borrower = borrower
        self._validate = validate
        self._stream = stream
        self._known = self._head = b""
        self._ready: bytes | None = None
        metadata = schema_message.metadata
        try:
            self.schema: pa.Schema = read_schema(
                metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
            )
            # What a cheap check of such batches looks at is in the metadata alone.
            self._fixed_width = all(pa.types.is_primitive(field.type) for field in self.schema)
            self._swapped = not is_native_endian(metadata)
            self._awaited = dictionary_types(metadata, self.schema)
            self._stand_ins_due = bool(self._awaited)
            self._held = 0
            self._pieces: Pieces | None = None
            self._reader: pa.RecordBatchStreamReader | None = None
            if self._awaited or self._swapped:
                self._pieces = Pieces()
                self._pieces.add(metadata, None)
                self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._pieces), mode="r"))
                self.schema = self._reader.schema
        except ProtocolError as error:
            error.stream, error.sequence = stream, schema_message.sequence
            raise
        except DECODING_ERRORS as error:
            raise InvalidDataError(
                f"the schema is refused: {error}", stream=stream, sequence=schema_message.sequence
            ) from None

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
        sequence, metadata, body, body_type = message
        if body_type is BodyType.OFFSETS and self._borrower is not None:
            message = self._borrowed(message, self._borrower)
            _, metadata, body, body_type = message
        if type(body) is ReceivedBody and metadata is self._ready and body_type is _PACKED:
            # The metadata was checked and framed for a message before; this is the usual case.
            head = self._head
            begin = body.start - len(head)
            if begin >= 0:
                try:
                    body.view[begin : body.start] = head
                    batch = _read_record_batch(body.buffer.slice(begin), self.schema)
                    if self._validate != "off":
                        batch.validate(full=self._validate == "full")
                    return batch
                except DECODING_ERRORS as error:
                    raise self._refused(error, sequence) from None
        if body is None or body_type is not BodyType.PACKED:
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
            if batch is not None and (self._validate != "off" or self._awaited):
                batch.validate(full=self._validate == "full" or bool(self._awaited))
        except ProtocolError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise
        except DECODING_ERRORS as error:
            raise self._refused(error, message.sequence) from None
        return batch

    def _borrowed(self, message: Message, borrower: Borrower) -> Message:
        try:
            return borrower.packed(message)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def decode_run(self, run: Run, batches: list[pa.RecordBatch]) -> None:
        """Decode the messages of a run; append their record batches to `batches`.

        Raises
        ------
        ProtocolError, InvalidDataError, LimitError
            As `decode` does. The record batches in front of the error have been appended.
        """
        sequence, head, start = run.sequence, self._head, run.start
        room = start - len(head)
        if self._ready is None or run.metadata != self._ready or room < 0:
            for message in single_messages((run,)):
                batch = self.decode(message)
                if batch is not None:
                    batches.append(batch)
            return
        view, schema = run.view, self.schema
        cut, size = run.buffer.slice, len(head) + run.nbytes
        full = self._validate == "full"
        validates = full or (self._validate == "cheap" and not self._fixed_width)
        append = batches.append
        try:
            for begin in range(room, run.count * run.stride, run.stride):
                view[begin : begin + len(head)] = head
                batch = _read_record_batch(cut(begin, size), schema)
                if validates:
                    batch.validate(full=full)
                append(batch)
                sequence += 1
        except DECODING_ERRORS as error:
            raise self._refused(error, sequence) from None

    def _refused(self, error: BaseException, sequence: int) -> InvalidDataError:
        why = f"the data is refused: {error}"
        if self._awaited:
            why += f"; no dictionary has come with the id {', '.join(map(str, self._awaited))}"
        return InvalidDataError(why, stream=self._stream, sequence=sequence)

    def _check(self, message: Message, body: ReceivedBody) -> None:
        """Check what depends on the metadata; uncompressed messages alike need it only once."""
        metadata, limits = message.metadata, self._limits
        header_type, compressed, custom_metadata = batch_traits(metadata)
        if header_type == HeaderType.DICTIONARY_BATCH:
            if self._pieces is None:
                raise ProtocolError("a dictionary for a schema that has none")
        elif header_type != HeaderType.RECORD_BATCH:
            raise ProtocolError(f"a {HeaderType(header_type).name} message among record batches")
        if custom_metadata and survey_custom_metadata(metadata, max_bytes=limits.metadata_bytes):
            compressed = True
        if compressed:
            facts = batch_facts(metadata, max_buffers=limits.buffers)
            size = decoded_bytes(facts, body.view[body.start :])
        else:
            if header_type == HeaderType.RECORD_BATCH and not self._swapped:
                self._known = metadata
                return
            # Swapping and merging make copies, also of buffers that lie over each other.
            facts = batch_facts(metadata, max_buffers=limits.buffers)
            size = sum(max(0, length) for _, length in facts.buffers)
        if size > limits.decoded_bytes:
            raise LimitError(
                f"the body of {body.nbytes} bytes becomes {size} bytes when it is decoded; "
                f"the limit is {limits.decoded_bytes}"
            )

    def _decode_alone(self, metadata: bytes, body: ReceivedBody) -> pa.RecordBatch:
        if isinstance(body, FramedBody):
            return _read_record_batch(body.buffer, self.schema)
        head = encapsulate(metadata)
        if metadata is self._known:
            self._ready, self._head = metadata, head
        begin = body.start - len(head)
        if begin < 0:
            pieces = Pieces()
            pieces.add(metadata, body.payload())
            message = pa.ipc.read_message(pa.PythonFile(cast(Any, pieces), mode="r"))
            return _read_record_batch(message, self.schema)
        body.view[begin : body.start] = head
        return _read_record_batch(body.buffer.slice(begin), self.schema)

    def _decode_in_stream(self, metadata: bytes, body: ReceivedBody) -> pa.RecordBatch | None:
        pieces, reader = self._pieces, self._reader
        assert pieces is not None
        assert reader is not None
        if message_facts(metadata).header_type is HeaderType.DICTIONARY_BATCH:
            # The reader takes it in before the next record batch.
            self._held += len(metadata) + body.nbytes
            if self._held > self._limits.body_bytes:
                raise LimitError(
                    f"dictionaries of {self._held} bytes without a record batch; "
                    f"the limit is {self._limits.body_bytes}"
                )
            if self._awaited:
                self._awaited.pop(batch_facts(metadata).dictionary_id or 0, None)
            pieces.add(metadata, body.payload())
            return None
        if self._stand_ins_due:
            self._stand_ins_due = False
            for dictionary_id, value_type in reversed(self._awaited.items()):
                pieces.add(*empty_dictionary(dictionary_id, value_type))
        pieces.add(metadata, body.payload())
        self._held = 0
        return reader.read_next_batch()
