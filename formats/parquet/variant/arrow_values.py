"""Arrow values of primitive types as Variants (Variant Shredding, "Shredded Value Types")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....errors import InvalidDataError
from .building import build_fixed, build_strings, mask_nulls
from .types import MICROSECONDS_PER_DAY, Kind

_NUMBERS: Final = {
    pa.int8(): Kind.INT8,
    pa.int16(): Kind.INT16,
    pa.int32(): Kind.INT32,
    pa.int64(): Kind.INT64,
    pa.float32(): Kind.FLOAT,
    pa.float64(): Kind.DOUBLE,
}
_TIMES: Final = {
    ("us", True): Kind.TIMESTAMP,
    ("us", False): Kind.TIMESTAMP_NTZ,
    ("ns", True): Kind.TIMESTAMP_NANOS,
    ("ns", False): Kind.TIMESTAMP_NTZ_NANOS,
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
        return _TIMES.get((data_type.unit, data_type.tz is not None))
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

    Raises
    ------
    InvalidDataError
        If Variants have no such type, or a value is invalid.
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
    width = {Kind.DECIMAL4: 4, Kind.DECIMAL8: 8}.get(kind, 16)
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
    **dict.fromkeys([Kind.TIME_NTZ, *_TIMES.values()], _encode_times),
}
