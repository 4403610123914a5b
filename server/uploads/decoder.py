"""Decoding and validating the messages of an upload."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from ...formats.arrow.buffer_file import DECODING_ERRORS, BufferFile
from ...formats.arrow.checker import MessageChecker
from ...formats.arrow.dictionaries import read_dictionary_types
from ...formats.arrow.headers import read_header
from ...formats.arrow.message import HeaderType
from ...formats.arrow.schema import read_schema
from ...formats.arrow.validation import validate_memory
from ...protocol.limits import Limits


class DecodedBatch(NamedTuple):
    """A record batch of an upload. It shares the memory of the received message."""

    batch: pa.RecordBatch
    """The data, validated in full."""
    custom_metadata: Any
    """The custom metadata of the message, or None."""
    codec: str | None
    """The compression of the message: ``lz4``, ``zstd``, or None."""
    nbytes: int
    """The size of its buffers and of new dictionaries after decompression, in bytes."""


class UploadDecoder:
    """Decodes the messages of one upload, in order. One thread at a time may use it.

    Parameters
    ----------
    schema_metadata : bytes
        The FlatBuffer of the schema message.
    limits : Limits
        Bounds on nesting, buffers and sizes.

    Raises
    ------
    ProtocolError
        If the message is not a schema, or cannot be decoded.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the upload.
    has_dictionaries : bool
        Whether a column is dictionary-encoded.
    """

    def __init__(self, schema_metadata: bytes, limits: Limits) -> None:
        self._limits = limits
        schema = read_schema(
            schema_metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
        )
        types = read_dictionary_types(schema_metadata, schema)
        self.has_dictionaries = bool(types)
        self._checker = MessageChecker(
            schema,
            types,
            max_buffers=limits.buffers,
            max_metadata_bytes=limits.metadata_bytes,
            max_decoded_bytes=limits.decoded_bytes,
        )
        self._input = BufferFile()
        self._input.add(schema_metadata, None)
        self._pending_bytes = 0
        """The decompressed size of the dictionaries since the last record batch."""
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._input), mode="r"))
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the schema is invalid: {error}") from None
        self.schema: pa.Schema = self._reader.schema

    def decode(self, metadata: memoryview, body: pa.Buffer) -> DecodedBatch | None:
        """Return the record batch of a message; None for a dictionary batch, which is kept.

        Raises
        ------
        InvalidDataError
            If the message is of another type, is malformed, or does not validate.
        LimitError
            If it exceeds the limits.
        """
        if len(metadata) > self._limits.metadata_bytes:
            raise LimitError(
                f"the metadata of a message has {len(metadata)} bytes; "
                f"the limit is {self._limits.metadata_bytes}"
            )
        header = bytes(metadata)
        header_type = self._check(header, body)
        self._input.add(header, body)
        if header_type is HeaderType.DICTIONARY_BATCH:
            return None
        nbytes, self._pending_bytes = self._pending_bytes, 0
        try:
            batch, custom_metadata = self._reader.read_next_batch_with_custom_metadata()
            validate_memory(batch)
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the data is invalid: {error}") from None
        return DecodedBatch(batch, custom_metadata, read_header(header).codec, nbytes)

    def _check(self, metadata: bytes, body: pa.Buffer) -> HeaderType:
        """Check a message before pyarrow decodes it, and return its type."""
        message = self._checker.check(metadata, memoryview(body))
        self._pending_bytes += message.decoded_bytes
        if self._pending_bytes > self._limits.decoded_bytes:
            raise LimitError(
                f"a record batch has {self._pending_bytes} bytes with its dictionaries; "
                f"the limit is {self._limits.decoded_bytes}"
            )
        return message.header_type
