"""The types as which a column of Variants is best shredded."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from .checks import MAX_DEPTH
from .scalars import DECIMAL_BYTES, read_decimals, read_scales
from .types import Kind
from .values import Values, check_sizes, read_arrays, read_objects

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
