"""Any dataset as Vortex arrays, for readers that request this format.

The first message is the Arrow schema message, with a mark. The dtype of the arrays follows, and
then one array for each record batch. What arrays cannot hold precedes them as Arrow messages:
dictionary batches, and a record batch without rows, which refers to the dictionaries and has
the custom metadata of the next record batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from ...errors import (
    DatasetError,
    InvalidRequestError,
    MissingExtraError,
    ProtocolError,
    remote_error,
)
from ...formats.arrow.custom_metadata import add_footer_metadata, find_footer_metadata
from ...formats.arrow.decoding import DECODING_ERRORS, BufferFile, validate_memory
from ...formats.arrow.encoder import MessageEncoder
from ...formats.arrow.message import read_batch_table
from ...formats.arrow.schema import encode_empty_dictionary, read_dictionary_types, read_schema
from ...formats.arrow.schema_rewriter import adopt_schema
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.vortex.encoder import ArrayEncoder
from ...formats.vortex.message import Message, mark_schema
from ...protocol.messages import MetadataType
from ...protocol.request import Request
from ...protocol.splitter import SourceMessage
from ...transport.memory.files import FileSpan
from .dataset import (
    GROUP_BYTES,
    DatasetView,
    Encoding,
    GeneratorSource,
    Measures,
    MessageGroups,
    ServedDataset,
    Source,
)
from .files.vortex import VortexStreamDataset

VORTEX = "vortex"
"""The name of the format in requests."""
_MAX_GROUP_SECONDS = 0.01


class MessageDecoder:
    """Decodes the messages of one source, in order.

    A dictionary that has not arrived before the first record batch is empty; the Arrow
    specification allows that for a column of nulls.

    Raises `ProtocolError`, `pyarrow.ArrowException` if the schema is malformed.
    """

    def __init__(self, schema_metadata: bytes) -> None:
        schema = read_schema(schema_metadata)
        self._missing = read_dictionary_types(schema_metadata, schema)
        self._has_begun = False
        self._file = BufferFile()
        self._file.add(schema_metadata, None)
        self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._file), mode="r"))
        self.schema: pa.Schema = self._reader.schema
        """The schema of the record batches, in the byte order of this machine."""

    def decode(
        self, message: SourceMessage
    ) -> tuple[pa.RecordBatch, Mapping[bytes, bytes] | None] | None:
        """Return a record batch and the custom metadata of its message; None for a dictionary.

        Raises one of `DECODING_ERRORS` or `ProtocolError` if the message cannot be decoded, and
        `DatasetError` if its body is in a file that has changed.
        """
        metadata = bytes(message.metadata)
        body = _join(message)
        dictionary_id = read_batch_table(metadata).dictionary_id
        if dictionary_id is not None:
            self._missing.pop(dictionary_id, None)
            self._file.add(metadata, body)
            return None
        if not self._has_begun:
            self._has_begun = True
            for missing_id, value_type in reversed(self._missing.items()):
                self._file.add(*encode_empty_dictionary(missing_id, value_type))
        self._file.add(metadata, body)
        reader: Any = self._reader
        batch, custom_metadata = reader.read_next_batch_with_custom_metadata()
        return batch, None if custom_metadata is None else dict(custom_metadata)


def _join(message: SourceMessage) -> pa.Buffer:
    """Return the body in one piece, without a copy if it is one in memory."""
    body = message.body or ()
    if len(body) == 1 and not isinstance(body[0], FileSpan):
        return pa.py_buffer(body[0])
    return read_body(message, 0, message.body_length)


def read_body(message: SourceMessage, begin: int, end: int) -> pa.Buffer:
    """Return a copy of a part of the body of a message, from memory and from files."""
    found = pa.allocate_buffer(end - begin)
    target = memoryview(cast(Any, found)).cast("B")
    position = -begin
    for part in message.body or ():
        is_span = isinstance(part, FileSpan)
        size = part.nbytes if is_span else memoryview(part).nbytes
        first, last = max(-position, 0), min(end - begin - position, size)
        if first < last:
            place = target[position + first : position + last]
            if is_span:
                FileSpan(part.file, part.offset + first, last - first).read_into(place)
            else:
                place[:] = memoryview(part).cast("B")[first:last]
        position += size
    return found


def open_array_encoder(schema: pa.Schema, dataset: str) -> ArrayEncoder:
    """Return the encoder for a dataset.

    Raises `InvalidRequestError` if Vortex cannot hold a column, and `RemoteError`
    (FAILED_PRECONDITION) if the server lacks the extra.
    """
    if is_tensor_content(schema):
        raise InvalidRequestError(
            "the dataset holds tensors, which have no form in Vortex; read it in the format "
            "'arrow'",
            stream=dataset,
        )
    try:
        return ArrayEncoder(schema)
    except MissingExtraError as error:
        raise remote_error(
            "FAILED_PRECONDITION", f"the server cannot encode: {error}", stream=dataset
        ) from None
    except ProtocolError as error:
        raise InvalidRequestError(error.message, stream=dataset) from None


def encode_arrays(source: Source, label: str, dataset: str) -> MessageGroups:
    """Yield the messages of a source in groups, with Vortex arrays for its record batches.

    The caller closes the source. Raises `DatasetError` if a record batch is not valid, or has a
    value that Vortex refuses, and the errors of `open_array_encoder`.
    """
    try:
        messages = (message for group in source for message in group)
        schema_metadata = bytes(next(messages).metadata)
        decoder = MessageDecoder(schema_metadata)
        encoder = _BatchEncoder(decoder.schema, schema_metadata, dataset)
        yield encoder.begin()
        group: list[SourceMessage] = []
        nbytes, started = 0, time.monotonic()
        for message in messages:
            decoded = decoder.decode(message)
            if decoded is None:
                continue
            encoded = encoder.encode(*decoded)
            group += encoded
            nbytes += sum(each.body_length for each in encoded)
            if nbytes >= GROUP_BYTES or time.monotonic() - started > _MAX_GROUP_SECONDS:
                yield group
                group = []
                nbytes, started = 0, time.monotonic()
        if group:
            yield group
    except ProtocolError as error:
        raise DatasetError(
            f"{label} cannot be sent in the format 'vortex': {error.message}"
        ) from None
    except DECODING_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"{label} has invalid data: {reason}") from None


class _BatchEncoder:
    """Encodes the record batches of one stream."""

    def __init__(self, schema: pa.Schema, schema_metadata: bytes, dataset: str) -> None:
        self._arrays = open_array_encoder(schema, dataset)
        self._arrow = MessageEncoder(schema)
        self._schema_metadata = schema_metadata

    def begin(self) -> list[SourceMessage]:
        """Return the messages before the first batch."""
        metadata = adopt_schema(self._schema_metadata, bytes(self._arrow.schema_message.metadata))
        footer = find_footer_metadata(self._schema_metadata)
        if footer is not None:
            metadata = add_footer_metadata(metadata, footer)
        return [
            SourceMessage(mark_schema(metadata), None),
            _make_message(self._arrays.dtype_message),
        ]

    def encode(
        self, batch: pa.RecordBatch, custom_metadata: Mapping[bytes, bytes] | None
    ) -> list[SourceMessage]:
        """Return the messages of a batch."""
        validate_memory(batch)
        template = self._arrow.encode(batch.slice(0, 0), custom_metadata)
        # A template alone says nothing new.
        needed = template if len(template) > 1 or custom_metadata else []
        array = self._arrays.encode(batch)
        return [
            *(SourceMessage(*message)._replace(rows=0) for message in needed),
            _make_message(array),
        ]


def _make_message(message: Message) -> SourceMessage:
    header = message.header
    return SourceMessage(
        message.metadata, message.body, header.body_size, header.row_count, MetadataType.VORTEX
    )


class VortexDataset(DatasetView):
    """A dataset whose record batches are sent as Vortex arrays.

    The record batches are those of the dataset: shards, filters, columns, limits and batch sizes
    apply before they are encoded.
    """

    def __init__(self, original: ServedDataset) -> None:
        self._original = original

    @property
    def described(self) -> ServedDataset:
        """The dataset with the record batches. The catalog closes it."""
        return self._original

    def open(self, request: Request, encoding: Encoding) -> Source:
        """Open the dataset for one reader; see `ServedDataset.open`.

        Raises `RemoteError` (FAILED_PRECONDITION) if the server lacks the extra ``vortex``.
        """
        stored = self.open_stored(request, regions=encoding.regions)
        if stored is not None:
            return stored
        plain = replace(request, format=None, compression="none")
        source = self._original.open(
            plain, Encoding(None, encoding.batch_rows, budget=encoding.budget)
        )
        label = f"the dataset {request.dataset!r}"
        encoded = GeneratorSource(encode_arrays(source, label, request.dataset), blocking=True)
        encoded.call_on_close(source.close)  # a generator that has not begun runs no cleanup
        return encoded

    def open_stored(self, request: Request, *, regions: bool = False) -> Source | None:
        """Open stored arrays, which need no encoding; None if the request needs others."""
        if not isinstance(self._original, VortexStreamDataset):
            return None
        return self._original.open_arrays(request, regions=regions)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`."""
        return self._original.measure_batches(replace(request, format=None), encoding)
