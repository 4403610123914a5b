"""Encoding of a source's record batches as Vortex arrays.

The first message is the Arrow schema message, with a mark. The dtype of the arrays follows, and
then one array for each record batch. What arrays cannot hold precedes them as Arrow messages:
dictionary batches, and a record batch without rows, which refers to the dictionaries and has the
custom metadata of the next record batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa

from ....errors import (
    DatasetError,
    InvalidRequestError,
    MissingExtraError,
    ProtocolError,
    remote_error,
)
from ....formats.arrow.buffer_file import DECODING_ERRORS
from ....formats.arrow.encoder import MessageEncoder
from ....formats.arrow.footer_metadata import add_footer_metadata, find_footer_metadata
from ....formats.arrow.tensors.labels import is_tensor_content
from ....formats.arrow.validation import validate_memory
from ....formats.arrow.writing.schemas import adopt_schema
from ....formats.vortex.encoding import ArrayEncoder
from ....formats.vortex.message import Message
from ....formats.vortex.schema_message import mark_schema
from ....protocol.messages import MetadataType
from ....protocol.splitter import SourceMessage
from ..dataset import GROUP_BYTES, Source
from .decoding import MessageDecoder
from .generator_source import MessageGroups

_MAX_GROUP_SECONDS = 0.01


def open_array_encoder(schema: pa.Schema, dataset: str) -> ArrayEncoder:
    """Return the encoder for a dataset.

    Raises
    ------
    InvalidRequestError
        If Vortex cannot hold a column.
    RemoteError
        With the code FAILED_PRECONDITION, if the server lacks the extra.
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

    Parameters
    ----------
    source : Source
        The messages in Arrow, uncompressed. The caller closes it.
    label : str
        The source, for errors.
    dataset : str
        The name of the dataset, for errors about the request.

    Raises
    ------
    DatasetError
        If a record batch is not valid, or has a value that Vortex refuses.
    InvalidRequestError, RemoteError
        As `open_array_encoder` does.
    """
    try:
        messages = (message for group in source for message in group)
        schema_metadata = bytes(next(messages).metadata)
        decoder = MessageDecoder(schema_metadata)
        encoder = _BatchEncoder(decoder.schema, schema_metadata, dataset)
        yield encoder.begin()
        yield from _group(_encode(messages, decoder, encoder))
    except ProtocolError as error:
        raise DatasetError(
            f"{label} cannot be sent in the format 'vortex': {error.message}"
        ) from None
    except DECODING_ERRORS as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(f"{label} has invalid data: {reason}") from None


def _encode(
    messages: Iterator[SourceMessage], decoder: MessageDecoder, encoder: _BatchEncoder
) -> Iterator[list[SourceMessage]]:
    for message in messages:
        decoded = decoder.decode(message)
        if decoded is not None:
            yield encoder.encode(*decoded)


def _group(encoded: Iterator[list[SourceMessage]]) -> Iterator[list[SourceMessage]]:
    """Yield groups; see `encode_groups`."""
    group: list[SourceMessage] = []
    nbytes, started = 0, time.monotonic()
    for messages in encoded:
        group += messages
        nbytes += sum(message.body_length for message in messages)
        if nbytes >= GROUP_BYTES or time.monotonic() - started > _MAX_GROUP_SECONDS:
            yield group
            group = []
            nbytes, started = 0, time.monotonic()
    if group:
        yield group


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
