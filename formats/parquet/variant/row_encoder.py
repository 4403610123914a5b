"""Python values of many rows as Variants, one level of all rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import UsageError
from .buffers import Index, accumulate, make_binary, to_arrow
from .building import build_arrays, build_fixed, build_objects, build_strings
from .checks import MAX_DEPTH
from .names import encode_metadata
from .python_encoder import encode_with
from .types import Kind

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
class Level:
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
    """Return Python values as Variants; see `python_encoder.encode`.

    Returns
    -------
    metadata : pyarrow.BinaryArray, shape (n,)
        The metadata of each row, with the field names of this row, sorted.
    value : pyarrow.LargeBinaryArray, shape (n,)
        The encoded values.

    Raises
    ------
    UsageError
        If a value has no Variant type, or is nested more than MAX_DEPTH deep.
    """
    levels: list[Level] = []
    values, places = rows, np.arange(len(rows))
    while True:
        level, values, places = _split(values, places)
        levels.append(level)
        if not len(level.objects) and not len(level.arrays):
            break
        if len(levels) > MAX_DEPTH:
            raise UsageError(f"a Variant is nested at most {MAX_DEPTH} deep")
    return encode_levels(levels, len(rows))


def encode_levels(levels: list[Level], rows: int) -> tuple[Any, Any]:
    """Return the values of all depths, from the outermost, as Variants; see `encode_rows`."""
    metadata, ranks, ids = _encode_names(levels, rows)
    encoded = pa.array([], pa.large_binary())
    for level in reversed(levels):
        count = len(level.field_rows)
        used = len(ids) - count
        encoded = _join(level, encoded, ranks[used:], ids[used:])
        ranks, ids = ranks[:used], ids[:used]
    return metadata, encoded


def _split(values: list[Any], rows: Index) -> tuple[Level, list[Any], Index]:
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
    level = Level(
        len(values), leaves, objects, field_counts, names, field_rows, arrays, element_counts
    )
    return level, children, np.concatenate([field_rows, np.repeat(rows[arrays], element_counts)])


def _add_leaves(
    leaves: list[tuple[Index, Any]], values: list[Any], places: Index, encode: Any
) -> None:
    if len(places):
        leaves.append((places, encode([values[place] for place in places.tolist()])))


def _others(values: list[Any]) -> Any:
    return pa.array([encode_with(value, {}) for value in values], pa.large_binary())


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


def _encode_names(levels: list[Level], rows: int) -> tuple[Any, Index, Index]:
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


def _join(level: Level, below: Any, ranks: Index, ids: Index) -> Any:
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
