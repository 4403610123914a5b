"""Corrections of what pyarrow reads wrongly or refuses: schemas, and the arrays of their columns.

A corrected schema describes the same bytes, and pyarrow reads a corrected column in its physical
type. The conversions then give the arrays their real types, such as timestamps for INT96, also
inside of lists, maps and structs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError
from .footer import Footer
from .logical_types import Converted, Kind, LogicalType
from .schema import (
    CONVERTED,
    INTERVAL_BYTES,
    LENGTH,
    LOGICAL,
    MAX_DECIMAL_DIGITS,
    TYPE,
    Node,
    Physical,
    annotate,
    is_entries,
    is_list_of_entries,
)
from .thrift import Struct, Type, Value

INT96_BYTES = 12


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read values for which the specification leaves a choice."""

    int96: Literal["microseconds", "exact"] = "microseconds"
    """Whether digits of an INT96 below a microsecond are cut off, or are an error."""
    duplicate_keys: Literal["last", "keep"] = "last"
    """Whether the last value of a key of a MAP wins, or all entries are kept."""


DEFAULT_OPTIONS = ReadOptions()


def correct_schema(footer: Footer) -> tuple[Struct, ...] | None:
    """Return SchemaElements that pyarrow reads without loss; None if those of the file are."""
    elements = list(footer.elements)
    changed = False
    stack = list(footer.root.children)
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        corrected = _correct(node, elements[node.index])
        if corrected is not None:
            elements[node.index] = corrected
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
    if LOGICAL in element and CONVERTED in element and _is_unknown(element):
        return {number: value for number, value in element.items() if number != CONVERTED}
    return None


def _correct_map(node: Node, element: Struct) -> Struct | None:
    """Correct a group with the annotation MAP, or its repeated group, which once had one, too."""
    if is_entries(node):
        return None
    if is_list_of_entries(node):
        return annotate(element, LogicalType(Kind.LIST))
    if node.converted == Converted.MAP_KEY_VALUE:
        return annotate(element, LogicalType(Kind.MAP))
    return None


def _is_unknown(element: Struct) -> bool:
    """Return whether the ConvertedType beside a LogicalType has an unknown number."""
    return element[CONVERTED].content not in list(Converted)


_DAY_MICROSECONDS = 86_400_000_000
_EPOCH_JULIAN_DAY = 2_440_588
_MAX_DAYS = (1 << 63) // _DAY_MICROSECONDS
_INT96 = np.dtype([("nanoseconds", "<i8"), ("day", "<i4")])
_INTERVAL = np.dtype([("months", "<u4"), ("days", "<u4"), ("milliseconds", "<u4")])
_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_MAX_INT32 = (1 << 31) - 1


def validity_buffer(array: Any) -> pa.Buffer | None:
    """Return the validity bitmap of an array from its first value on; None if no value is null."""
    if not array.null_count:
        return None
    if not array.offset:
        return array.buffers()[0]
    return array.is_valid().buffers()[1]


def convert_int96(array: Any, path: str, options: ReadOptions) -> Any:
    """Return the timestamps of an INT96 column, in microseconds.

    Raises `InvalidDataError` if a timestamp does not fit in 64 bits, or has digits below a
    microsecond.
    """
    values = fixed_values(array, INT96_BYTES, _INT96)
    days = values["day"].astype(np.int64) - _EPOCH_JULIAN_DAY
    times = values["nanoseconds"] // 1000
    fits = (days > -_MAX_DAYS) & (days < _MAX_DAYS)
    stamps = np.where(fits, days, 0) * _DAY_MICROSECONDS
    with np.errstate(over="ignore"):
        sums = stamps + times
    fits &= (times >= 0) == (sums >= stamps)
    _check_values(array, fits, path, "an INT96 timestamp outside of the years -290000 to 290000")
    if options.int96 == "exact":
        exact = values["nanoseconds"] % 1000 == 0
        _check_values(array, exact, path, "an INT96 timestamp with digits below a microsecond")
    return _build(pa.timestamp("us"), array, sums)


