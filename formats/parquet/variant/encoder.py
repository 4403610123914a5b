"""Encoding of many Variant values together: of parts, of Arrow arrays, and of Python values.

Python values of many rows are encoded one level of all rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import InvalidDataError, UsageError
from .buffers import (
    MAX_DEPTH,
    Bytes,
    Index,
    accumulate,
    binary_parts,
    expand,
    make_binary,
    to_arrow,
)
from .metadata import encode_metadata
from .python_values import encode_scalar
from .types import (
    ARRAY,
    DECIMAL_BYTES,
    MAX_SHORT_STRING,
    MICROSECONDS_PER_DAY,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    TIMESTAMPS,
    Kind,
    header_byte,
)

_EMPTY = pa.scalar(b"", pa.large_binary())
NULL = pa.scalar(b"\0", pa.large_binary())
"""The Variant null."""


def build_arrays(counts: Index, elements: Any) -> Any:
    """Return encoded arrays."""
    return _build(counts, elements, None)


def build_objects(counts: Index, ids: Index, fields: Any) -> Any:
    """Return encoded objects, whose fields must be in the order of their names."""
    return _build(counts, fields, ids)


def _build(counts: Index, entries: Any, ids: Index | None) -> Any:
    data, offsets = binary_parts(entries)
    bounds = accumulate(counts)
    group, position = expand(counts + 1)
    at = bounds[group] + position
    relative = offsets[at] - offsets[bounds[group]]
    body = offsets[bounds]
    offset_width = _width(body[1:] - body[:-1])
    is_large = counts > 255
    count_width = np.where(is_large, 4, 1)
    id_width = np.zeros(len(counts), np.int64)
    header = header_byte(ARRAY, 0) + ((offset_width - 1 | is_large << 2) << 2)
    if ids is not None:
        largest = np.zeros(len(counts), np.int64)
        filled = counts > 0
        if filled.any():
            largest[filled] = np.maximum.reduceat(ids, bounds[:-1][filled])
        id_width = _width(largest)
        flags = (offset_width - 1) | (id_width - 1) << 2 | is_large << 4
        header = header_byte(OBJECT, 0) + (flags << 2)
    ids_at = 1 + count_width
    offsets_at = ids_at + counts * id_width
    starts = accumulate(offsets_at + (counts + 1) * offset_width)
    heads = np.zeros(int(starts[-1]), np.uint8)
    start = starts[:-1]
    heads[start] = header
    _write_uints(heads, start + 1, counts, count_width)
    if ids is not None:
        owner, place = expand(counts)
        width = id_width[owner]
        _write_uints(heads, (start + ids_at)[owner] + place * width, ids, width)
    width = offset_width[group]
    _write_uints(heads, (start + offsets_at)[group] + position * width, relative, width)
    bodies = make_binary(data, body)
    return pc.binary_join_element_wise(make_binary(heads, starts), bodies, _EMPTY)


def _width(largest: Index) -> Index:
    """Return the bytes that some unsigned integers need."""
    return (
        1
        + (largest > 0xFF).astype(np.int64)
        + (largest > 0xFFFF).astype(np.int64)
        + (largest > 0xFFFFFF).astype(np.int64)
    )


def _write_uints(target: Bytes, at: Index, numbers: Index, width: Index) -> None:
    """Write unsigned little-endian integers of 1 to 4 bytes."""
    for byte in range(int(width.max()) if len(width) else 0):
        wide = width > byte
        target[at[wide] + byte] = (numbers[wide] >> 8 * byte) & 0xFF


def build_strings(texts: Any, kind: Kind = Kind.STRING) -> Any:
    """Return encoded strings or binary values; nulls stay null."""
    content = texts.cast(pa.large_binary())
    _, offsets = binary_parts(content)
    size = offsets[1:] - offsets[:-1]
    heads = np.empty((len(size), 5), np.uint8)
    heads[:, 0] = header_byte(PRIMITIVE, kind)
    heads[:, 1:] = size.astype("<u4").view(np.uint8).reshape(-1, 4)
    is_long = np.ones(len(size), np.bool_)
    if kind == Kind.STRING:
        is_long = size > MAX_SHORT_STRING
        heads[~is_long, 0] = header_byte(SHORT_STRING, 0) + (size[~is_long] << 2)
    used = np.repeat(is_long[:, None], 5, axis=1)
    used[:, 0] = True
    joined = make_binary(heads[used], accumulate(np.where(is_long, 5, 1)))
    return pc.binary_join_element_wise(joined, content, _EMPTY)


def build_fixed(kind: Kind, data: Any, array: Any) -> Any:
    """Return encoded values of one size from little-endian values, or their bytes."""
    raw = np.ascontiguousarray(data)
    count = len(raw)
    raw = raw.view(np.uint8).reshape(count, raw.nbytes // max(count, 1))
    rows = np.empty((count, 1 + raw.shape[1]), np.uint8)
    rows[:, 0] = header_byte(PRIMITIVE, kind)
    rows[:, 1:] = raw
    encoded = make_binary(rows.ravel(), np.arange(count + 1) * rows.shape[1])
    return mask_nulls(encoded, array)


def mask_nulls(encoded: Any, array: Any) -> Any:
    """Return an array with nulls where another array has nulls."""
    if not array.null_count:
        return encoded
    return pc.if_else(array.is_valid(), encoded, pa.scalar(None, encoded.type))


_NUMBERS: Final = {
    pa.int8(): Kind.INT8,
    pa.int16(): Kind.INT16,
    pa.int32(): Kind.INT32,
    pa.int64(): Kind.INT64,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
}


def find_kind(data_type: Any) -> Kind | None:
    """Return the kind of value that an Arrow type holds, or None if Variants have no such type.

    Booleans are of the kind TRUE, and decimals of the smallest kind for their precision.
    """
    types = pa.types
    if data_type in _NUMBERS:
        return _NUMBERS[data_type]
    if types.is_decimal(data_type):
        return _find_decimal_kind(data_type)
    if types.is_timestamp(data_type):
        return TIMESTAMPS.get((data_type.unit, data_type.tz is not None))
    for matches, kind in (
        (types.is_boolean, Kind.TRUE),
        (types.is_string, Kind.STRING),
        (types.is_large_string, Kind.STRING),
        (types.is_string_view, Kind.STRING),
        (types.is_binary, Kind.BINARY),
        (types.is_large_binary, Kind.BINARY),
        (types.is_binary_view, Kind.BINARY),
        (types.is_date32, Kind.DATE),
    ):
        if matches(data_type):
            return kind
    if data_type == pa.time64("us"):
        return Kind.TIME_NTZ
    return Kind.UUID if data_type == pa.uuid() else None


def _find_decimal_kind(data_type: Any) -> Kind | None:
    if not 0 <= data_type.scale <= data_type.precision <= 38:
        return None
    if data_type.precision <= 9:
        return Kind.DECIMAL4
    return Kind.DECIMAL8 if data_type.precision <= 18 else Kind.DECIMAL16


def encode_arrow(array: Any) -> Any:
    """Return an Arrow array of a primitive type as encoded Variant values; nulls stay null.

    Raises `InvalidDataError` if Variants have no such type, or a value is invalid.
    """
    kind = find_kind(array.type)
    if kind is None:
        raise InvalidDataError(f"the type {array.type} is not a type of shredded Variants")
    if kind in (Kind.STRING, Kind.BINARY):
        return build_strings(array, kind)
    return _FIXED.get(kind, _encode_number)(array, kind)


def _encode_number(array: Any, kind: Kind) -> Any:
    return build_fixed(kind, _without_nulls(array).to_numpy(), array)


def _without_nulls(array: Any) -> Any:
    return array.fill_null(0) if array.null_count else array


def _encode_booleans(array: Any, kind: Kind) -> Any:
    true, false = (bytes([code << 2]) for code in (Kind.TRUE, Kind.FALSE))
    encoded = pc.if_else(array.fill_null(False), true, false).cast(pa.large_binary())
    return mask_nulls(encoded, array)


def _encode_times(array: Any, kind: Kind) -> Any:
    counts = array.cast(pa.int64())
    numbers = _without_nulls(counts).to_numpy()
    outside = (numbers < 0) | (numbers >= MICROSECONDS_PER_DAY)
    if kind == Kind.TIME_NTZ and outside.any():
        raise InvalidDataError("a shredded time is not within a day")
    return build_fixed(kind, numbers, array)


def _encode_dates(array: Any, kind: Kind) -> Any:
    return build_fixed(kind, _without_nulls(array.cast(pa.int32())).to_numpy(), array)


def _encode_uuids(array: Any, kind: Kind) -> Any:
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    data = np.zeros((len(storage), 16), np.uint8)
    buffer = storage.buffers()[1]
    if buffer is not None:
        first = storage.offset * 16
        data[:] = np.frombuffer(buffer, np.uint8)[first : first + data.size].reshape(-1, 16)
    return build_fixed(kind, data, storage)


def _encode_decimals(array: Any, kind: Kind) -> Any:
    data_type = array.type
    wide = array.cast(pa.decimal128(data_type.precision, data_type.scale))
    words = np.zeros((len(wide), 2), "<u8")
    buffer = wide.buffers()[1]
    if buffer is not None:
        first = wide.offset * 2
        words[:] = np.frombuffer(buffer, "<u8")[first : first + words.size].reshape(-1, 2)
    width = DECIMAL_BYTES[kind]
    data = np.empty((len(wide), 1 + width), np.uint8)
    data[:, 0] = data_type.scale
    data[:, 1:] = words.view(np.uint8).reshape(-1, 16)[:, :width]
    return build_fixed(kind, data, array)


_FIXED: Final[dict[Kind, Callable[[Any, Kind], Any]]] = {
    Kind.TRUE: _encode_booleans,
    Kind.DATE: _encode_dates,
    Kind.UUID: _encode_uuids,
    Kind.DECIMAL4: _encode_decimals,
    Kind.DECIMAL8: _encode_decimals,
    Kind.DECIMAL16: _encode_decimals,
    **dict.fromkeys([Kind.TIME_NTZ, *TIMESTAMPS.values()], _encode_times),
}


_NULL, _BOOL, _INT, _FLOAT, _STR, _DICT, _LIST, _OTHER = range(8)
_CODES: Final[dict[type, int]] = {
    type(None): _NULL,
    bool: _BOOL,
    int: _INT,
    float: _FLOAT,
    str: _STR,
    dict: _DICT,
    list: _LIST,
}


@dataclass(slots=True)
class EncodedLevel:
    """The values of one depth: those that are encoded, and where the objects and arrays are.

    The next level has the fields of the objects, and then the elements of the arrays.
    """

    size: int
    leaves: list[tuple[Index, Any]]
    objects: Index
    field_counts: Index
    names: Any
    field_rows: Index
    arrays: Index
    element_counts: Index


def encode_rows(rows: list[Any]) -> tuple[Any, Any]:
    """Return Python values as Variants; see `python_values.encode_scalar`.

    The metadata of each row has its own field names, sorted. Raises `UsageError` if a value has no
    Variant type, or is nested more than MAX_DEPTH deep.
    """
    levels: list[EncodedLevel] = []
    values, places = rows, np.arange(len(rows))
    while True:
        level, values, places = _split(values, places)
        levels.append(level)
        if not len(level.objects) and not len(level.arrays):
            break
        if len(levels) > MAX_DEPTH:
            raise UsageError(f"a Variant is nested at most {MAX_DEPTH} deep")
    return encode_levels(levels, len(rows))


def encode_levels(levels: list[EncodedLevel], rows: int) -> tuple[Any, Any]:
    """Return the values of all depths, from the outermost, as Variants; see `encode_rows`."""
    metadata, ranks, ids = _encode_names(levels, rows)
    encoded = pa.array([], pa.large_binary())
    for level in reversed(levels):
        count = len(level.field_rows)
        used = len(ids) - count
        encoded = _join(level, encoded, ranks[used:], ids[used:])
        ranks, ids = ranks[:used], ids[:used]
    return metadata, encoded


def _split(values: list[Any], rows: Index) -> tuple[EncodedLevel, list[Any], Index]:
    """Return the values of one depth, and the values of the next one with their rows."""
    codes = np.array([_CODES.get(kind, _OTHER) for kind in map(type, values)], np.int8)
    for place in np.flatnonzero(codes == _OTHER).tolist():
        if isinstance(values[place], Mapping):
            values[place], codes[place] = dict(values[place]), _DICT
        elif isinstance(values[place], list | tuple):
            values[place], codes[place] = list(values[place]), _LIST
    leaves: list[tuple[Index, Any]] = []
    for code, encode in enumerate((_nulls, _booleans, _integers, _floats, _strings)):
        _add_leaves(leaves, values, np.flatnonzero(codes == code), encode)
    _add_leaves(leaves, values, np.flatnonzero(codes == _OTHER), _others)
    objects, arrays = np.flatnonzero(codes == _DICT), np.flatnonzero(codes == _LIST)
    dicts: list[dict[str, Any]] = [values[place] for place in objects.tolist()]
    lists: list[list[Any]] = [values[place] for place in arrays.tolist()]
    field_counts = np.array(list(map(len, dicts)), np.int64)
    element_counts = np.array(list(map(len, lists)), np.int64)
    field_rows = np.repeat(rows[objects], field_counts)
    children = [*chain.from_iterable(each.values() for each in dicts), *chain.from_iterable(lists)]
    names = _make_strings(list(chain.from_iterable(dicts)), "field name")
    level = EncodedLevel(
        len(values), leaves, objects, field_counts, names, field_rows, arrays, element_counts
    )
    return level, children, np.concatenate([field_rows, np.repeat(rows[arrays], element_counts)])


def _add_leaves(
    leaves: list[tuple[Index, Any]], values: list[Any], places: Index, encode: Any
) -> None:
    if len(places):
        leaves.append((places, encode([values[place] for place in places.tolist()])))


def _others(values: list[Any]) -> Any:
    return pa.array([encode_scalar(value) for value in values], pa.large_binary())


def _nulls(values: list[Any]) -> Any:
    return pa.array([b"\0"] * len(values), pa.large_binary())


def _booleans(values: list[Any]) -> Any:
    heads = np.where(values, Kind.TRUE << 2, Kind.FALSE << 2).astype(np.uint8)
    return make_binary(heads, np.arange(len(values) + 1))


def _integers(values: list[Any]) -> Any:
    try:
        numbers = np.array(values, np.int64)
    except OverflowError:
        return _others(values)
    return encode_integers(numbers)


def encode_integers(numbers: Index) -> Any:
    """Return integers as encoded values of the smallest types that hold them."""
    size = np.ones(len(numbers), np.int64)
    kind = np.full(len(numbers), int(Kind.INT8), np.int64)
    for code, bits in ((Kind.INT16, 7), (Kind.INT32, 15), (Kind.INT64, 31)):
        wide = (numbers >> bits != 0) & (numbers >> bits != -1)
        kind[wide] = code
        size[wide] *= 2
    data = np.empty((len(numbers), 9), np.uint8)
    data[:, 0] = kind << 2
    data[:, 1:] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    used = np.arange(9) <= size[:, None]
    return make_binary(data[used], accumulate(size + 1))


def _floats(values: list[Any]) -> Any:
    return build_fixed(Kind.DOUBLE, np.array(values, "<f8"), pa.nulls(0))


def _strings(values: list[Any]) -> Any:
    return build_strings(_make_strings(values, "text"))


def _make_strings(values: list[Any], noun: str) -> Any:
    try:
        return pa.array(values, pa.large_string())
    except (pa.ArrowException, TypeError, UnicodeError) as error:
        raise UsageError(f"a {noun} is not a string, or has no UTF-8 form: {error}") from None


def _encode_names(levels: list[EncodedLevel], rows: int) -> tuple[Any, Index, Index]:
    """Return the metadata of each row, and the rank and the field id of each field."""
    names = pa.concat_arrays([level.names for level in levels]).dictionary_encode()
    places = np.concatenate([level.field_rows for level in levels])
    order = pc.sort_indices(names.dictionary.cast(pa.large_binary())).to_numpy().astype(np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranks = rank[names.indices.to_numpy()]
    texts: list[str] = names.dictionary.take(to_arrow(order)).to_pylist()
    width = max(len(order), 1)
    pairs = np.sort(places * width + ranks, kind="stable")
    pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])] if len(pairs) else pairs
    starts = np.searchsorted(pairs, np.arange(rows + 1) * width)
    ids = np.searchsorted(pairs, places * width + ranks) - starts[places]
    return _choose_metadata(pairs % width, starts, texts), ranks, ids


def _choose_metadata(ranks: Index, starts: Index, texts: list[str]) -> Any:
    """Return the metadata of each row; rows with the same names share one encoding."""
    rows = len(starts) - 1
    count = int(starts[1]) if rows else 0
    if rows and np.array_equal(starts, np.arange(rows + 1) * count):
        first = ranks[:count]
        if (ranks.reshape(rows, count) == first).all():
            same = encode_metadata([texts[rank] for rank in first.tolist()])
            return pa.array([same], pa.binary()).take(to_arrow(np.zeros(rows, np.int64)))
    known: dict[bytes, int] = {}
    distinct: list[bytes] = []
    chosen = np.empty(rows, np.int64)
    bounds = starts.tolist()
    for row in range(rows):
        names = ranks[bounds[row] : bounds[row + 1]]
        key = names.tobytes()
        number = known.get(key)
        if number is None:
            number = known[key] = len(distinct)
            distinct.append(encode_metadata([texts[rank] for rank in names.tolist()]))
        chosen[row] = number
    return pa.array(distinct, pa.binary()).take(to_arrow(chosen))


def _join(level: EncodedLevel, below: Any, ranks: Index, ids: Index) -> Any:
    """Return the encoded values of a level from those of the next one."""
    parts, index = [], np.empty(level.size, np.int64)
    size = 0
    groups = list(level.leaves)
    if len(level.objects):
        owner = np.repeat(np.arange(len(level.objects)), level.field_counts)
        order = np.lexsort((ranks, owner))
        fields = below.take(to_arrow(order))
        groups.append((level.objects, build_objects(level.field_counts, ids[order], fields)))
    if len(level.arrays):
        elements = below.slice(len(ranks))
        groups.append((level.arrays, build_arrays(level.element_counts, elements)))
    for places, encoded in groups:
        index[places] = np.arange(size, size + len(encoded))
        parts.append(encoded)
        size += len(encoded)
    if not parts:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(parts).take(to_arrow(index))
