"""Schema messages: decoding, the features that they declare, and their comparison.

A writer declares what a reader must be able to handle beyond the basic format ("Schema.fbs", enum
``Feature``). A reader refuses a stream that declares a feature that it does not know, instead of
misreading it.

What follows from a schema message alone holds for all streams that begin with it. `SchemaFacts` are
computed once.
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
from .checker import BatchPlan
from .dictionaries import read_dictionary_types
from .message import HeaderType, encapsulate, read_endianness, read_message_info
from .metadata_limits import survey_schema

_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError, AttributeError)
_MAX_FEATURES = 64
_UNUSED = 0
_FEATURES = 10  # the slot of the field in the vtable of Schema


class Feature(IntEnum):
    """A feature that a schema may declare."""

    DICTIONARY_REPLACEMENT = 1
    """A stream may replace a dictionary, or extend it by deltas."""
    COMPRESSED_BODY = 2
    """Bodies may be compressed."""


def read_features(schema: fbs.Schema) -> tuple[int, ...]:
    """Return the numbers of the features that a schema declares, known or not.

    Raises `InvalidDataError` if the list is malformed, or longer than any that a writer has a
    reason to write.
    """
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
    except _PARSE_ERRORS:
        raise InvalidDataError("the features of the schema are malformed") from None


def check_features(metadata: bytes | memoryview) -> None:
    """Refuse a schema message that declares an unknown feature.

    Raises `InvalidDataError` if it does. The error names the number of the feature and the known
    ones.
    """
    check_schema_features(_find_schema(metadata))


def check_schema_features(schema: fbs.Schema) -> None:
    """Refuse a schema that declares an unknown feature; see `check_features`."""
    known = {_UNUSED, *Feature}
    unknown = sorted(set(read_features(schema)) - known)
    if unknown:
        names = ", ".join(f"{each.value} ({each.name})" for each in Feature)
        numbers = ", ".join(map(str, unknown))
        raise InvalidDataError(
            f"the schema declares the unknown feature {numbers}; known are {names}. "
            "The data needs a newer reader"
        )


def _find_schema(metadata: bytes | memoryview) -> fbs.Schema:
    try:
        header: Any = fbs.Message.GetRootAs(metadata, 0).Header()
        schema = fbs.Schema()
        schema.Init(header.Bytes, header.Pos)
    except _PARSE_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None
    return schema


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

    `max_nesting`: a plain column has depth 1. `max_bytes` is the largest size of the decoded schema
    in bytes. Raises `ProtocolError` if `metadata` is not an Arrow IPC message. Raises
    `InvalidDataError` if the message is not a schema, is malformed, or uses an unknown type. Raises
    `LimitError` if the schema exceeds one of the limits.
    """
    if type(metadata) is bytes and is_self_contained(metadata):
        return _read_cached(metadata, max_nesting, max_bytes)
    return _read(metadata, max_nesting, max_bytes)


def is_self_contained(metadata: bytes) -> bool:
    """Return whether a schema message is small, and always decodes to the same schema.

    Extension types decode to whatever the process has registered at that moment.
    """
    return len(metadata) <= _MAX_CACHED_BYTES and _EXTENSION_NAME not in metadata


@lru_cache(maxsize=32)
def _read_cached(metadata: bytes, max_nesting: int, max_bytes: int) -> pa.Schema:
    return _read(metadata, max_nesting, max_bytes)


def _read(metadata: bytes | memoryview, max_nesting: int, max_bytes: int) -> pa.Schema:
    header_type = read_message_info(metadata).header_type
    if header_type is not HeaderType.SCHEMA:
        raise InvalidDataError(f"received a {header_type.name} message; expected a schema")
    survey_schema(metadata, max_nesting=max_nesting, max_bytes=max_bytes)
    check_features(metadata)
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
                (data_type,) = _list_children(data_type)
            pending.extend(data_type.field(index) for index in range(data_type.num_fields))
    except UnicodeError:
        return False
    return True


def is_native_endian(metadata: bytes | memoryview) -> bool:
    """Return whether the data of a stream has this machine's byte order."""
    return read_endianness(metadata) == sys.byteorder


def _list_children(data_type: pa.DataType) -> list[pa.DataType]:
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if isinstance(data_type, pa.DictionaryType):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def _is_deeper_than(data_type: pa.DataType, depth: int) -> bool:
    level, count = [data_type], 0
    while level:
        count += 1
        if count > depth:
            return True
        level = [child for parent in level for child in _list_children(parent)]
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


_MAX_KEPT = 32

PlanCache = dict[tuple[int | None, bool], BatchPlan]
"""The arrays of a message, by its dictionary and by whether it has the metadata version 5."""


class SchemaFacts(NamedTuple):
    """What follows from a schema message."""

    is_fixed_width: bool
    """Whether all columns are of primitive types."""
    swaps_bytes: bool
    """Whether the batches have the other byte order than this machine."""
    dictionary_types: Mapping[int, pa.DataType]
    """The type of the values of each dictionary, by its ID."""
    plans: PlanCache
    """The plans that were made so far; see `MessageChecker`."""


_kept: dict[bytes, SchemaFacts] = {}


def find_schema_facts(metadata: bytes, schema: pa.Schema) -> SchemaFacts:
    """Return what follows from a schema message. That of a repeated message is kept.

    Raises `InvalidDataError` as `read_dictionary_types` does.
    """
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
