"""From the messages of a stream of Vortex arrays to record batches, or to the arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError, LimitError, ProtocolError, SplitArrowError
from ...formats.arrow.decoding import validate_memory
from ...formats.arrow.message import BufferSpan
from ...formats.vortex.decoder import ArrayDecoder, require_library
from ...formats.vortex.dtype import read_dtype
from ...formats.vortex.message import Message as VortexMessage
from ...formats.vortex.message import (
    MessageHeader,
    MessageKind,
    VortexLimits,
    has_storage,
    read_header,
)
from ...formats.vortex.storage import StorageConverter, restore_rows
from ...isolation.array_decoder import IsolatedDecoder
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.messages import Message, MetadataType
from ...protocol.tags import BodyType
from ..arguments import Validation
from .batch_decoder import BatchDecoder
from .batch_stream import attach_metadata, find_metadata
from .remote_bodies import RemoteBodies


class VortexDecoder:
    """Decodes the messages of one stream of Vortex arrays, in order.

    Dictionaries and custom metadata arrive as Arrow messages: dictionary batches, and a record
    batch without rows before the array that it is for. The structure of an array is always checked.
    With ``strict`` and ``full``, a child process decodes it. Without `remote_bodies`, a body of
    offsets is a protocol error.
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
        require_library()
        self._arrow = BatchDecoder(schema, schema_message, limits, validate, stream, remote_bodies)
        self.schema: pa.Schema = self._arrow.schema
        """The schema of the record batches."""
        self._converter = (
            StorageConverter(self.schema) if has_storage(schema_message.metadata) else None
        )
        self._limits = _convert_limits(limits)
        self._validate: Validation = validate
        self._stream = stream
        self._remote_bodies = remote_bodies
        stored = self.schema if self._converter is None else self._converter.storage_schema
        self._storage_type: Any = pa.struct(list(stored))
        self._is_stranger = validate in ("full", "strict")
        self._dtype: VortexMessage | None = None
        self._decoder: ArrayDecoder | IsolatedDecoder | None = None
        self._template: pa.RecordBatch | None = None
        self._custom_metadata: dict[bytes, bytes] | None = None

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of an array; None for any other message."""
        try:
            array = self._take_array(message)
            return None if array is None else self._restore(array, message.sequence)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def decode_array(self, message: Message) -> Any:
        """Return the ``vortex.Array`` of a message; None if it has none."""
        try:
            received = self._take_array(message)
            if received is None:
                return None
            if not isinstance(self._decoder, ArrayDecoder):
                assert self._dtype is not None
                self._decoder = ArrayDecoder(self._dtype, self._limits)
            return self._decoder.decode(received)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Return False: the messages of a run are decoded one by one."""
        del run, batches
        return False

    def _take_array(self, message: Message) -> VortexMessage | None:
        """Return an array message; keep any other."""
        if message.message_type != MetadataType.VORTEX:
            self._take_template(message)
            return None
        header = read_header(message.metadata, self._limits)
        body = self._find_body(message, header)
        expected = MessageKind.DTYPE if self._dtype is None else MessageKind.ARRAY
        if header.kind is not expected:
            raise ProtocolError(
                f"received a Vortex message of the type {header.kind.name}; expected "
                f"{expected.name}"
            )
        received = VortexMessage(message.metadata, header, (body,))
        if expected is MessageKind.ARRAY:
            return received
        read_dtype(body, self._limits)
        self._dtype = received
        return None

    def _take_template(self, message: Message) -> None:
        batch = self._arrow.decode(message)
        if batch is None:
            return
        if batch.num_rows:
            raise ProtocolError(
                f"received a record batch with {batch.num_rows} rows in a stream of Vortex arrays"
            )
        self._template, self._custom_metadata = batch, find_metadata(batch)

    def _find_body(self, message: Message, header: MessageHeader) -> Any:
        body, remote = message.body, self._remote_bodies
        if message.body_type is BodyType.OFFSETS and remote is not None:
            (buffer,) = remote.resolve_buffers(message, [BufferSpan(0, header.body_size)])
            return memoryview(buffer).cast("B")
        if body is None or message.body_type is not BodyType.PACKED:
            raise ProtocolError("a Vortex message needs a packed body")
        return memoryview(body.payload()).cast("B")

    def _restore(self, message: VortexMessage, sequence: int) -> pa.RecordBatch:
        decoder = self._decoder
        if decoder is None:
            assert self._dtype is not None
            make = IsolatedDecoder if self._is_stranger else ArrayDecoder
            decoder = self._decoder = make(self._dtype, self._limits)
        storage: Any = decoder.decode_arrow(message, self._storage_type)
        if storage.nbytes > self._limits.decoded_bytes:
            raise LimitError(
                f"the array decodes to {storage.nbytes} bytes; the limit is "
                f"{self._limits.decoded_bytes}"
            )
        try:
            if self._is_stranger:
                validate_memory(storage)
            elif self._validate != "off":
                storage.validate()
            if self._converter is None:
                batch = restore_rows(storage, self.schema)
            else:
                batch = self._converter.restore(storage, self._template)
            self._arrow.validate(batch, sequence)
        except pa.ArrowException as error:
            raise InvalidDataError(f"the data is invalid: {error}") from None
        attach_metadata(batch, self._custom_metadata)
        self._custom_metadata = None
        return batch


def _convert_limits(limits: Limits) -> VortexLimits:
    most = VortexLimits()
    return replace(
        most,
        metadata_bytes=limits.metadata_bytes,
        body_bytes=limits.body_bytes,
        decoded_bytes=limits.decoded_bytes,
        buffers=min(limits.buffers, most.buffers),
        nesting=limits.nesting,
    )
