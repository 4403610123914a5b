"""Schema messages: decoding, features, dictionaries and comparison.

A writer declares what a reader must be able to handle beyond the basic format ("Schema.fbs", enum
``Feature``). A reader refuses a stream that declares a feature that it does not know, instead of
misreading it.

The Arrow specification allows a dictionary to arrive late if the batches before it have only nulls
in its column. pyarrow needs every dictionary before the first batch, so `encode_empty_dictionary`
stands in for those that have not arrived.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import InvalidDataError, LimitError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import READER_ERRORS, cast_table
from .checker import BatchPlan
from .data_types import list_child_types, list_fields
from .message import (
    HeaderType,
    encapsulate,
    find_batch_table,
    parse_prefix,
    read_endianness,
    read_message_info,
)
from .metadata_limits import survey_schema
from .supported_types import make_empty_batch

_MAX_FEATURES = 64
_UNUSED = 0
_FEATURES = 10  # the slot of the field in the vtable of Schema


class Feature(IntEnum):
    """A feature that a schema may declare."""

    DICTIONARY_REPLACEMENT = 1
    """A stream may replace a dictionary, or extend it by deltas."""
    COMPRESSED_BODY = 2
    """Bodies may be compressed."""


def find_schema(metadata: bytes | memoryview) -> Any:
    """Return the table ``Schema`` of a message; raises `InvalidDataError` if it is not a schema."""
    try:
        message: Any = fbs.Message.GetRootAs(metadata, 0)
        if message.HeaderType() != fbs.MessageHeader.Schema:
            raise InvalidDataError("the message is not a schema")
        schema = cast_table(message.Header(), fbs.Schema)
        schema.FieldsLength()
    except READER_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return schema


def read_features(schema: fbs.Schema) -> tuple[int, ...]:
    """Return the numbers of the features that a schema declares, known or not."""
    try:
        count = schema.FeaturesLength()
        if count > _MAX_FEATURES:
            raise InvalidDataError(
                f"the schema declares {count} features; expected at most {_MAX_FEATURES}"
            )
        table = schema._tab  # pyright: ignore[reportPrivateUsage]
        if not count:
            return ()
        start = table.Vector(table.Offset(_FEATURES))
        return struct.unpack_from(f"<{count}q", table.Bytes, start)
    except READER_ERRORS:
        raise InvalidDataError("the features of the schema are malformed") from None


def check_features(schema: fbs.Schema) -> None:
    """Refuse a schema that declares an unknown feature."""
    unknown = sorted(set(read_features(schema)) - {_UNUSED, *Feature})
    if unknown:
        names = ", ".join(f"{each.value} ({each.name})" for each in Feature)
        numbers = ", ".join(map(str, unknown))
        raise InvalidDataError(
            f"the schema declares the unknown feature {numbers}; known are {names}. "
            "The data needs a newer reader"
        )


def name_features(features: Collection[int]) -> list[str]:
    """Return the names of features, in order; a number for an unknown one.

    Examples
    --------
    >>> name_features([2, 9])
    ['COMPRESSED_BODY', '9']
    """
    known = {each.value: each.name for each in Feature}
    return [known.get(number, str(number)) for number in sorted(features) if number != _UNUSED]


_MAX_CACHED_BYTES = 16 << 10
_EXTENSION_NAME = b"ARROW:extension:name"


def read_schema(
    metadata: bytes | memoryview, *, max_nesting: int = 64, max_bytes: int = 16 << 20
) -> pa.Schema:
    """Decode the schema message of a stream.

    A plain column has depth 1. `max_bytes` bounds the decoded schema. Raises `LimitError` if the
    schema exceeds a limit, and `ProtocolError` or `InvalidDataError` if it cannot be decoded.
    """
    if type(metadata) is bytes and is_self_contained(metadata):
        return _read_cached(metadata, max_nesting, max_bytes)
    return _read(metadata, max_nesting, max_bytes)


def is_self_contained(metadata: bytes, max_bytes: int = _MAX_CACHED_BYTES) -> bool:
    """Return whether a schema message is small, and always decodes to the same schema.

    Extension types decode to whatever the process has registered at that moment.
    """
    return len(metadata) <= max_bytes and _EXTENSION_NAME not in metadata


@lru_cache(maxsize=32)
def _read_cached(metadata: bytes, max_nesting: int, max_bytes: int) -> pa.Schema:
    return _read(metadata, max_nesting, max_bytes)


def _read(metadata: bytes | memoryview, max_nesting: int, max_bytes: int) -> pa.Schema:
    header_type = read_message_info(metadata).header_type
    if header_type is not HeaderType.SCHEMA:
        raise InvalidDataError(f"received a {header_type.name} message; expected a schema")
    survey_schema(metadata, max_nesting=max_nesting, max_bytes=max_bytes)
    check_features(find_schema(metadata))
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(encapsulate(metadata)))
    except Exception as error:  # an extension type of the user may raise anything
        raise InvalidDataError(f"the schema cannot be decoded: {error}") from None
    if not is_native_endian(metadata):
        # Batches have this machine's byte order once they are decoded, and so has their schema.
        schema = pa.schema(list(schema)).with_metadata(schema.metadata)
    if not has_utf8_names(schema):
        raise InvalidDataError("the schema has column names that are not UTF-8")
    for field in schema:
        if _is_deeper_than(field.type, max_nesting):
            raise LimitError(
                f"the column {field.name!r} nests more than {max_nesting} levels of types"
            )
    return schema


def has_utf8_names(schema: pa.Schema) -> bool:
    """Return whether all field names are UTF-8, as Arrow requires and pyarrow does not check."""
    pending: list[Any] = list(schema)
    try:
        while pending:
            field = pending.pop()
            field.name.encode()
            data_type = field.type
            while isinstance(data_type, (pa.BaseExtensionType, pa.DictionaryType)):
                (data_type,) = list_child_types(data_type)
            pending += list_fields(data_type)
    except UnicodeError:
        return False
    return True


def is_native_endian(metadata: bytes | memoryview) -> bool:
    """Return whether the data of a stream has this machine's byte order."""
    return read_endianness(metadata) == sys.byteorder


