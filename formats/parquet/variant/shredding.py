"""Variants split into typed columns, by columns (Variant Shredding).

`infer_type` finds the type as which a column is best shredded.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from ....errors import UsageError
from .buffers import MAX_DEPTH, Index, Mask, accumulate, is_list, null_array, place, to_arrow
from .casts import natural_arrays
from .encoder import build_objects, find_kind
from .types import DECIMAL_BYTES, INTEGERS, Kind
from .values import (
    Entries,
    Values,
    check_scalars,
    check_sizes,
    read_arrays,
    read_decimals,
    read_objects,
    read_scales,
)

MAX_FIELDS: Final = 300
"""The largest number of columns that a shredded Variant gets by inference."""
_MIN_SHARE: Final = 0.1
"""A field is shredded if at least this share of the objects has it."""
_MIN_AGREEMENT: Final = 0.9
"""A value is shredded as a type if at least this share of those that are not null has it."""
_SIMPLE: Final[dict[Kind, Any]] = {
    Kind.DOUBLE: pa.float64(),
    Kind.FLOAT: pa.float32(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.TIMESTAMP_NTZ: pa.timestamp("us"),
    Kind.TIMESTAMP_NANOS: pa.timestamp("ns", "UTC"),
    Kind.TIMESTAMP_NTZ_NANOS: pa.timestamp("ns"),
    Kind.TIME_NTZ: pa.time64("us"),
    Kind.BINARY: pa.binary(),
    Kind.STRING: pa.string(),
    Kind.UUID: pa.uuid(),
}


def infer_type(values: Values) -> Any:
    """Return a type for `shred`, or the null type if the values have too little in common.

    Integers become int64, and decimals the precision that holds them. Objects become structs of the
    fields that a tenth of them have. A type must fit nine tenths of the values that are not null.
    """
    return _Inference().infer(values, 0)


class _Inference:
    def __init__(self) -> None:
        self._fields = 0

    def infer(self, values: Values, depth: int) -> Any:
        """Return a type for values at one place."""
        values = check_sizes(values)
        kind = values.kinds()
        values, kind = values.take(kind != Kind.NULL), kind[kind != Kind.NULL]
        if not len(values) or depth > MAX_DEPTH:
            return pa.null()
        counts = np.bincount(kind.clip(0), minlength=Kind.ARRAY + 1)
        needed = _MIN_AGREEMENT * len(values)
        if counts[Kind.OBJECT] >= needed:
            return self._infer_object(values.take(kind == Kind.OBJECT), depth)
        if counts[Kind.ARRAY] >= needed:
            _, entries = read_arrays(values.take(kind == Kind.ARRAY))
            return pa.list_(self.infer(entries.values, depth + 1))
        if counts[Kind.TRUE] + counts[Kind.FALSE] >= needed:
            return pa.bool_()
        if counts[Kind.INT8 : Kind.INT64 + 1].sum() >= needed:
            return pa.int64()
        if sum(counts[code] for code in DECIMAL_BYTES) >= needed:
            return _infer_decimal(values, kind, needed)
        best = Kind(int(counts.argmax()))
        return _SIMPLE.get(best, pa.null()) if counts[best] >= needed else pa.null()

    def _infer_object(self, objects: Values, depth: int) -> Any:
        _, entries = read_objects(objects)
        assert entries.key is not None
        names = objects.context.names
        share = np.bincount(entries.key, minlength=len(names.texts)) / len(objects)
        frequent = np.flatnonzero(share >= _MIN_SHARE)
        fields: list[Any] = []
        for key in frequent[np.argsort(-share[frequent], kind="stable")]:
            if self._fields >= MAX_FIELDS:
                break
            self._fields += 1
            found = self.infer(entries.values.take(entries.key == key), depth + 1)
            fields.append(pa.field(names.text(int(key)), found))
        fields.sort(key=lambda field: field.name.encode())
        return pa.struct(fields) if fields else pa.null()


def _infer_decimal(values: Values, kind: Any, needed: float) -> Any:
    """Return the type of the most frequent scale that holds all decimals of that scale."""
    decimals = np.isin(kind, [int(code) for code in DECIMAL_BYTES])
    scales = read_scales(values.take(decimals))
    counts = np.bincount(scales)
    scale = int(counts.argmax())
    if counts[scale] < needed:
        return pa.null()
    precision = max(scale, 1)
    for code in DECIMAL_BYTES:
        part = values.take(kind == code)
        part = part.take(read_scales(part) == scale)
        if len(part):
            precision = max(precision, _count_digits(part, code))
    return pa.decimal128(next(limit for limit in (9, 18, 38) if precision <= limit), scale)


def _count_digits(values: Values, code: Kind) -> int:
    """Return the number of digits of the longest unscaled value."""
    if code == Kind.DECIMAL16:
        words = read_decimals(values, code).view("<i8")
        high = int(np.abs(words[:, 1]).max()) + 1
        return min(len(str(high << 64)), 38)
    low = read_decimals(values, code)[:, 0].view(np.int64)
    return len(str(max(abs(int(low.min())), abs(int(low.max())))))


def shredded_type(data_type: Any) -> Any:
    """Return the type of a column that is shredded as a type.

    Raises `UsageError` if Variants cannot be shredded as this type.
    """
    group = _group_type(data_type, 0)
    return pa.struct([pa.field("metadata", pa.binary(), nullable=False), *group])


def _group_type(data_type: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UsageError(f"a Variant is nested at most {MAX_DEPTH} deep")
    if pa.types.is_struct(data_type):
        names = [field.name for field in data_type]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"a Variant cannot be shredded as {data_type}: name different fields")
        typed = pa.struct(
            [pa.field(f.name, _group_type(f.type, depth + 1), nullable=False) for f in data_type]
        )
    elif is_list(data_type):
        element = _group_type(data_type.value_type, depth + 1)
        typed = pa.list_(pa.field("element", element, nullable=False))
    elif pa.types.is_null(data_type):
        return pa.struct([pa.field("value", pa.binary())])
    elif find_kind(data_type) is None:
        raise UsageError(f"a Variant cannot be shredded as {data_type}")
    else:
        typed = data_type
    return pa.struct([pa.field("value", pa.binary()), pa.field("typed_value", typed)])


def shred(metadata: Any, values: Values, rows: int, data_type: Any) -> Any:
    """Return a column that is shredded as a type.

    Integers of every size are shredded as an integer type that holds them, and decimals as one of
    the same scale, so that equal values are read. Anything else keeps its type, and stays in
    ``value`` where the column has another one.
    """
    full = shredded_type(data_type)
    group = _shred(values, values.row, rows, data_type)
    missing = np.ones(rows, np.bool_)
    missing[values.row] = False
    mask = pa.array(missing) if missing.any() else None
    arrays = [metadata.cast(pa.binary()), *group.flatten()]
    return pa.StructArray.from_arrays(arrays, fields=list(full), mask=mask)


def _shred(values: Values, at: Index, rows: int, data_type: Any) -> Any:
    """Return a struct of value and typed_value, with the values at some positions."""
    values = check_sizes(values)
    kind = values.kinds()
    check_scalars(values, kind)
    fields = list(_group_type(data_type, 0))
    if pa.types.is_null(data_type):
        everything = np.arange(len(values))
        return pa.StructArray.from_arrays([_place(values, everything, at, rows)], fields=fields)
    if pa.types.is_struct(data_type):
        return _shred_objects(values, kind, at, rows, data_type)
    if len(fields) == 2 and pa.types.is_list(fields[1].type):
        return _shred_arrays(values, kind, at, rows, data_type)
    typed, taken = _shred_primitives(values, kind, at, rows, data_type)
    value = _place(values, np.flatnonzero(~taken), at, rows)
    return pa.StructArray.from_arrays([value, typed], fields=fields)


def _place(values: Values, selected: Index, at: Index, rows: int) -> Any:
    """Return some encoded values at their positions, and null at all others."""
    return place(values.take(selected).to_arrow().cast(pa.binary()), at[selected], rows)


def _shred_primitives(
    values: Values, kind: Any, at: Index, rows: int, data_type: Any
) -> tuple[Any, Mask]:
    """Return the typed values, and which values they are."""
    wanted = find_kind(data_type)
    assert wanted is not None
    accepted = frozenset({wanted})
    if wanted in INTEGERS:
        accepted = INTEGERS
    elif wanted in DECIMAL_BYTES:
        accepted = frozenset(DECIMAL_BYTES)
    elif wanted == Kind.TRUE:
        accepted = frozenset({Kind.TRUE, Kind.FALSE})
    taken = np.zeros(len(values), np.bool_)
    parts: list[Any] = []
    places: list[Index] = []
    for members, natural in natural_arrays(values, kind, accepted):
        selected, array = members, natural
        if pa.types.is_decimal(natural.type) and natural.type.scale != data_type.scale:
            continue
        fits = _find_fitting(natural, data_type)
        if fits is not None:
            selected, array = selected[fits], natural.filter(pa.array(fits))
        storage = pa.binary(16) if wanted == Kind.UUID else data_type
        parts.append(array.cast(storage))
        taken[selected] = True
        places.append(at[selected])
    if not parts:
        return null_array(rows, data_type), taken
    typed = place(pa.concat_arrays(parts), np.concatenate(places), rows)
    if wanted == Kind.UUID:
        typed = pa.ExtensionArray.from_storage(pa.uuid(), typed)
    return typed, taken


def _find_fitting(array: Any, data_type: Any) -> Mask | None:
    """Return which integers or decimals fit a type, or None if all do."""
    if pa.types.is_integer(data_type):
        numbers = array.to_numpy()
        limit = 1 << data_type.bit_width - 1
        fits = (numbers >= -limit) & (numbers <= limit - 1)
        return None if fits.all() else fits
    if not pa.types.is_decimal(data_type):
        return None
    try:
        array.cast(data_type)
    except pa.ArrowInvalid:
        limit = 10**data_type.precision
        unscaled = [int(number.scaleb(data_type.scale)) for number in array.to_pylist()]
        return np.array([abs(number) < limit for number in unscaled])
    return None


def _shred_arrays(values: Values, kind: Any, at: Index, rows: int, data_type: Any) -> Any:
    is_array = kind == Kind.ARRAY
    arrays = np.flatnonzero(is_array)
    arrays = arrays[np.argsort(at[arrays], kind="stable")]
    _, entries = read_arrays(values.take(arrays))
    count = len(entries.values)
    items = _shred(entries.values, np.arange(count), count, data_type.value_type)
    sizes = np.zeros(rows, np.int64)
    sizes[at[arrays]] = entries.counts
    missing = np.ones(rows, np.bool_)
    missing[at[arrays]] = False
    fields = list(_group_type(data_type, 0))
    typed = pa.ListArray.from_arrays(
        to_arrow(accumulate(sizes).astype(np.int32)),
        items,
        type=fields[1].type,
        mask=to_arrow(missing),
    )
    value = _place(values, np.flatnonzero(~is_array), at, rows)
    return pa.StructArray.from_arrays([value, typed], fields=fields)


def _shred_objects(values: Values, kind: Any, at: Index, rows: int, data_type: Any) -> Any:
    is_object = kind == Kind.OBJECT
    objects = np.flatnonzero(is_object)
    _, entries = read_objects(values.take(objects))
    assert entries.key is not None
    places = at[objects]
    left = np.ones(len(entries.parent), np.bool_)
    groups: list[Any] = []
    for field in data_type:
        key = values.context.names.find(field.name)
        selected = np.flatnonzero(entries.key == key)
        left[selected] = False
        part = entries.values.take(selected)
        groups.append(_shred(part, places[entries.parent[selected]], rows, field.type))
    missing = np.ones(rows, np.bool_)
    missing[places] = False
    fields = list(_group_type(data_type, 0))
    typed = pa.StructArray.from_arrays(groups, fields=list(fields[1].type), mask=pa.array(missing))
    parents, built = _build_residual(entries, left)
    others = np.flatnonzero(~is_object)
    encoded = pa.concat_arrays([built, values.take(others).to_arrow()]).cast(pa.binary())
    value = place(encoded, np.concatenate([places[parents], at[others]]), rows)
    return pa.StructArray.from_arrays([value, typed], fields=fields)


def _build_residual(entries: Entries, left: Mask) -> tuple[Index, Any]:
    """Return the objects with fields that are not shredded, and their values of those fields."""
    remaining = np.flatnonzero(left)
    counts = np.bincount(entries.parent[remaining], minlength=len(entries.counts))
    parents = np.flatnonzero(counts)
    fields = entries.values.take(remaining)
    names = fields.context.names
    assert entries.key is not None
    keys = entries.key[remaining]
    dictionary = names.metadata_of[fields.row]
    ids = np.empty(len(remaining), np.int64)
    for key in np.unique(keys):
        selected = np.flatnonzero(keys == key)
        ids[selected] = names.find_ids(int(key))[dictionary[selected]]
    return parents, build_objects(counts[parents].astype(np.int64), ids, fields.to_arrow())
