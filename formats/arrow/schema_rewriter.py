"""Schema messages with another byte order, version, list of features or choice of columns.

The FlatBuffer of the original message becomes a part of the new one, and the new tables refer to
the fields and the custom metadata in it. So everything else that a writer has put into the schema
is kept: the names of the children of maps, and the IDs of dictionaries that fields share.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any

import flatbuffers

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from .custom_metadata import Pairs, write_pairs
from .file import BLOCK, Blocks
from .metadata_limits import survey_schema
from .schema import read_features

_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError)
_ALIGNMENT = 8
# The slots of fields in the vtables of Schema and Message.
_FIELDS, _SCHEMA_METADATA, _MESSAGE_METADATA = 6, 8, 12


def find_schema(metadata: bytes | memoryview) -> fbs.Schema:
    """Return the table ``Schema`` of a schema message that pyarrow has accepted.

    Raises `InvalidDataError` if the metadata is malformed or that of another message.
    """
    try:
        message: Any = fbs.Message.GetRootAs(metadata, 0)
        if message.HeaderType() != fbs.MessageHeader.Schema:
            raise InvalidDataError("the message is not a schema")
        header = message.Header()
        schema = fbs.Schema()
        schema.Init(header.Bytes, header.Pos)
        schema.FieldsLength()
    except _PARSE_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return schema


def rewrite_schema(
    metadata: bytes,
    *,
    endianness: int | None = None,
    version: int | None = None,
    features: Collection[int] | None = None,
    columns: Sequence[int] | None = None,
    drops_message_metadata: bool = False,
) -> bytes:
    """Return a schema message with some properties changed. None keeps a property.

    `columns` is the columns to keep, in order. Raises `InvalidDataError` if the metadata is
    malformed.
    """
    original = _Original(metadata)
    header = original.add_schema(endianness, features, columns)
    builder = original.builder
    message: Any = original.message
    old_version = message.Version()
    fbs.MessageStart(builder)
    fbs.MessageAddVersion(builder, old_version if version is None else version)
    fbs.MessageAddHeaderType(builder, fbs.MessageHeader.Schema)
    fbs.MessageAddHeader(builder, header)
    if not drops_message_metadata:
        custom = original.find_vector(message, _MESSAGE_METADATA)
        if custom:
            fbs.MessageAddCustomMetadata(builder, custom)
    builder.Finish(fbs.MessageEnd(builder))
    return bytes(builder.Output())


def adopt_schema(original: bytes, encoded: bytes, columns: Sequence[int] | None = None) -> bytes:
    """Return the schema message for batches that pyarrow encodes, with what pyarrow would lose.

    `columns` is the columns of the source, in order. None means all.
    """
    fields: Any = find_schema(encoded)
    if not any(_has_map(fields.Fields(index)) for index in range(fields.FieldsLength())):
        return encoded
    message: Any = fbs.Message.GetRootAs(encoded, 0)
    rewritten = rewrite_schema(
        original,
        endianness=find_schema(encoded).Endianness(),
        version=message.Version(),
        features=read_features(find_schema(encoded)),
        columns=columns,
        drops_message_metadata=True,
    )
    ids = [survey_schema(each, max_nesting=128).dictionary_ids for each in (rewritten, encoded)]
    return rewritten if ids[0] == ids[1] else encoded


def _has_map(field: Any) -> bool:
    if field.TypeType() == fbs.Type.Map:
        return True
    return any(_has_map(field.Children(index)) for index in range(field.ChildrenLength()))


def build_footer(
    schema_metadata: bytes, dictionaries: Blocks, batches: Blocks, custom_metadata: Pairs
) -> bytes:
    """Return the FlatBuffer of the footer of a file.

    Raises `InvalidDataError` if the schema is malformed.
    """
    original = _Original(schema_metadata)
    builder = original.builder
    schema = original.add_schema(None, None, None)
    pairs = write_pairs(builder, custom_metadata) if custom_metadata else 0
    vectors = [_write_blocks(builder, blocks) for blocks in (dictionaries, batches)]
    message: Any = original.message
    fbs.FooterStart(builder)
    fbs.FooterAddVersion(builder, message.Version())
    fbs.FooterAddSchema(builder, schema)
    fbs.FooterAddDictionaries(builder, vectors[0])
    fbs.FooterAddRecordBatches(builder, vectors[1])
    if pairs:
        fbs.FooterAddCustomMetadata(builder, pairs)
    builder.Finish(fbs.FooterEnd(builder))
    return bytes(builder.Output())


class _Original:
    """A schema message inside the FlatBuffer that is being built."""

    def __init__(self, metadata: bytes) -> None:
        self.schema: Any = find_schema(metadata)
        self.message = fbs.Message.GetRootAs(metadata, 0)
        self.builder: Any = flatbuffers.Builder(2 * len(metadata))
        # A builder writes from the end, and counts positions from there.
        self._size = len(metadata) + -len(metadata) % _ALIGNMENT
        builder = self.builder
        builder.Prep(_ALIGNMENT, self._size)
        builder.head -= self._size
        builder.Bytes[builder.head : builder.head + len(metadata)] = metadata

    def find_vector(self, table: Any, slot: int) -> int:
        """Return the position of a vector, as the builder counts it; 0 if it is absent."""
        table = table._tab
        field = table.Offset(slot)
        return self._size - (table.Vector(field) - 4) if field else 0

    def add_schema(
        self,
        endianness: int | None,
        features: Collection[int] | None,
        columns: Sequence[int] | None,
    ) -> int:
        """Write a table ``Schema``, and return its position."""
        builder, schema = self.builder, self.schema
        try:
            declared = features
            if declared is None:
                declared = [schema.Features(index) for index in range(schema.FeaturesLength())]
            fields = self.find_vector(schema, _FIELDS)
            if columns is not None:
                fields = self._select_fields(columns)
            custom = self.find_vector(schema, _SCHEMA_METADATA)
        except _PARSE_ERRORS:
            raise InvalidDataError("the metadata of the schema is malformed") from None
        vector = 0
        if declared:
            fbs.SchemaStartFeaturesVector(builder, len(declared))
            for feature in sorted(declared, reverse=True):
                builder.PrependInt64(feature)
            vector = builder.EndVector()
        fbs.SchemaStart(builder)
        fbs.SchemaAddEndianness(builder, schema.Endianness() if endianness is None else endianness)
        if fields:
            fbs.SchemaAddFields(builder, fields)
        if custom:
            fbs.SchemaAddCustomMetadata(builder, custom)
        if vector:
            fbs.SchemaAddFeatures(builder, vector)
        return fbs.SchemaEnd(builder)

    def _select_fields(self, columns: Sequence[int]) -> int:
        """Write a vector that refers to some of the fields, and return its position."""
        table = self.schema._tab
        count = self.schema.FieldsLength()
        start = table.Vector(table.Offset(_FIELDS)) if count else 0
        if any(not 0 <= column < count for column in columns):
            raise IndexError
        places = [self._size - table.Indirect(start + 4 * column) for column in columns]
        builder = self.builder
        fbs.SchemaStartFieldsVector(builder, len(places))
        for place in reversed(places):
            builder.PrependUOffsetTRelative(place)
        return builder.EndVector()


def _write_blocks(builder: Any, blocks: Blocks) -> int:
    """Write a vector of blocks, and return its position."""
    nbytes = len(blocks) * BLOCK.size
    builder.StartVector(BLOCK.size, len(blocks), _ALIGNMENT)
    builder.Prep(_ALIGNMENT, nbytes)
    builder.head -= nbytes
    builder.Bytes[builder.head : builder.head + nbytes] = blocks.packed
    return builder.EndVector()
