"""The messages of an upload, decoded and checked one after the other."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from ...formats.arrow.bounds import survey_custom_metadata
from ...formats.arrow.dictionaries import dictionary_types
from ...formats.arrow.headers import read_header
from ...formats.arrow.message import (
    HeaderType,
    batch_facts,
    batch_traits,
    decoded_bytes,
)
from ...formats.arrow.pieces import DECODING_ERRORS, Pieces
from ...formats.arrow.schema import read_schema
from ...protocol.limits import Limits


class IncomingBatch(NamedTuple):
    """A record batch of an upload. It shares the memory of what was received."""

    batch: pa.RecordBatch
    """The data, validated in full."""
    custom_metadata: Any
    """The custom metadata of its message, or None."""
    codec: str | None
    """How it was compressed: ``lz4``, ``zstd``, or None."""
    decoded_bytes: int
    """How many bytes its buffers have together."""


class UploadReader:
    """Decodes the messages of one upload. One thread at a time may use it.

    Parameters
    ----------
    schema_metadata : bytes
        The FlatBuffer of the first message.
    limits : Limits
        Bounds on nesting, buffers and sizes.

    Raises
    ------
    ProtocolError
        If the first message is no schema, or one that cannot be decoded.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the upload.
    has_dictionaries : bool
        Whether columns are dictionary-encoded.
    """

    def __init__(self, schema_metadata: bytes, limits: Limits) -> None:
        self._limits = limits
        schema = read_schema(
            schema_metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
        )
        self.has_dictionaries = bool(dictionary_types(schema_metadata, schema))
        self._pieces = Pieces()
        self._pieces.add(schema_metadata, None)
        self._held = 0
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._pieces), mode="r"))
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the schema is refused: {error}") from None
        self.schema: pa.Schema = self._reader.schema

    def feed(self, metadata: memoryview, body: pa.Buffer) -> IncomingBatch | None:
        """Return the record batch of a message; None for a dictionary, which is kept.

        Raises
        ------
        ProtocolError
            If it is neither, is malformed, does not validate, or exceeds the limits.
        """
        limits = self._limits
        if len(metadata) > limits.metadata_bytes:
            raise LimitError(f"a message with {len(metadata)} bytes of metadata")
        header = bytes(metadata)
        traits = batch_traits(header)
        kinds = (HeaderType.RECORD_BATCH, HeaderType.DICTIONARY_BATCH)
        if traits.header_type not in kinds[: 1 + self.has_dictionaries]:
            raise InvalidDataError(
                f"a {HeaderType(traits.header_type).name} message among record batches"
            )
        compressed = traits.compressed
        if traits.custom_metadata:
            compressed |= survey_custom_metadata(header, max_bytes=limits.metadata_bytes)
        facts = batch_facts(header, max_buffers=limits.buffers)
        if compressed:
            size = decoded_bytes(facts, memoryview(body))
        else:
            size = sum(max(0, length) for _, length in facts.buffers)
        self._held += size
        if self._held > limits.decoded_bytes:
            raise LimitError(
                f"a record batch of {self._held} bytes with its dictionaries; "
                f"the limit is {limits.decoded_bytes}"
            )
        if read_header(header).body_length != body.size:
            raise InvalidDataError(f"a body of {body.size} bytes that declares another size")
        self._pieces.add(header, body)
        if traits.header_type == HeaderType.DICTIONARY_BATCH:
            return None
        size, self._held = self._held, 0
        try:
            batch, custom_metadata = self._reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
        except DECODING_ERRORS as error:
            raise InvalidDataError(f"the data is refused: {error}") from None
        return IncomingBatch(batch, custom_metadata, read_header(header).codec, size)