def is_current(metadata: bytes | memoryview) -> bool:
    """Return whether messages have this machine's byte order and the current metadata version."""
    version = fbs.Message.GetRootAs(metadata, 0).Version()
    return version == fbs.MetadataVersion.V5 and is_native_endian(metadata)


def _is_deeper_than(data_type: pa.DataType, depth: int) -> bool:
    level, count = [data_type], 0
    while level:
        count += 1
        if count > depth:
            return True
        level = [child for parent in level for child in list_child_types(parent)]
    return False


def describe_difference(one: pa.Schema, other: pa.Schema) -> str | None:
    """Describe the first difference of `other` from `one`, or return None if there is none.

    The comparison ignores byte order and the custom metadata of the schema itself, where pandas
    stores the number of rows.
    """
    if one.names != other.names:
        missing = [name for name in one.names if name not in other.names]
        added = [name for name in other.names if name not in one.names]
        if missing:
            return f"it lacks the column {missing[0]!r}"
        if added:
            return f"it has the additional column {added[0]!r}"
        return "its columns are in a different order"
    for ours, theirs in zip(one, other, strict=True):
        if not ours.type.equals(theirs.type, check_metadata=True):
            return f"its column {ours.name!r} is {theirs.type}, not {ours.type}"
        if ours.nullable != theirs.nullable:
            return f"its column {ours.name!r} is {'' if theirs.nullable else 'not '}nullable"
        if not ours.equals(theirs, check_metadata=True):
            return f"its column {ours.name!r} has different custom metadata"
    return None


def are_schemas_equal(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether two schemas and their custom metadata are equal, apart from byte order."""
    return describe_difference(one, other) is None and (one.metadata or {}) == (
        other.metadata or {}
    )


# The tables Message and DictionaryBatch, each after its vtable; the table RecordBatch follows.
_HEAD = struct.Struct("<I 6H iHBxI4xq 4H iIq")
_DATA_REFERENCE = 52


def read_dictionary_types(
    metadata: bytes | memoryview, schema: pa.Schema
) -> dict[int, pa.DataType]:
    """Return the type of the values of each dictionary of a schema, by the dictionary's ID."""
    found: list[pa.DataType] = []
    pending = [field.type for field in reversed(list(schema))]
    while pending:
        data_type = pending.pop()
        if isinstance(data_type, pa.DictionaryType):
            found.append(data_type.value_type)
        pending += reversed(list_child_types(data_type))
    ids = survey_schema(metadata, max_nesting=1 << 31, max_bytes=1 << 62).dictionary_ids
    if len(ids) != len(found):
        raise InvalidDataError(
            f"the schema declares {len(ids)} dictionaries; its types have {len(found)}"
        )
    return dict(zip(ids, found, strict=True))


def encode_empty_dictionary(dictionary_id: int, value_type: pa.DataType) -> tuple[bytes, pa.Buffer]:
    """Return the metadata and the body of a dictionary batch without values."""
    # A dictionary batch wraps a record batch of one column.
    message = make_empty_batch(pa.schema([pa.field("", value_type)])).serialize()
    prefix = parse_prefix(memoryview(message)[:8])
    start = prefix.nbytes + prefix.metadata_length
    batch = bytes(memoryview(message)[prefix.nbytes : start])
    head = _HEAD.pack(
        *(16, 12, 24, 4, 6, 8, 16),
        *(12, fbs.MetadataVersion.V5, HeaderType.DICTIONARY_BATCH, 24, message.size - start),
        *(8, 16, 8, 4),
        *(8, _HEAD.size + find_batch_table(batch) - _DATA_REFERENCE, dictionary_id),
    )
    return head + batch, message.slice(start)


_MAX_KEPT = 32


class SchemaFacts(NamedTuple):
    """Properties of all streams that begin with one schema message, computed once."""

    is_fixed_width: bool
    """Whether all columns are of primitive types."""
    swaps_bytes: bool
    """Whether the batches have the other byte order than this machine."""
    dictionary_types: Mapping[int, pa.DataType]
    """The type of the values of each dictionary, by its ID."""
    plans: dict[tuple[int | None, bool], BatchPlan]
    """The plans that were made so far, by the ID of the dictionary and by whether the metadata
    version is V5 or later; see `MessageChecker`."""


_kept: dict[bytes, SchemaFacts] = {}


def find_schema_facts(metadata: bytes, schema: pa.Schema) -> SchemaFacts:
    """Return the facts of a schema message, the same for each repetition of a small message."""
    is_kept = type(metadata) is bytes and is_self_contained(metadata)
    facts = _kept.get(metadata) if is_kept else None
    if facts is None:
        facts = SchemaFacts(
            all(pa.types.is_primitive(field.type) for field in schema),
            not is_native_endian(metadata),
            read_dictionary_types(metadata, schema),
            {},
        )
        if is_kept:
            if len(_kept) >= _MAX_KEPT:
                _kept.clear()
            _kept[metadata] = facts
    return facts
