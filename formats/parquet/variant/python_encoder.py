"""A Python value as a Variant."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

import numpy as np

from ....errors import UsageError
from .checks import MAX_DEPTH
from .names import encode_metadata
from .python_decoder import Timestamp
from .types import (
    ARRAY,
    MAX_DECIMAL_SCALE,
    MAX_SHORT_STRING,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    Primitive,
    header_byte,
)

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_NUMPY_TYPES: Final = {
    "int8": Primitive.INT8,
    "int16": Primitive.INT16,
    "int32": Primitive.INT32,
    "int64": Primitive.INT64,
    "float32": Primitive.FLOAT,
    "float64": Primitive.DOUBLE,
}


def encode(value: Any) -> tuple[bytes, bytes]:
    """Return a Python value as a Variant.

    Parameters
    ----------
    value : object
        None, bool, int, float, Decimal, str, bytes, `datetime.date`, `time` or `datetime`, UUID,
        `Timestamp`, a list or tuple of such values, or a mapping from names to them. An int gets
        the smallest type that holds it, and a decimal one if it exceeds 64 bits; a number of NumPy
        keeps its type.

    Returns
    -------
    metadata, value : bytes
        The encoded Variant. The names of the metadata are sorted.

    Raises
    ------
    UsageError
        If a value has no Variant type, or is nested more than MAX_DEPTH deep.
    """
    ordered = sorted(collect_names(value), key=_encode_text)
    return encode_metadata(ordered), encode_with(value, {name: i for i, name in enumerate(ordered)})


def encode_with(value: Any, ids: Mapping[str, int]) -> bytes:
    """Return the value of a Variant whose metadata has the field names `ids`, sorted.

    See `encode`.
    """
    kind: Any = type(value)
    encoder = _EXACT_ENCODERS.get(kind)
    if encoder is not None:
        return encoder(value)
    if kind is dict or isinstance(value, Mapping):
        return _encode_object(value, ids)
    if isinstance(value, list | tuple):
        return _encode_container([encode_with(item, ids) for item in value], None)
    return _encode_scalar(value)


def collect_names(value: Any) -> set[str]:
    """Return all field names in a Python value; errors as for `encode`."""
    names: set[str] = set()
    _collect_names(value, names, 0)
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"the field name {name!r} is not a string")
    return names


def _collect_names(value: Any, names: set[str], depth: int) -> None:
    items: Any
    if isinstance(value, Mapping):
        items = value.values()
        names.update(value)
    elif isinstance(value, list | tuple):
        items = value
    else:
        return
    if depth >= MAX_DEPTH:
        raise UsageError(f"a Variant is nested at most {MAX_DEPTH} deep")
    for item in items:
        if type(item) not in _EXACT_ENCODERS:
            _collect_names(item, names, depth + 1)


def _encode_object(value: Mapping[str, Any], ids: Mapping[str, int]) -> bytes:
    fields = sorted((ids[name], name) for name in value)  # in the order of the names
    encoded = [encode_with(value[name], ids) for _, name in fields]
    return _encode_container(encoded, [field_id for field_id, _ in fields])


def _encode_container(encoded: list[bytes], ids: list[int] | None) -> bytes:
    offsets = [0, *accumulate(map(len, encoded))]
    count = len(encoded)
    if offsets[-1] < 256 and count < 256 and (ids is None or max(ids, default=0) < 256):
        header = _SMALL_ARRAY if ids is None else _SMALL_OBJECT
        return bytes([header, count, *(ids or ()), *offsets]) + b"".join(encoded)
    offset_width = _uint_width(offsets[-1])
    is_large = count > 255
    parts = [count.to_bytes(4 if is_large else 1, "little")]
    if ids is None:
        header = header_byte(ARRAY, (offset_width - 1) | is_large << 2)
    else:
        id_width = _uint_width(max(ids, default=0))
        header = header_byte(OBJECT, (offset_width - 1) | (id_width - 1) << 2 | is_large << 4)
        parts += [field_id.to_bytes(id_width, "little") for field_id in ids]
    parts += [offset.to_bytes(offset_width, "little") for offset in offsets]
    return b"".join([bytes([header]), *parts, *encoded])


_SMALL_ARRAY, _SMALL_OBJECT = header_byte(ARRAY, 0), header_byte(OBJECT, 0)


def _uint_width(largest: int) -> int:
    return max(1, (largest.bit_length() + 7) // 8)


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the text {text!r} has no UTF-8 form") from None


def _encode_scalar(value: Any) -> bytes:
    for kind, function in _ENCODERS:
        if isinstance(value, kind):
            return function(value)
    raise UsageError(f"a {type(value).__name__} has no Variant type: {value!r}")


def _primitive(kind: Primitive, data: bytes = b"") -> bytes:
    return bytes([header_byte(PRIMITIVE, kind)]) + data


def _signed(kind: Primitive, value: int, width: int) -> bytes:
    try:
        return _primitive(kind, value.to_bytes(width, "little", signed=True))
    except OverflowError:
        raise UsageError(f"{value} does not fit the Variant type {kind.name}") from None


def _encode_bool(value: Any) -> bytes:
    return _primitive(Primitive.TRUE if value else Primitive.FALSE)


def _encode_float(value: float) -> bytes:
    return _DOUBLE + _PACK_DOUBLE(value)


_DOUBLE = bytes([header_byte(PRIMITIVE, Primitive.DOUBLE)])
_PACK_DOUBLE = struct.Struct("<d").pack


def _encode_int(value: int) -> bytes:
    for kind, width in (
        (Primitive.INT8, 1),
        (Primitive.INT16, 2),
        (Primitive.INT32, 4),
        (Primitive.INT64, 8),
    ):
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            return _signed(kind, value, width)
    return _encode_decimal(Decimal(value))


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise UsageError(f"the decimal {value} has no Variant type; use a float")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) if exponent <= 38 else None
    if unscaled is None or unscaled >= 10**38 or exponent < -MAX_DECIMAL_SCALE:
        raise UsageError(f"{value} has more than 38 digits, or more than 38 after the point")
    unscaled = -unscaled if sign else unscaled
    for kind, width, limit in (
        (Primitive.DECIMAL4, 4, 10**9),
        (Primitive.DECIMAL8, 8, 10**18),
        (Primitive.DECIMAL16, 16, 10**38),
    ):
        if abs(unscaled) < limit:
            data = unscaled.to_bytes(width, "little", signed=True)
            return _primitive(kind, bytes([max(-exponent, 0)]) + data)
    raise AssertionError("unreachable")


def _encode_string(value: str) -> bytes:
    data = _encode_text(value)
    if len(data) <= MAX_SHORT_STRING:
        return bytes([header_byte(SHORT_STRING, len(data))]) + data
    return _primitive(Primitive.STRING, len(data).to_bytes(4, "little") + data)


def _encode_binary(value: Any) -> bytes:
    data = bytes(value)
    return _primitive(Primitive.BINARY, len(data).to_bytes(4, "little") + data)


def _encode_datetime(value: datetime) -> bytes:
    kind = Primitive.TIMESTAMP_NTZ
    if value.utcoffset() is not None:
        kind, value = Primitive.TIMESTAMP, value.astimezone(UTC)
    difference = value.replace(tzinfo=None) - datetime(1970, 1, 1)
    seconds = difference.days * 86_400 + difference.seconds
    return _signed(kind, seconds * 1_000_000 + difference.microseconds, 8)


def _encode_time(value: time) -> bytes:
    if value.tzinfo is not None:
        raise UsageError(f"the time {value} has a time zone, for which there is no Variant type")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _signed(Primitive.TIME_NTZ, seconds * 1_000_000 + value.microsecond, 8)


def _encode_timestamp(value: Timestamp) -> bytes:
    kinds = {
        ("us", True): Primitive.TIMESTAMP,
        ("us", False): Primitive.TIMESTAMP_NTZ,
        ("ns", True): Primitive.TIMESTAMP_NANOS,
        ("ns", False): Primitive.TIMESTAMP_NTZ_NANOS,
    }
    return _signed(kinds[value.unit, value.utc], value.count, 8)


def _encode_numpy(value: Any) -> bytes:
    kind = _NUMPY_TYPES.get(value.dtype.name)
    if kind is None:
        return _encode_scalar(value.item())
    return _primitive(kind, value.astype(value.dtype.newbyteorder("<")).tobytes())


def _encode_day(value: Any) -> bytes:
    if np.datetime_data(value.dtype)[0] != "D":
        raise UsageError(f"{value!r} is not a date; use datetime or Timestamp")
    return _signed(Primitive.DATE, int(value.astype(np.int64)), 4)


_ENCODERS: list[tuple[Any, Callable[[Any], bytes]]] = [
    (type(None), lambda _: _primitive(Primitive.NULL)),
    ((bool, np.bool_), _encode_bool),
    (np.datetime64, _encode_day),
    (np.generic, _encode_numpy),
    (int, _encode_int),
    (float, _encode_float),
    (str, _encode_string),
    (Decimal, _encode_decimal),
    ((bytes, bytearray, memoryview), _encode_binary),
    (datetime, _encode_datetime),
    (
        date,
        lambda value: _signed(Primitive.DATE, value.toordinal() - _EPOCH_DAY, 4),
    ),
    (time, _encode_time),
    (Timestamp, _encode_timestamp),
    (UUID, lambda value: _primitive(Primitive.UUID, value.bytes)),
]
_EXACT_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): _ENCODERS[0][1],
    bool: _encode_bool,
    int: _encode_int,
    float: _encode_float,
    str: _encode_string,
    Decimal: _encode_decimal,
}
"""The encoders of the most frequent types, which need no search."""
