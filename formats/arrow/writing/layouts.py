"""The physical layout of columns, read from the FlatBuffer of a schema ("Columnar Format").

pyarrow's schemas lack what this needs: pyarrow has no Python class for the intervals of months or
of days and milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....errors import InvalidDataError
from ....fbs import arrow_generated as fbs

_PARSE_ERRORS = (struct.error, IndexError, OverflowError, TypeError, ValueError, AttributeError)

Units = tuple[int, ...]
"""The sizes in bytes of the numbers that a buffer repeats: (1,) has no byte order."""

BYTES: Units = (1,)
"""The units of bitmaps, characters and bytes."""
VIEWS: Units = (16, 0)
"""Stands for the views of strings, whose layout depends on their length."""

_TYPE = fbs.Type
_FLOAT_BYTES = {0: 2, 1: 4, 2: 8}
_INTERVALS: dict[int, Units] = {0: (4,), 1: (4,), 2: (4, 4, 8)}
_FIXED: dict[int, tuple[Units, ...]] = {
    _TYPE.Binary: ((4,), BYTES),
    _TYPE.Utf8: ((4,), BYTES),
    _TYPE.LargeBinary: ((8,), BYTES),
    _TYPE.LargeUtf8: ((8,), BYTES),
    _TYPE.Bool: (BYTES,),
    _TYPE.FixedSizeBinary: (BYTES,),
    _TYPE.Timestamp: ((8,),),
    _TYPE.Duration: ((8,),),
    _TYPE.List: ((4,),),
    _TYPE.Map: ((4,),),
    _TYPE.LargeList: ((8,),),
    _TYPE.ListView: ((4,), (4,)),
    _TYPE.LargeListView: ((8,), (8,)),
    _TYPE.FixedSizeList: (),
    _TYPE.Struct_: (),
    _TYPE.BinaryView: (VIEWS,),
    _TYPE.Utf8View: (VIEWS,),
}
_NO_VALIDITY = {_TYPE.Null, _TYPE.RunEndEncoded, _TYPE.Union}


class ColumnLayout(NamedTuple):
    """The buffers of one column, without those of its children."""

    buffers: tuple[Units, ...]
    """The units of each buffer that the metadata always lists, in order."""
    children: tuple[ColumnLayout, ...]
    """The layouts of the children."""
    is_view: bool = False
    """Whether further buffers with bytes follow, as many as the metadata counts."""
    had_validity: bool = False
    """Whether a validity bitmap came first before V5, as in unions and run ends."""


class SchemaLayout(NamedTuple):
    """The layouts of all columns and dictionaries of a schema."""

    columns: tuple[ColumnLayout, ...]
    """The columns, in order."""
    dictionaries: dict[int, ColumnLayout]
    """The values of each dictionary, by its ID."""


def walk(layout: ColumnLayout) -> Iterator[ColumnLayout]:
    """Yield a layout and those of all its descendants, in the order of the metadata."""
    yield layout
    for child in layout.children:
        yield from walk(child)


def read_layout(schema: fbs.Schema) -> SchemaLayout:
    """Return the layout of a schema, which `bounds.survey_schema` has accepted.

    Raises
    ------
    InvalidDataError
        If a field is malformed or has an unknown type.
    """
    dictionaries: dict[int, ColumnLayout] = {}
    try:
        columns = tuple(
            _read_field(schema.Fields(index), dictionaries)
            for index in range(schema.FieldsLength())
        )
    except _PARSE_ERRORS:
        raise InvalidDataError("a field of the schema is malformed") from None
    return SchemaLayout(columns, dictionaries)


def _read_field(field: Any, dictionaries: dict[int, ColumnLayout]) -> ColumnLayout:
    kind = field.TypeType()
    children = [field.Children(index) for index in range(field.ChildrenLength())]
    values = ColumnLayout(
        _list_buffers(kind, field.Type()),
        tuple(_read_field(child, dictionaries) for child in children),
        kind in (_TYPE.BinaryView, _TYPE.Utf8View),
        kind in (_TYPE.Union, _TYPE.RunEndEncoded),
    )
    encoding = field.Dictionary()
    if encoding is None:
        return values
    dictionaries[int(encoding.Id())] = values
    index = encoding.IndexType()
    return ColumnLayout((BYTES, ((4 if index is None else index.BitWidth() // 8),)), ())


def _list_buffers(kind: int, table: Any) -> tuple[Units, ...]:
    """Return the units of the buffers of a type."""
    if table is None:
        raise IndexError
    if kind == _TYPE.Union:
        return (BYTES,) if _init(fbs.Union, table).Mode() == fbs.UnionMode.Sparse else (BYTES, (4,))
    if kind in _NO_VALIDITY:
        return ()
    return (BYTES, *(_FIXED[kind] if kind in _FIXED else (_measure_number(kind, table),)))


def _measure_number(kind: int, table: Any) -> Units:
    """Return the units of the values of a numeric type.

    Raises
    ------
    InvalidDataError
        If the type is unknown.
    """
    match kind:
        case _TYPE.Int:
            return (_init(fbs.Int, table).BitWidth() // 8,)
        case _TYPE.FloatingPoint:
            return (_FLOAT_BYTES[_init(fbs.FloatingPoint, table).Precision()],)
        case _TYPE.Decimal:
            return (_init(fbs.Decimal, table).BitWidth() // 8,)
        case _TYPE.Date:
            return (4 if _init(fbs.Date, table).Unit() == fbs.DateUnit.DAY else 8,)
        case _TYPE.Time:
            return (_init(fbs.Time, table).BitWidth() // 8,)
        case _TYPE.Interval:
            return _INTERVALS[_init(fbs.Interval, table).Unit()]
        case _:
            raise InvalidDataError(f"a field of the schema has the unknown type {kind}")


def _init(kind: Any, table: Any) -> Any:
    """Return the reader of a table of a union."""
    reader = kind()
    reader.Init(table.Bytes, table.Pos)
    return reader
