"""Variants as values of an Arrow type, by columns.

A value is converted only where nothing is guessed: exact numbers to exact numbers that are equal,
all numbers to floating-point numbers, and everything else to its own type. No text is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....errors import InvalidDataError, UsageError
from .buffers import MAX_DEPTH, Index, Mask, accumulate, is_list, null_array, place, to_buffer
from .types import DECIMAL_BYTES, INTEGERS, Kind
from .values import (
    Values,
    check_scalars,
    check_sizes,
    decimal_array,
    read_arrays,
    read_bytes,
    read_decimals,
    read_fixed,
    read_float32,
    read_float64,
    read_int32,
    read_int64,
    read_integers,
    read_objects,
    read_scales,
)

_EXACT: Final = INTEGERS | frozenset(DECIMAL_BYTES)
_NUMBERS: Final = _EXACT | {Kind.FLOAT, Kind.DOUBLE}
_UTC: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMP_NANOS})
_LOCAL: Final = frozenset({Kind.TIMESTAMP_NTZ, Kind.TIMESTAMP_NTZ_NANOS})


def cast_values(values: Values, rows: int, data_type: Any, *, strict: bool) -> Any:
    """Return values as an Arrow array, with a null for every row that has no value.

    Structs take the fields of objects by name, and lists the elements of arrays. Raises
    `UsageError` if Variants cannot be converted to this type, and `InvalidDataError` if a value is
    invalid. A value that does not fit the type is an error, too, if `strict`; otherwise it is null.
    """
    _require_castable(data_type, 0)
    return _cast(values, values.row, rows, data_type, strict)


def _require_castable(data_type: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise UsageError(f"a type is nested at most {MAX_DEPTH} deep")
    if pa.types.is_struct(data_type):
        for field in data_type:
            _require_castable(field.type, depth + 1)
    elif is_list(data_type):
        _require_castable(data_type.value_type, depth + 1)
    elif not accepted_kinds(data_type):
        raise UsageError(f"Variants have no values of the type {data_type}")


def accepted_kinds(data_type: Any) -> frozenset[Kind]:
    """Return the kinds of values that can be values of an Arrow type other than struct or list."""
    types = pa.types
    if types.is_integer(data_type) or types.is_decimal(data_type):
        return _EXACT
    if types.is_floating(data_type):
        return _NUMBERS
    if types.is_timestamp(data_type):
        return _LOCAL if data_type.tz is None else _UTC
    for matches, kinds in (
        (types.is_boolean, {Kind.TRUE, Kind.FALSE}),
        (types.is_string, {Kind.STRING}),
        (types.is_large_string, {Kind.STRING}),
        (types.is_string_view, {Kind.STRING}),
        (types.is_binary, {Kind.BINARY}),
        (types.is_large_binary, {Kind.BINARY}),
        (types.is_binary_view, {Kind.BINARY}),
        (types.is_date, {Kind.DATE}),
        (types.is_time64, {Kind.TIME_NTZ}),
        (types.is_null, {Kind.NULL}),
    ):
        if matches(data_type):
            return frozenset(kinds)
    return frozenset({Kind.UUID} if data_type in (pa.uuid(), pa.binary(16)) else ())


def _cast(values: Values, at: Index, rows: int, data_type: Any, strict: bool) -> Any:
    """Return an array of `rows` values, in which the values have the positions `at`."""
    values = check_sizes(values)
    kind = values.kinds()
    check_scalars(values, kind)
    if pa.types.is_struct(data_type):
        return _cast_structs(values, kind, at, rows, data_type, strict)
    if is_list(data_type):
        return _cast_lists(values, kind, at, rows, data_type, strict)
    accepted = accepted_kinds(data_type)
    parts: list[Any] = []
    places: list[Index] = []
    for selected, natural in natural_arrays(values, kind, accepted):
        parts.append(_convert(natural, data_type, values.row[selected], strict=strict))
        places.append(at[selected])
    if strict:
        fitting = np.isin(kind, [*map(int, accepted), int(Kind.NULL)])
        _require_fit(fitting, values, data_type)
    if not parts:
        return null_array(rows, data_type)
    storage = [part.storage if isinstance(part, pa.ExtensionArray) else part for part in parts]
    joined = place(pa.concat_arrays(storage), np.concatenate(places), rows)
    if isinstance(data_type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(data_type, joined)
    return joined


def _require_fit(fitting: Mask, values: Values, data_type: Any) -> None:
    if not bool(fitting.all()):
        kind = Kind(int(values.kinds()[~fitting][0]))
        row = int(values.row[~fitting][0])
        raise InvalidDataError(
            f"the {kind.name} in row {row} is not a value of the type {data_type}; "
            'pass errors="null" to make such values null'
        )


def natural_arrays(
    values: Values, kind: Any, accepted: frozenset[Kind]
) -> Iterator[tuple[Index, Any]]:
    """Yield the values of some kinds as Arrow arrays of their own types."""
    if accepted & INTEGERS:
        selected = np.flatnonzero((kind >= Kind.INT8) & (kind <= Kind.INT64))
        if len(selected):
            yield selected, pa.array(read_integers(values.take(selected), kind[selected]))
    for code in sorted(accepted - INTEGERS - {Kind.NULL}):
        selected = np.flatnonzero(kind == code)
        if not len(selected):
            continue
        part = values.take(selected)
        if code not in DECIMAL_BYTES:
            yield selected, _natural_array(part, code)
            continue
        scales, unscaled = read_scales(part), read_decimals(part, code)
        for scale in np.unique(scales):
            members = np.flatnonzero(scales == scale)
            yield selected[members], decimal_array(unscaled[members], int(scale))


def _natural_array(values: Values, code: Kind) -> Any:
    if code in (Kind.TRUE, Kind.FALSE):
        return pa.array(np.full(len(values), code == Kind.TRUE))
    if code == Kind.DOUBLE:
        return pa.array(read_float64(values))
    if code == Kind.FLOAT:
        return pa.array(read_float32(values))
    if code == Kind.STRING:
        return read_bytes(values).cast(pa.large_string())
    if code == Kind.BINARY:
        return read_bytes(values)
    if code == Kind.DATE:
        return pa.array(read_int32(values)).cast(pa.date32())
    if code == Kind.UUID:
        data = to_buffer(read_fixed(values, 16))
        return pa.Array.from_buffers(pa.binary(16), len(values), [None, data])
    if code == Kind.TIME_NTZ:
        return pa.array(read_int64(values)).cast(pa.time64("us"))
    unit = "ns" if code in (Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS) else "us"
    data_type = pa.timestamp(unit, "UTC") if code in _UTC else pa.timestamp(unit)
    return pa.array(read_int64(values)).cast(data_type)


def _convert(array: Any, data_type: Any, rows: Index, *, strict: bool) -> Any:
    """Return an array as another type; what does not fit becomes null, unless `strict`."""
    if isinstance(data_type, pa.BaseExtensionType):
        return array
    try:
        return _convert_exactly(array, data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if strict and len(array) == 1:
            raise InvalidDataError(
                f"{array[0]} in row {rows[0]} is not a value of the type {data_type} ({error}); "
                'pass errors="null" to make such values null'
            ) from None
        if len(array) == 1:
            return null_array(1, data_type)
    half = len(array) // 2
    return pa.concat_arrays(
        [
            _convert(array[:half], data_type, rows[:half], strict=strict),
            _convert(array[half:], data_type, rows[half:], strict=strict),
        ]
    )


def _convert_exactly(array: Any, data_type: Any) -> Any:
    if pa.types.is_floating(data_type):
        if pa.types.is_decimal(array.type):
            array = array.cast(pa.float64())
        return array.cast(data_type, safe=False)
    if pa.types.is_decimal(data_type) and pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(38, 0))
    return array.cast(data_type)


def _cast_structs(
    values: Values, kind: Any, at: Index, rows: int, data_type: Any, strict: bool
) -> Any:
    objects = np.flatnonzero(kind == Kind.OBJECT)
    if strict:
        _require_fit((kind == Kind.OBJECT) | (kind == Kind.NULL), values, data_type)
    _, entries = read_objects(values.take(objects))
    places = at[objects]
    arrays: list[Any] = []
    for field in data_type:
        key = values.context.names.find(field.name)
        if key < 0 or entries.key is None:
            arrays.append(null_array(rows, field.type))
            continue
        selected = np.flatnonzero(entries.key == key)
        part = entries.values.take(selected)
        arrays.append(_cast(part, places[entries.parent[selected]], rows, field.type, strict))
    missing = np.ones(rows, np.bool_)
    missing[places] = False
    if not arrays:
        return pa.array([None if gone else {} for gone in missing.tolist()], data_type)
    return pa.StructArray.from_arrays(arrays, fields=list(data_type), mask=pa.array(missing))


def _cast_lists(
    values: Values, kind: Any, at: Index, rows: int, data_type: Any, strict: bool
) -> Any:
    selected = np.flatnonzero(kind == Kind.ARRAY)
    if strict:
        _require_fit((kind == Kind.ARRAY) | (kind == Kind.NULL), values, data_type)
    order = selected[np.argsort(at[selected], kind="stable")]
    _, entries = read_arrays(values.take(order))
    count = len(entries.values)
    items = _cast(entries.values, np.arange(count), count, data_type.value_type, strict)
    sizes = np.zeros(rows, np.int64)
    sizes[at[order]] = entries.counts
    missing = np.ones(rows, np.bool_)
    missing[at[order]] = False
    is_large = pa.types.is_large_list(data_type)
    kind_of_list: Any = pa.LargeListArray if is_large else pa.ListArray
    offsets = accumulate(sizes)
    if not is_large:
        offsets = offsets.astype(np.int32)
    return kind_of_list.from_arrays(
        pa.array(offsets), items, type=data_type, mask=pa.array(missing)
    )
