"""Corrections of what pyarrow reads wrongly or refuses: schemas, and the arrays of their columns.

A corrected schema describes the same bytes, and pyarrow reads a corrected column in its physical
type. The conversions then give the arrays their real types, such as timestamps for INT96 (see
`int96_interval`), also inside of lists, maps and structs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError
from ..arrow.nested_arrays import map_children
from .footer import Footer
from .logical_types import Converted, Kind, LogicalType
from .schema import (
    CONVERTED,
    INT96_BYTES,
    LENGTH,
    LOGICAL,
    MAX_DECIMAL_DIGITS,
    TYPE,
    Node,
    Physical,
    annotate,
    has_converted_beside_unknown,
    is_entries,
    is_list_of_entries,
)
from .thrift import Struct, Type, Value


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How to read values for which the specification leaves a choice."""

    int96: Literal["microseconds", "exact"] = "microseconds"
    """Whether digits of an INT96 below a microsecond are cut off, or are an error."""
    duplicate_keys: Literal["last", "keep"] = "last"
    """Whether the last value of a key of a MAP wins, or all entries are kept."""


DEFAULT_OPTIONS = ParquetOptions()


def correct_schema(footer: Footer) -> tuple[Struct, ...] | None:
    """Return SchemaElements that pyarrow reads without loss; None if those of the file are."""
    elements = list(footer.elements)
    changed = False
    stack = list(footer.root.children)
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        element = elements[node.index]
        if has_converted_beside_unknown(element):
            element = {number: value for number, value in element.items() if number != LOGICAL}
        element = _correct(node, element) or element
        if element is not elements[node.index]:
            elements[node.index] = element
            changed = True
    return tuple(elements) if changed else None


def keeps_annotation(node: Node) -> bool:
    """Return whether Arrow has a type for the annotation of a column."""
    logical = node.logical
    if logical is None or logical.kind is Kind.FUTURE:
        return logical is None
    return logical.kind is not Kind.DECIMAL or logical.precision <= MAX_DECIMAL_DIGITS


def _correct(node: Node, element: Struct) -> Struct | None:
    kind = node.kind
    if node.physical is Physical.INT96:
        plain = annotate(element, None)
        fixed = Value(Type.I32, int(Physical.FIXED_LEN_BYTE_ARRAY))
        return plain | {TYPE: fixed, LENGTH: Value(Type.I32, INT96_BYTES)}
    if not keeps_annotation(node) or kind in (Kind.GEOMETRY, Kind.GEOGRAPHY, Kind.UNKNOWN):
        return annotate(element, None)
    if kind is Kind.ENUM:
        return annotate(element, LogicalType(Kind.STRING))
    if kind is Kind.MAP:
        return _correct_map(node, element)
    if LOGICAL not in element or CONVERTED not in element:
        return None
    if element[CONVERTED].content in list(Converted):
        return None
    return {number: value for number, value in element.items() if number != CONVERTED}


def _correct_map(node: Node, element: Struct) -> Struct | None:
    """Correct a group with the annotation MAP, or its repeated group, which once had one, too."""
    if is_entries(node):
        return None
    if is_list_of_entries(node):
        return annotate(element, LogicalType(Kind.LIST))
    if node.converted == Converted.MAP_KEY_VALUE:
        return annotate(element, LogicalType(Kind.MAP))
    return None


def validity_buffer(array: Any) -> pa.Buffer | None:
    """Return the validity bitmap of an array from its first value on; None if no value is null."""
    if not array.null_count:
        return None
    return array.is_valid().buffers()[1] if array.offset else array.buffers()[0]


def check_nulls(path: str, array: Any, _options: ParquetOptions) -> Any:
    """Return an UNKNOWN column as a null array; raise `InvalidDataError` if a value is not null."""
    if array.null_count != len(array):
        raise InvalidDataError(f"the column {path!r} has values, but UNKNOWN allows only nulls")
    return pa.nulls(len(array))


def drop_duplicate_keys(array: Any, options: ParquetOptions) -> Any:
    """Return a map array in which the last value of each key wins ("Maps")."""
    if options.duplicate_keys == "keep" or not len(array):
        return array
    offsets, start, end = _find_offsets(array)
    if end - start < 2:
        return array
    keys = array.keys.slice(start, end - start)
    owners = np.repeat(np.arange(len(array), dtype=np.int64), np.diff(offsets))
    codes, count = _encode_keys(keys)
    pairs = owners * count + codes
    _, last = np.unique(pairs[::-1], return_index=True)
    if len(last) == len(pairs):
        return array
    kept = np.zeros(len(pairs), np.bool_)
    kept[len(pairs) - 1 - last] = True
    entries = array.values.slice(start, end - start).filter(pa.array(kept))
    sums = np.concatenate(([0], np.cumsum(kept)))
    return rebuild_list(array, sums[offsets - start], entries, array.type)


