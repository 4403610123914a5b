"""From messages to record batches, without copying a body.

Messages that depend on earlier ones take a slower path: dictionaries, and foreign byte order.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ...errors import (
    InvalidDataError,
    InvalidValueWarning,
    LimitError,
    ProtocolError,
    SplitArrowError,
)
from ...formats.arrow.checker import MessageChecker
from ...formats.arrow.decoding import DECODING_ERRORS, BufferFile, validate_memory
from ...formats.arrow.message import (
    HeaderType,
    encapsulate,
    read_batch_layout,
    read_custom_metadata,
    read_message_info,
)
from ...formats.arrow.schema import encode_empty_dictionary, find_schema_facts
from ...protocol.frames import MessageRun, ReceivedBody
from ...protocol.limits import Limits
from ...protocol.messages import Message, MetadataType
from ...protocol.tags import BodyType
from ..arguments import Validation
from .batch_stream import attach_metadata
from .remote_bodies import EncapsulatedBody, RemoteBodies, RunBuffer

_MESSAGE_BYTES = 1024
"""What a dictionary that waits for a record batch takes besides its message, in bytes."""
_ENCODING_BYTES = 1 << 20
"""How much the dictionaries that wait may exceed the limit on their decoded size, in bytes."""


class StatefulDecoder:
    """Decodes messages with one pyarrow stream reader, which lives as long as the stream.

    The reader keeps the dictionaries, merges deltas and swaps bytes. It reads the messages from a
    file in memory, whose buffers are the received bodies.

    pyarrow's reader requires every dictionary before the first record batch. The Arrow
    specification allows a stream to omit the dictionary of a column without values. An empty
    dictionary then takes its place.
    """

    def __init__(self, metadata: bytes, types: dict[int, pa.DataType], limits: Limits) -> None:
        self.missing = types
        """The dictionaries that have not arrived yet."""
        self._needs_placeholders = bool(types)
        self._pending_bytes = 0
        self._decoded_sizes: dict[int, int] = {}
        """The size of each dictionary once decoded, by its id, in bytes."""
        self._limits = limits
        self._file = BufferFile()
        self._file.add(metadata, None)
        self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._file), mode="r"))
        self.schema: pa.Schema = self._reader.schema

    def decode(
        self, metadata: bytes, body: ReceivedBody, decoded_bytes: int
    ) -> pa.RecordBatch | None:
        """Return the record batch; None for a dictionary batch.

        The size of the body once decoded, in bytes, counts for dictionary batches only. They raise
        `LimitError` together.
        """
        if read_message_info(metadata).header_type is HeaderType.DICTIONARY_BATCH:
            self._add_dictionary(metadata, body, decoded_bytes)
            return None
        if self._needs_placeholders:
            self._needs_placeholders = False
            for dictionary_id, value_type in reversed(self.missing.items()):
                self._file.add(*encode_empty_dictionary(dictionary_id, value_type))
        self._file.add(metadata, body.payload())
        self._pending_bytes = 0
        return self._reader.read_next_batch()

    def _add_dictionary(self, metadata: bytes, body: ReceivedBody, decoded_bytes: int) -> None:
        """Keep a dictionary, which the reader reads before the next record batch."""
        self._pending_bytes += _MESSAGE_BYTES + len(metadata) + body.nbytes
        limit = min(self._limits.body_bytes, self._limits.decoded_bytes + _ENCODING_BYTES)
        if self._pending_bytes > limit:
            raise LimitError(
                f"{self._pending_bytes} bytes of dictionaries arrived without a record batch; "
                f"the limit is {limit}"
            )
        layout, sizes = read_batch_layout(metadata), self._decoded_sizes
        dictionary_id = layout.dictionary_id or 0
        earlier = sizes.get(dictionary_id, 0) if layout.is_delta else 0
        sizes[dictionary_id] = earlier + decoded_bytes
        total, limit = sum(sizes.values()), self._limits.decoded_bytes
        if total > limit:
            raise LimitError(
                f"the dictionaries of the stream decode to {total} bytes; the limit is {limit}"
            )
        self.missing.pop(dictionary_id, None)
        self._file.add(metadata, body.payload())


_PACKED = BodyType.PACKED
_read_record_batch = pa.ipc.read_record_batch


def refuse_format(message: Message, stream: str | None) -> ProtocolError:
    """Return the error for a message that is not Arrow in a stream whose schema does not say so."""
    name = MetadataType(message.message_type).name
    return ProtocolError(
        f"received a {name} message in a stream in the format Arrow",
        stream=stream,
        sequence=message.sequence,
    )


class BatchDecoder:
    """Decodes the messages of one stream, in order.

    The record batches share the memory of the received bodies and keep it alive. Without
    `remote_bodies`, a body of offsets is a protocol error. `ReadArguments` describes `validate`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        schema_message: Message,
        limits: Limits,
        validate: Validation = "full",
        stream: str | None = None,
        remote_bodies: RemoteBodies | None = None,
    ) -> None:
        self._remote_bodies = remote_bodies
        self._validates = validate != "off"
        self._validates_fully = validate in ("full", "strict")
        self._allows_any_value = validate != "strict"
        self._has_warned = False
        self._stream = stream
        self._has_custom_metadata = False
        self._checked_metadata = b""
        """Metadata that needs no further check."""
        self._framed_metadata: bytes | None = None
        """Metadata that was checked, and whose encapsulated form is `_head`."""
        self._head = b""
        metadata = schema_message.metadata
        self.schema = schema
        # A cheap check of such batches would look at their metadata only.
        self._is_fixed_width, self._swaps_bytes, types, plans = find_schema_facts(metadata, schema)
        self._checker = MessageChecker(
            schema,
            types,
            max_buffers=limits.buffers,
            max_metadata_bytes=limits.metadata_bytes,
            max_decoded_bytes=limits.decoded_bytes,
            copies_bodies=self._swaps_bytes,
            plans=plans,
        )
        self._stateful: StatefulDecoder | None = None
        if types or self._swaps_bytes:
            self._stateful = StatefulDecoder(metadata, dict(types), limits)
            self.schema = self._stateful.schema

    @property
    def is_stateless(self) -> bool:
        """Whether no message depends on an earlier one, or needs its bytes swapped."""
        return self._stateful is None

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message; None for a dictionary batch, which is kept.

        Raise `ProtocolError` if the message is invalid here; `InvalidDataError` and `LimitError`
        are subclasses.
        """
        sequence, metadata, body, body_type, _ = message
        if body_type is BodyType.OFFSETS and self._remote_bodies is not None:
            try:
                if message.message_type != MetadataType.ARROW:
                    raise refuse_format(message, self._stream)
                message = self._remote_bodies.resolve(message)
            except SplitArrowError as error:
                error.stream, error.sequence = self._stream, sequence
                raise
            _, metadata, body, body_type, _ = message
        if metadata is self._framed_metadata and body_type is _PACKED:
            # The usual case: an earlier message had the same metadata.
            try:
                if type(body) is ReceivedBody and (begin := body.start - len(self._head)) >= 0:
                    body.view[begin : body.start] = self._head
                    batch = _read_record_batch(body.buffer.slice(begin), self.schema)
                elif type(body) is EncapsulatedBody:
                    batch = _read_record_batch(body.buffer, self.schema)
                else:
                    return self._decode_other(message)
                if self._validates:
                    try:
                        batch.validate(full=self._validates_fully)
                    except pa.ArrowInvalid as error:
                        self._accept_values(batch, error, sequence)
                return batch
            except DECODING_ERRORS as error:
                raise self._invalid(error, sequence) from None
        return self._decode_other(message)

    def _decode_other(self, message: Message) -> pa.RecordBatch | None:
        """Decode a message that `decode` has no fast path for."""
        sequence, metadata, body, body_type, message_type = message
        if message_type != MetadataType.ARROW:
            raise refuse_format(message, self._stream)
        if body is None or body_type is not _PACKED:
            raise ProtocolError(
                "a record batch needs a packed body", stream=self._stream, sequence=sequence
            )
        decoder = self._stateful
        try:
            decoded_bytes = 0
            self._has_custom_metadata = False
            if metadata != self._checked_metadata:
                decoded_bytes = self._check(metadata, body)
            if decoder is None:
                batch = self._decode_alone(metadata, body)
                must_validate = False
            else:
                batch = decoder.decode(metadata, body, decoded_bytes)
                # A missing dictionary shows only in the indices.
                must_validate = bool(decoder.missing)
            if batch is not None and (self._validates or must_validate):
                try:
                    batch.validate(full=self._validates_fully or must_validate)
                except pa.ArrowInvalid as error:
                    self._accept_values(batch, error, sequence)
            if batch is not None and self._has_custom_metadata:
                attach_metadata(batch, read_custom_metadata(metadata))
        except ProtocolError as error:
            error.stream, error.sequence = self._stream, sequence
            raise
        except DECODING_ERRORS as error:
            raise self._invalid(error, sequence) from None
        return batch

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Decode the messages of a run; append their record batches, also those before an error."""
        if self._framed_metadata is None or run.metadata != self._framed_metadata:
            return False
        messages = self._frame_run(run)
        if messages is None:
            return False
        cut, schema, size = messages.buffer.slice, self.schema, messages.nbytes
        full = self._validates_fully
        validates = full or (self._validates and not self._is_fixed_width)
        append, sequence = batches.append, run.sequence
        try:
            for begin in range(0, run.count * messages.period, messages.period):
                batch = _read_record_batch(cut(begin, size), schema)
                if validates:
                    try:
                        batch.validate(full=full)
                    except pa.ArrowInvalid as error:
                        self._accept_values(batch, error, sequence)
                append(batch)
                sequence += 1
        except DECODING_ERRORS as error:
            raise self._invalid(error, sequence) from None
        return True

    def _frame_run(self, run: MessageRun) -> RunBuffer | None:
        """Return the encapsulated messages of a run, or None if that would need a copy."""
        if run.body_type is BodyType.OFFSETS:
            if self._remote_bodies is None:
                return None
            try:
                return self._remote_bodies.resolve_run(run)
            except SplitArrowError as error:
                error.stream, error.sequence = self._stream, run.sequence
                raise
        head = self._head
        first = run.start - len(head)
        if first < 0:
            return None
        memory = np.frombuffer(run.view, np.uint8).reshape(run.count, run.stride)
        memory[:, first : run.start] = np.frombuffer(head, np.uint8)
        return RunBuffer(run.buffer.slice(first), run.stride, len(head) + run.nbytes)

    def validate(self, batch: pa.RecordBatch, sequence: int) -> None:
        """Validate a batch that was decoded elsewhere; raise ``pyarrow.ArrowInvalid``."""
        if self._validates:
            try:
                batch.validate(full=self._validates_fully)
            except pa.ArrowInvalid as error:
                self._accept_values(batch, error, sequence)

    def _accept_values(self, batch: pa.RecordBatch, error: pa.ArrowInvalid, sequence: int) -> None:
        """Accept a batch that is invalid only because of the ranges of values, with a warning."""
        if not self._allows_any_value:
            raise error
        validate_memory(batch)
        if not self._has_warned:
            self._has_warned = True
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"{self._stream or 'the stream'}: message {sequence} has values outside of the "
                f"ranges of their types ({reason}); validate='strict' refuses them",
                InvalidValueWarning,
                stacklevel=2,
            )

    def _invalid(self, error: BaseException, sequence: int) -> InvalidDataError:
        """Return the error for data that pyarrow refuses."""
        message = f"the data is invalid: {error}"
        decoder = self._stateful
        if decoder is not None and decoder.missing:
            ids = ", ".join(map(str, decoder.missing))
            message += f"; the stream has no dictionary with the id {ids}"
        return InvalidDataError(message, stream=self._stream, sequence=sequence)

    def _check(self, metadata: bytes, body: ReceivedBody) -> int:
        """Check a message before it is decoded; return the bytes that decoding allocates.

        Uncompressed record batches with the same metadata are checked only once.
        """
        message = self._checker.check(metadata, body.view[body.start : body.start + body.nbytes])
        is_batch = message.header_type is HeaderType.RECORD_BATCH
        self._has_custom_metadata = message.has_custom_metadata and is_batch
        if message.compressed or self._swaps_bytes or not is_batch:
            return message.decoded_bytes
        if not message.has_custom_metadata:
            self._checked_metadata = metadata
        return 0

    def _decode_alone(self, metadata: bytes, body: ReceivedBody) -> pa.RecordBatch:
        """Decode a message that depends on no other."""
        head = encapsulate(metadata)
        if metadata is self._checked_metadata:
            self._framed_metadata, self._head = metadata, head
        if isinstance(body, EncapsulatedBody):
            return _read_record_batch(body.buffer, self.schema)
        begin = body.start - len(head)
        if begin < 0:  # The headroom is too small.
            file = BufferFile()
            file.add(metadata, body.payload())
            message = pa.ipc.read_message(pa.PythonFile(cast(Any, file), mode="r"))
            return _read_record_batch(message, self.schema)
        body.view[begin : body.start] = head
        return _read_record_batch(body.buffer.slice(begin), self.schema)
