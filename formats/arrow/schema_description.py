"""Descriptions of schemas, with all that pyarrow's schemas leave out.

That is the byte order, the features, the IDs of dictionaries, the names of the children of maps,
and the intervals that pyarrow has no Python class for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidDataError
from ...fbs import arrow_generated as fbs
from ..flatbuffer import READER_ERRORS, cast_table
from .schema import find_schema, name_features, read_features

_EXTENSION_NAME = b"ARROW:extension:name"
_TYPE = fbs.Type
_PLAIN = {
    _TYPE.Null: "null",
    _TYPE.Binary: "binary",
    _TYPE.Utf8: "utf8",
    _TYPE.Bool: "bool",
    _TYPE.List: "list",
    _TYPE.Struct_: "struct",
    _TYPE.LargeBinary: "large_binary",
    _TYPE.LargeUtf8: "large_utf8",
    _TYPE.LargeList: "large_list",
    _TYPE.RunEndEncoded: "run_end_encoded",
    _TYPE.BinaryView: "binary_view",
    _TYPE.Utf8View: "utf8_view",
    _TYPE.ListView: "list_view",
    _TYPE.LargeListView: "large_list_view",
}
_FLOATS = {0: "float16", 1: "float32", 2: "float64"}
_UNITS = {0: "s", 1: "ms", 2: "us", 3: "ns"}
_INTERVALS = {0: "months", 1: "days_milliseconds", 2: "months_days_nanoseconds"}


@dataclass(frozen=True, slots=True)
class DictionaryDescription:
    """The dictionary encoding of a field."""

    id: int
    """The ID of the dictionary. Fields with the same ID share it."""
    index_type: str
    """The type of the indices."""
    ordered: bool
    """Whether the order of the values has a meaning."""


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """A field and its children."""

    name: str
    """The name. Bytes that are not UTF-8 are escaped."""
    type: str
    """The type, without its children."""
    nullable: bool
    """Whether the field may have nulls."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """The custom metadata."""
    children: tuple[FieldDescription, ...] = ()
    """The children, in order."""
    dictionary: DictionaryDescription | None = None
    """The dictionary encoding; None if the field has none."""
    extension: str | None = None
    """The name of the extension type; None if the field has none."""


@dataclass(frozen=True, slots=True)
class SchemaDescription:
    """A schema, as a message declares it."""

    metadata_version: str
    """The metadata version: ``V4``, ``V5``."""
    endianness: str
    """The byte order of the data: ``little`` or ``big``."""
    features: tuple[str, ...]
    """The features that the schema declares."""
    metadata: Mapping[str, str]
    """The custom metadata of the schema."""
    fields: tuple[FieldDescription, ...]
    """The columns, in order."""


def describe_schema(metadata: bytes | memoryview) -> SchemaDescription:
    """Describe a schema message, which `read_schema` has accepted."""
    schema = find_schema(metadata)
    try:
        message: Any = fbs.Message.GetRootAs(metadata, 0)
        return SchemaDescription(
            f"V{message.Version() + 1}",
            "big" if schema.Endianness() == fbs.Endianness.Big else "little",
            tuple(name_features(read_features(schema))),
            _read_pairs(schema),
            tuple(_describe_field(each) for each in _list(schema.Fields, schema.FieldsLength())),
        )
    except READER_ERRORS:
        raise InvalidDataError("the metadata of the schema is malformed") from None


def _describe_field(field: Any) -> FieldDescription:
    pairs = _read_pairs(field)
    encoding = field.Dictionary()
    dictionary = None
    if encoding is not None:
        index = encoding.IndexType()
        dictionary = DictionaryDescription(
            int(encoding.Id()),
            "int32" if index is None else _name_integer(index),
            bool(encoding.IsOrdered()),
        )
    return FieldDescription(
        _decode(field.Name()),
        _name_type(field.TypeType(), field.Type()),
        bool(field.Nullable()),
        pairs,
        tuple(_describe_field(each) for each in _list(field.Children, field.ChildrenLength())),
        dictionary,
        pairs.get(_EXTENSION_NAME.decode()),
    )


def _name_type(kind: int, table: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    name, reader = _READERS[kind]
    each = cast_table(table, reader)
    match kind:
        case _TYPE.Int:
            return _name_integer(each)
        case _TYPE.FloatingPoint:
            return _FLOATS[each.Precision()]
        case _TYPE.Decimal:
            return f"decimal{each.BitWidth()}({each.Precision()}, {each.Scale()})"
        case _TYPE.Date:
            return "date32[day]" if each.Unit() == fbs.DateUnit.DAY else "date64[ms]"
        case _TYPE.Time:
            return f"time{each.BitWidth()}[{_UNITS[each.Unit()]}]"
        case _TYPE.Timestamp:
            zone = each.Timezone()
            return f"timestamp[{_UNITS[each.Unit()]}{f', {_decode(zone)}' if zone else ''}]"
        case _TYPE.Duration:
            return f"duration[{_UNITS[each.Unit()]}]"
        case _TYPE.Interval:
            return f"interval[{_INTERVALS[each.Unit()]}]"
        case _TYPE.FixedSizeBinary:
            return f"fixed_size_binary[{each.ByteWidth()}]"
        case _TYPE.FixedSizeList:
            return f"fixed_size_list[{each.ListSize()}]"
        case _TYPE.Map:
            return "map, keys sorted" if each.KeysSorted() else "map"
        case _:
            codes = ", ".join(str(code) for code in _list(each.TypeIds, each.TypeIdsLength()))
            mode = "sparse" if each.Mode() == fbs.UnionMode.Sparse else "dense"
            return f"{mode}_{name}[{codes}]"


_READERS: dict[int, tuple[str, Any]] = {
    _TYPE.Int: ("int", fbs.Int),
    _TYPE.FloatingPoint: ("float", fbs.FloatingPoint),
    _TYPE.Decimal: ("decimal", fbs.Decimal),
    _TYPE.Date: ("date", fbs.Date),
    _TYPE.Time: ("time", fbs.Time),
    _TYPE.Timestamp: ("timestamp", fbs.Timestamp),
    _TYPE.Duration: ("duration", fbs.Duration),
    _TYPE.Interval: ("interval", fbs.Interval),
    _TYPE.FixedSizeBinary: ("fixed_size_binary", fbs.FixedSizeBinary),
    _TYPE.FixedSizeList: ("fixed_size_list", fbs.FixedSizeList),
    _TYPE.Map: ("map", fbs.Map),
    _TYPE.Union: ("union", fbs.Union),
}


def _name_integer(each: Any) -> str:
    return f"{'' if each.IsSigned() else 'u'}int{each.BitWidth()}"


def _read_pairs(table: Any) -> dict[str, str]:
    pairs = _list(table.CustomMetadata, table.CustomMetadataLength())
    return {_decode(pair.Key()): _decode(pair.Value()) for pair in pairs}


def _list(read: Any, count: int) -> list[Any]:
    return [read(index) for index in range(count)]


def _decode(text: bytes | None) -> str:
    return (text or b"").decode(errors="backslashreplace")
