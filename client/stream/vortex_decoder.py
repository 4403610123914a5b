"""From the messages of a stream of Vortex arrays to record batches, or to the arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError, LimitError, ProtocolError, SplitArrowError
from ...formats.arrow.message import BufferSpan
from ...formats.arrow.validation import validate_memory
from ...formats.vortex.checker import check_array
from ...formats.vortex.compression import decode_body
from ...formats.vortex.dtype import DType, read_dtype
from ...formats.vortex.library import import_vortex, translate_errors
from ...formats.vortex.limits import VortexLimits
from ...formats.vortex.message import (
    Message as VortexMessage,
)
from ...formats.vortex.message import (
    MessageHeader,
    MessageKind,
    build_message,
    encode_message,
    read_header,
)
from ...formats.vortex.storage import StorageConverter
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.messages import Message, MetadataType
from ...protocol.tags import BodyType
from .batch_decoder import BatchDecoder
from .custom_metadata import attach_metadata, find_metadata
from .options import Validation
from .remote_bodies import RemoteBodies


class VortexDecoder:
    """Decodes the messages of one stream of Vortex arrays, in order.

    Dictionaries and custom metadata arrive as Arrow messages: dictionary batches, and a record
    batch without rows before the array that it is for.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the stream.
    schema_message : Message
        The first message of the stream.
    limits : Limits
        Bounds on nesting, buffers and decoded sizes.
    validate : {"strict", "full", "cheap", "off"}
        How thoroughly the record batches are checked. The structure of the arrays always is.
    stream : str, optional
        The name of the stream, for errors.
    remote_bodies : RemoteBodies, optional
        Resolves bodies of offsets. Without it, they are a protocol error.

    Raises
    ------
    MissingExtraError
        If vortex-data is not installed.
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
        self._vortex = import_vortex()
        self._arrow = BatchDecoder(schema, schema_message, limits, validate, stream, remote_bodies)
        self.schema: pa.Schema = self._arrow.schema
        """The schema of the record batches."""
        self._converter = StorageConverter(self.schema)
        self._limits = _convert_limits(limits)
        self._validate: Validation = validate
        self._stream = stream
        self._remote_bodies = remote_bodies
        self._dtype: DType | None = None
        self._dtype_parts: list[Any] = []
        self._template: pa.RecordBatch | None = None
        self._custom_metadata: dict[bytes, bytes] | None = None

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of an array; None for any other message.

        Raises
        ------
        ProtocolError
            If a stream of arrays cannot contain the message. `LimitError` and `InvalidDataError`
            are subclasses.
        DatasetError
            If the body is in a file that has changed.
        """
        try:
            array = self._take_array(message)
            return None if array is None else self._restore(array)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def decode_array(self, message: Message) -> Any:
        """Return the ``vortex.Array`` of a message; None if it has none. Errors as `decode`."""
        try:
            return self._take_array(message)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Return False: the messages of a run are decoded one by one."""
        del run, batches
        return False

    def _take_array(self, message: Message) -> Any:
        if message.message_type != MetadataType.VORTEX:
            self._take_template(message)
            return None
        header = read_header(message.metadata, self._limits)
        body = self._find_body(message, header)
        if header.kind is MessageKind.DTYPE:
            self._take_dtype(header, body)
            return None
        expected = MessageKind.DTYPE if self._dtype is None else MessageKind.ARRAY
        if self._dtype is None or header.kind is not expected:
            raise _unexpected(header, expected)
        checked = check_array(header, body, self._dtype, self._limits)
        pieces = decode_body(checked.body, self._limits.decoded_bytes)
        if len(pieces) == 1 and pieces[0] is checked.body.data:
            received = VortexMessage(message.metadata, header, pieces)
        else:
            received = build_message(
                MessageKind.ARRAY, pieces, row_count=header.row_count, encodings=header.encodings
            )
        with translate_errors("decode the array"):
            array = self._vortex.serde.decode_ipc_array_buffers(
                encode_message(received), self._dtype_parts
            )
            rows = len(array)
        if rows != header.row_count:
            raise InvalidDataError(
                f"the array has {rows} rows; its message declares {header.row_count}"
            )
        return array

    def _take_template(self, message: Message) -> None:
        batch = self._arrow.decode(message)
        if batch is None:
            return
        if batch.num_rows:
            raise ProtocolError(
                f"received a record batch with {batch.num_rows} rows in a stream of Vortex arrays"
            )
        self._template, self._custom_metadata = batch, find_metadata(batch)

    def _take_dtype(self, header: MessageHeader, body: Any) -> None:
        if self._dtype is not None:
            raise _unexpected(header, MessageKind.ARRAY)
        self._dtype = read_dtype(body, self._limits)
        message = build_message(MessageKind.DTYPE, [bytes(body)])
        self._dtype_parts = [bytes(part) for part in encode_message(message)]

    def _find_body(self, message: Message, header: MessageHeader) -> Any:
        body, remote = message.body, self._remote_bodies
        if message.body_type is BodyType.OFFSETS and remote is not None:
            (buffer,) = remote.resolve_buffers(message, [BufferSpan(0, header.body_size)])
            return memoryview(buffer).cast("B")
        if body is None or message.body_type is not BodyType.PACKED:
            raise ProtocolError("a Vortex message needs a packed body")
        return memoryview(body.payload()).cast("B")

    def _restore(self, array: Any) -> pa.RecordBatch:
        storage_type: Any = pa.struct(list(self._converter.storage_schema))
        with translate_errors("convert the array to Arrow"):
            storage = array.to_arrow_array(arrow_type=storage_type)
        if isinstance(storage, pa.ChunkedArray):
            storage = storage.combine_chunks()
        if storage.nbytes > self._limits.decoded_bytes:
            raise LimitError(
                f"the array decodes to {storage.nbytes} bytes; the limit is "
                f"{self._limits.decoded_bytes}"
            )
        try:
            if self._validate != "off":
                storage.validate(full=self._validate in ("full", "strict"))
            batch = self._converter.restore(storage, self._template)
            if self._validate == "strict":
                batch.validate(full=True)
            elif self._validate == "full":
                validate_memory(batch)
        except pa.ArrowException as error:
            raise InvalidDataError(f"the data is invalid: {error}") from None
        attach_metadata(batch, self._custom_metadata)
        self._custom_metadata = None
        return batch


def _unexpected(header: MessageHeader, expected: MessageKind) -> ProtocolError:
    return ProtocolError(
        f"received a Vortex message of the type {header.kind.name}; expected {expected.name}"
    )


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