def entries_to_maps(array: Any, path: str, data_type: pa.DataType) -> Any:
    """Return lists of entries as maps. Their keys are optional in the file.

    Raises `InvalidDataError` if a key is null, which the specification forbids.
    """
    offsets, start, end = _find_offsets(array)
    entries = array.values.slice(start, end - start)
    keys = entries.field(0)
    if keys.null_count:
        raise InvalidDataError(f"the column {path!r} has a map with a null key")
    return rebuild_list(array, offsets - start, entries, data_type)


def _find_offsets(array: Any) -> tuple[Any, int, int]:
    """Return the offsets of a list or map array, the first of them and the last."""
    offsets = np.asarray(array.offsets)
    return offsets, int(offsets[0]), int(offsets[-1])


def rebuild_list(array: Any, offsets: Any, values: Any, data_type: Any) -> Any:
    """Return a list or map array with other values; the entries of a map are structs.

    `offsets` has the offset of each list in `values`, from 0 on, and the end of the last.
    """
    if isinstance(data_type, pa.MapType):
        # The entries get the type, and the nullability, that the map expects.
        entry = pa.struct([data_type.key_field, data_type.item_field])
        parts = [values.field(0), values.field(1)]
        values = pa.Array.from_buffers(entry, len(values), [None], 0, 0, parts)
    width = np.int64 if isinstance(data_type, pa.LargeListType) else np.int32
    ends: Any = np.ascontiguousarray(offsets, width)
    buffers = [validity_buffer(array), pa.py_buffer(ends)]
    return pa.Array.from_buffers(
        data_type, len(array), buffers, array.null_count, children=[values]
    )


def _encode_keys(keys: Any) -> tuple[Any, int]:
    """Return an integer for each key, equal for equal keys, and the number of keys."""
    if isinstance(keys, pa.ExtensionArray):
        keys = keys.storage
    if isinstance(keys, pa.DictionaryArray):
        keys = keys.dictionary_decode()
    try:
        encoded: Any = pc.dictionary_encode(keys)
        return np.asarray(encoded.indices, np.int64), max(len(encoded.dictionary), 1)
    except pa.ArrowNotImplementedError:  # nested keys
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(repr(key), len(numbers)) for key in keys.to_pylist()]
        return np.array(codes, np.int64), max(len(numbers), 1)


def fixed_values(array: Any, width: int, dtype: np.dtype[Any]) -> Any:
    """Return the values of an array of fixed width as a NumPy array that shares its memory."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    begin = array.offset * width
    return np.frombuffer(data, np.uint8)[begin : begin + len(array) * width].view(dtype)


_LISTS = (
    *(pa.ListType, pa.LargeListType, pa.FixedSizeListType),
    *(pa.ListViewType, pa.LargeListViewType),
)
Convert = Callable[[Any, ParquetOptions], Any]
"""Converts an array."""
PlannedField = tuple[Any, Convert | None]
"""A field with the type that arrays get, and their conversion, if there is one."""


def is_list(data_type: Any) -> bool:
    """Return whether a type is one of lists, also of a fixed size, and of views."""
    return isinstance(data_type, _LISTS)


def convert_list(new_type: Any, convert: Convert, array: Any, options: ParquetOptions) -> Any:
    """Return a list array whose elements are converted."""
    return map_children(array, new_type, lambda child, *_: convert(child, options))


def convert_map(
    new_type: Any, key: Convert | None, item: Convert | None, array: Any, options: ParquetOptions
) -> Any:
    """Return a map array whose keys and values are converted."""
    offsets, start, end = _find_offsets(array)
    keys = array.keys.slice(start, end - start)
    items = array.items.slice(start, end - start)
    keys = keys if key is None else key(keys, options)
    items = items if item is None else item(items, options)
    entries = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return rebuild_list(array, offsets - start, entries, new_type)


def convert_struct(
    new_type: Any, converts: list[Convert | None], array: Any, options: ParquetOptions
) -> Any:
    """Return a struct array whose fields are converted. None leaves a field unchanged."""
    children = [
        array.field(index) if convert is None else convert(array.field(index), options)
        for index, convert in enumerate(converts)
    ]
    buffers = [validity_buffer(array)]
    return pa.Array.from_buffers(new_type, len(array), buffers, array.null_count, children=children)
