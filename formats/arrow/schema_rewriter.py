"""Schema messages with another byte order, version, list of features or choice of columns.

The FlatBuffer of the original message becomes a part of the new one, and the new tables refer to
the fields and the custom metadata in it. So everything else that a writer has put into the schema
is kept: the names of the children of maps, and the IDs of dictionaries that fields share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import flatbuffers

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import READER_ERRORS, embed, write_longs, write_references
from .custom_metadata import Pairs, finish_message, write_pairs
from .file import BLOCK, Blocks
from .metadata_limits import survey_schema
from .schema import find_schema, read_features

_ALIGNMENT = 8
# The slots of fields in the vtables of Schema and Message.
_FIELDS, _SCHEMA_METADATA, _MESSAGE_METADATA = 6, 8, 12


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

    `columns` lists the columns to keep, in order.
    """
    original = _Original(metadata)
    header = original.add_schema(endianness, features, columns)
    message: Any = original.message
    custom = 0 if drops_message_metadata else original.find_vector(message, _MESSAGE_METADATA)
    new_version: int = message.Version() if version is None else version
    return finish_message(
        original.builder, new_version, fbs.MessageHeader.Schema, header, custom=custom
    )


def adopt_schema(original: bytes, encoded: bytes, columns: Sequence[int] | None = None) -> bytes:
    """Return the schema message for batches that pyarrow encodes, with what pyarrow would lose.

    `columns` lists the columns of the source, in order. None means all.
    """
    schema = find_schema(encoded)
    if not any(_has_map(schema.Fields(index)) for index in range(schema.FieldsLength())):
        return encoded
    rewritten = rewrite_schema(
        original,
        endianness=schema.Endianness(),
        version=fbs.Message.GetRootAs(encoded, 0).Version(),
        features=read_features(schema),
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
    """Return the FlatBuffer of the footer of a file."""
    original = _Original(schema_metadata)
    builder = original.builder
    schema = original.add_schema(None, None, None)
    pairs = write_pairs(builder, custom_metadata)
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
        self.schema = find_schema(metadata)
        self.message = fbs.Message.GetRootAs(metadata, 0)
        self.builder: Any = flatbuffers.Builder(2 * len(metadata))
        self._size = embed(self.builder, metadata)

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
            declared = read_features(schema) if features is None else features
            fields = self.find_vector(schema, _FIELDS)
            if columns is not None:
                fields = self._select_fields(columns)
            custom = self.find_vector(schema, _SCHEMA_METADATA)
        except READER_ERRORS:
            raise InvalidDataError("the metadata of the schema is malformed") from None
        vector = write_longs(builder, sorted(declared)) if declared else 0
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
        return write_references(self.builder, places)


def _write_blocks(builder: Any, blocks: Blocks) -> int:
    """Write a vector of blocks, and return its position."""
    nbytes = len(blocks) * BLOCK.size
    builder.StartVector(BLOCK.size, len(blocks), _ALIGNMENT)
    builder.Prep(_ALIGNMENT, nbytes)
    builder.head -= nbytes
    builder.Bytes[builder.head : builder.head + nbytes] = blocks.packed
    return builder.EndVector()