def convert_intervals(array: Any, path: str, options: ReadOptions) -> Any:
    """Return the values of an INTERVAL column as months, days and nanoseconds ("INTERVAL").

    Parameters and errors are those of `convert_int96`. Arrow's months and days have 31 bits.
    """
    values = fixed_values(array, INTERVAL_BYTES, _INTERVAL)
    fits = (values["months"] <= _MAX_INT32) & (values["days"] <= _MAX_INT32)
    _check_values(array, fits, path, "an INTERVAL of more months or days than 31 bits hold")
    intervals = np.empty(len(values), _MONTH_DAY_NANO)
    intervals["months"] = values["months"]
    intervals["days"] = values["days"]
    intervals["nanoseconds"] = values["milliseconds"].astype(np.int64) * 1_000_000
    return _build(pa.month_day_nano_interval(), array, intervals)


def check_nulls(array: Any, path: str, options: ReadOptions) -> Any:
    """Return an UNKNOWN column as a null array. Parameters are those of `convert_int96`.

    Raises `InvalidDataError` if a value is not null ("UNKNOWN").
    """
    if array.null_count != len(array):
        raise InvalidDataError(f"the column {path!r} has values, but UNKNOWN allows only nulls")
    return pa.nulls(len(array))


def drop_duplicate_keys(array: Any, path: str, options: ReadOptions) -> Any:
    """Return a map array in which the last value of each key wins ("Maps")."""
    if options.duplicate_keys == "keep" or not len(array):
        return array
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
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
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    entries = array.values.slice(start, end - start)
    keys = entries.field(0)
    if keys.null_count:
        raise InvalidDataError(f"the column {path!r} has a map with a null key")
    return rebuild_list(array, offsets - start, entries, data_type)


def rebuild_list(array: Any, offsets: Any, values: Any, data_type: Any) -> Any:
    """Return a list or map array with other values.

    `offsets` is the offset of each list in `values`, and the end of the last. The first is 0.
    `values`: Entries of a map are structs.
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


def _build(data_type: pa.DataType, array: Any, values: Any) -> Any:
    flat: Any = np.ascontiguousarray(values)
    buffers = [validity_buffer(array), pa.py_buffer(flat)]
    return pa.Array.from_buffers(data_type, len(array), buffers, array.null_count)


def _check_values(array: Any, is_good: Any, path: str, problem: str) -> None:
    if is_good.all():
        return
    bad = ~is_good
    if array.null_count:
        bad &= np.asarray(array.is_valid())
    if bad.any():
        raise InvalidDataError(f"the column {path!r} has {problem}")


Convert = Callable[[Any, ReadOptions], Any]
"""Converts an array."""


def convert_list(new_type: Any, convert: Convert, array: Any, options: ReadOptions) -> Any:
    """Return a list array whose elements are converted."""
    if isinstance(new_type, pa.FixedSizeListType):
        size: int = new_type.list_size
        values = convert(array.values.slice(array.offset * size, len(array) * size), options)
        buffers = [validity_buffer(array)]
        return pa.Array.from_buffers(
            new_type, len(array), buffers, array.null_count, children=[values]
        )
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    values = convert(array.values.slice(start, end - start), options)
    return rebuild_list(array, offsets - start, values, new_type)


def convert_map(
    new_type: Any, key: Convert | None, item: Convert | None, array: Any, options: ReadOptions
) -> Any:
    """Return a map array whose keys and values are converted."""
    offsets = np.asarray(array.offsets)
    start, end = int(offsets[0]), int(offsets[-1])
    keys = array.keys.slice(start, end - start)
    items = array.items.slice(start, end - start)
    keys = keys if key is None else key(keys, options)
    items = items if item is None else item(items, options)
    entries = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return rebuild_list(array, offsets - start, entries, new_type)


def convert_struct(
    new_type: Any, converts: list[Convert | None], array: Any, options: ReadOptions
) -> Any:
    """Return a struct array whose fields are converted. None leaves a field unchanged."""
    children = [
        array.field(index) if convert is None else convert(array.field(index), options)
        for index, convert in enumerate(converts)
    ]
    buffers = [validity_buffer(array)]
    return pa.Array.from_buffers(new_type, len(array), buffers, array.null_count, children=children)
