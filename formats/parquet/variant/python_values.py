"""A single Variant as a Python value, and a scalar Python value as an encoded value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal
from uuid import UUID

import numpy as np

from ....errors import InvalidDataError, UsageError
from .buffers import MAX_DEPTH
from .types import (
    ARRAY,
    DATA_SIZES,
    DECIMAL_BYTES,
    MAX_DECIMAL_SCALE,
    MAX_SHORT_STRING,
    MICROSECONDS_PER_DAY,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    TIMESTAMPS,
    Kind,
    header_byte,
)

_EPOCH: Final = datetime(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = date.min.toordinal(), date.max.toordinal()
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_NANOS: Final = (Kind.TIMESTAMP_NANOS, Kind.TIMESTAMP_NTZ_NANOS)
_ZONED: Final = (Kind.TIMESTAMP, Kind.TIMESTAMP_NANOS)
_FORMATS: Final = {
    Kind.INT8: struct.Struct("<b"),
    Kind.INT16: struct.Struct("<h"),
    Kind.INT32: struct.Struct("<i"),
    Kind.INT64: struct.Struct("<q"),
    Kind.DOUBLE: struct.Struct("<d"),
    Kind.FLOAT: struct.Struct("<f"),
}
_CONSTANTS: Final = {Kind.NULL: None, Kind.TRUE: True, Kind.FALSE: False}


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A timestamp that `datetime.datetime` cannot hold.

    Attributes
    ----------
    count : int
        The time since 1970-01-01 00:00:00.
    unit : {"us", "ns"}
        The unit of `count`: microseconds or nanoseconds.
    utc : bool
        Whether it is an instant in UTC. Otherwise it is a local time.
    """

    count: int
    unit: Literal["us", "ns"]
    utc: bool

    def __str__(self) -> str:
        """Return the timestamp as ISO 8601 writes it."""
        text = str(np.datetime64(self.count, self.unit))
        return f"{text}+00:00" if self.utc else text


def decode_metadata(metadata: bytes) -> list[str]:
    """Return the field names of encoded metadata.

    Raises `InvalidDataError` if the metadata is invalid.
    """
    if len(metadata) < 3:
        raise InvalidDataError("the metadata has fewer than 3 bytes")
    header = metadata[0]
    if header & 0x0F != 1:
        raise InvalidDataError(f"the metadata has version {header & 15}; it must have version 1")
    width = (header >> 6) + 1
    size = int.from_bytes(metadata[1 : 1 + width], "little")
    body = 1 + width * (size + 2)
    if body > len(metadata):
        raise InvalidDataError("the metadata ends inside of its offsets")
    ends = _read_ints(metadata, 1 + width, width, size + 1)
    if ends[0] != 0 or body + ends[-1] != len(metadata) or ends != sorted(ends):
        raise InvalidDataError("the offsets of the metadata do not fit its bytes")
    encoded = [metadata[body + a : body + b] for a, b in pairwise(ends)]
    if header & 0x10 and any(a >= b for a, b in pairwise(encoded)):
        raise InvalidDataError("the metadata claims to be sorted, but is not")
    return [_decode_text(name) for name in encoded]


def decode(metadata: bytes, value: bytes, *, ordered: bool = True) -> Any:
    """Return a Variant as a Python value.

    Objects become dicts, arrays lists, exact numbers int or Decimal, timestamps and dates objects
    of `datetime`. A timestamp in nanoseconds, or one outside of the years 1 to 9999, becomes a
    `Timestamp`, and such a date a `numpy.datetime64`.

    Raises `InvalidDataError` if the Variant is invalid.
    """
    decoder = _Decoder(decode_metadata(metadata), value, ordered=ordered)
    return decoder.decode(0, len(value), 0)


class _Decoder:
    def __init__(self, names: list[str], data: bytes, *, ordered: bool) -> None:
        self._names = names
        self._data = data
        self._ordered = ordered

    def decode(self, start: int, end: int, depth: int) -> Any:
        """Return the value that fills some bytes."""
        if start >= end:
            raise InvalidDataError("a value is empty")
        if depth > MAX_DEPTH:
            raise InvalidDataError(f"it is nested more than {MAX_DEPTH} deep")
        header = self._data[start]
        basic_type, header = header & 3, header >> 2
        if basic_type == PRIMITIVE:
            return self._decode_primitive(header, start + 1, end)
        if basic_type == SHORT_STRING:
            self._require_size(1 + header, start, end)
            return _decode_text(self._data[start + 1 : end])
        if basic_type == OBJECT:
            return self._decode_object(header, start + 1, end, depth)
        assert basic_type == ARRAY
        is_large = bool(header & 4)
        count = self._read_count(start + 1, end, is_large=is_large)
        at = start + 1 + (4 if is_large else 1)
        extents = self._read_extents(at, count, (header & 3) + 1, end)
        return [self.decode(first, last, depth + 1) for first, last in extents]

    def _decode_object(self, header: int, at: int, end: int, depth: int) -> dict[str, Any]:
        is_large = bool(header & 16)
        count = self._read_count(at, end, is_large=is_large)
        at += 4 if is_large else 1
        width = (header >> 2 & 3) + 1
        offsets_at = at + count * width
        extents = self._read_extents(offsets_at, count, (header & 3) + 1, end)
        ids = _read_ints(self._data, at, width, count)
        if ids and max(ids) >= len(self._names):
            raise InvalidDataError("a field id is not in the metadata")
        names = [self._names[field_id] for field_id in ids]
        encoded = [name.encode() for name in names]
        if self._ordered and encoded != sorted(encoded):
            raise InvalidDataError("the fields of an object are not in the order of their names")
        if len(set(names)) < len(names):
            raise InvalidDataError("an object has two fields of one name")
        return {
            name: self.decode(first, last, depth + 1)
            for name, (first, last) in zip(names, extents, strict=True)
        }

    def _read_count(self, at: int, end: int, *, is_large: bool) -> int:
        width = 4 if is_large else 1
        if at + width > end:
            raise InvalidDataError("an object or array ends inside of its offsets")
        return int.from_bytes(self._data[at : at + width], "little")

    def _read_extents(self, at: int, count: int, width: int, end: int) -> list[tuple[int, int]]:
        """Return where the values of an object or array start and end; they leave no gaps."""
        body = at + (count + 1) * width
        if body > end:
            raise InvalidDataError("an object or array ends inside of its offsets")
        offsets = _read_ints(self._data, at, width, count + 1)
        starts = sorted(offsets[:-1])
        bounds = [*starts, offsets[-1]]
        if body + offsets[-1] != end or bounds[0] != 0:
            raise InvalidDataError("the offsets of an object or array do not fit its values")
        following = dict(zip(starts, bounds[1:], strict=True))
        if len(following) < count or (starts and starts[-1] >= offsets[-1]):
            raise InvalidDataError("the offsets of an object or array do not fit its values")
        return [(body + offset, body + following[offset]) for offset in offsets[:-1]]

    def _require_size(self, size: int, start: int, end: int) -> None:
        if end - start != size:
            raise InvalidDataError("the size of a value does not fit its bytes")

    def _decode_primitive(self, code: int, at: int, end: int) -> Any:
        if code > Kind.UUID:
            raise InvalidDataError(f"the type id {code} is not one of version 1")
        kind = Kind(code)
        if kind in (Kind.BINARY, Kind.STRING):
            if at + 4 > end:
                raise InvalidDataError("the size of a value does not fit its bytes")
            self._require_size(4 + int.from_bytes(self._data[at : at + 4], "little"), at, end)
            content = self._data[at + 4 : end]
            return content if kind == Kind.BINARY else _decode_text(content)
        self._require_size(DATA_SIZES[kind], at, end)
        data = self._data[at:end]
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _FORMATS:
            return _FORMATS[kind].unpack(data)[0]
        if kind == Kind.UUID:
            return UUID(bytes=data)
        if kind in DECIMAL_BYTES:
            return _decode_decimal(data)
        return _decode_time(kind, int.from_bytes(data, "little", signed=True))


def _read_ints(data: bytes, at: int, width: int, count: int) -> list[int]:
    if width == 1:
        return list(data[at : at + count])
    return [
        int.from_bytes(data[first : first + width], "little")
        for first in range(at, at + count * width, width)
    ]


def _decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidDataError("a string or field name is not UTF-8") from None


def _decode_decimal(data: bytes) -> Decimal:
    scale, unscaled = data[0], int.from_bytes(data[1:], "little", signed=True)
    if scale > MAX_DECIMAL_SCALE:
        raise InvalidDataError(f"the scale of a decimal is {scale}; it must be at most 38")
    if abs(unscaled) >= 10**38:
        raise InvalidDataError("a decimal has more than 38 digits")
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


def _decode_time(kind: Kind, count: int) -> Any:
    if kind == Kind.DATE:
        if _FIRST_DAY <= count + _EPOCH_DAY <= _LAST_DAY:
            return date.fromordinal(count + _EPOCH_DAY)
        return np.datetime64(count, "D")
    if kind == Kind.TIME_NTZ:
        if not 0 <= count < MICROSECONDS_PER_DAY:
            raise InvalidDataError("a time is not within a day")
        seconds, microsecond = divmod(count, 1_000_000)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, microsecond)
    utc = kind in _ZONED
    if kind in _NANOS:
        return Timestamp(count, "ns", utc)
    try:
        local = _EPOCH + timedelta(microseconds=count)
    except OverflowError:
        return Timestamp(count, "us", utc)
    return local.replace(tzinfo=UTC) if utc else local


_NUMPY_TYPES: Final = {
    "int8": Kind.INT8,
    "int16": Kind.INT16,
    "int32": Kind.INT32,
    "int64": Kind.INT64,
    "float32": Kind.FLOAT,
    "float64": Kind.DOUBLE,
}


def encode_scalar(value: Any) -> bytes:
    """Return a Python value as an encoded Variant value, which is not an object or an array.

    It is None, bool, int, float, Decimal, str, bytes, `datetime.date`, `time` or `datetime`, UUID
    or `Timestamp`. An int gets the smallest type that holds it, and a decimal one if it exceeds 64
    bits; a number of NumPy keeps its type. Raises `UsageError` if a value has no Variant type.
    """
    for kind, function in _ENCODERS:
        if isinstance(value, kind):
            return function(value)
    raise UsageError(f"a {type(value).__name__} has no Variant type: {value!r}")


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the text {text!r} has no UTF-8 form") from None


def _primitive(kind: Kind, data: bytes = b"") -> bytes:
    return bytes([header_byte(PRIMITIVE, kind)]) + data


def _signed(kind: Kind, value: int, width: int) -> bytes:
    try:
        return _primitive(kind, value.to_bytes(width, "little", signed=True))
    except OverflowError:
        raise UsageError(f"{value} does not fit the Variant type {kind.name}") from None


def _encode_bool(value: Any) -> bytes:
    return _primitive(Kind.TRUE if value else Kind.FALSE)


def _encode_float(value: float) -> bytes:
    return _primitive(Kind.DOUBLE, _FORMATS[Kind.DOUBLE].pack(value))


def _encode_int(value: int) -> bytes:
    for kind, width in (
        (Kind.INT8, 1),
        (Kind.INT16, 2),
        (Kind.INT32, 4),
        (Kind.INT64, 8),
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
        (Kind.DECIMAL4, 4, 10**9),
        (Kind.DECIMAL8, 8, 10**18),
        (Kind.DECIMAL16, 16, 10**38),
    ):
        if abs(unscaled) < limit:
            data = unscaled.to_bytes(width, "little", signed=True)
            return _primitive(kind, bytes([max(-exponent, 0)]) + data)
    raise AssertionError("unreachable")


def _encode_string(value: str) -> bytes:
    data = _encode_text(value)
    if len(data) <= MAX_SHORT_STRING:
        return bytes([header_byte(SHORT_STRING, len(data))]) + data
    return _primitive(Kind.STRING, len(data).to_bytes(4, "little") + data)


def _encode_binary(value: Any) -> bytes:
    data = bytes(value)
    return _primitive(Kind.BINARY, len(data).to_bytes(4, "little") + data)


def _encode_datetime(value: datetime) -> bytes:
    kind = Kind.TIMESTAMP_NTZ
    if value.utcoffset() is not None:
        kind, value = Kind.TIMESTAMP, value.astimezone(UTC)
    difference = value.replace(tzinfo=None) - datetime(1970, 1, 1)
    seconds = difference.days * 86_400 + difference.seconds
    return _signed(kind, seconds * 1_000_000 + difference.microseconds, 8)


def _encode_time(value: time) -> bytes:
    if value.tzinfo is not None:
        raise UsageError(f"the time {value} has a time zone, for which there is no Variant type")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _signed(Kind.TIME_NTZ, seconds * 1_000_000 + value.microsecond, 8)


def _encode_timestamp(value: Timestamp) -> bytes:
    return _signed(TIMESTAMPS[value.unit, value.utc], value.count, 8)


def _encode_numpy(value: Any) -> bytes:
    kind = _NUMPY_TYPES.get(value.dtype.name)
    if kind is None:
        return encode_scalar(value.item())
    return _primitive(kind, value.astype(value.dtype.newbyteorder("<")).tobytes())


def _encode_day(value: Any) -> bytes:
    if np.datetime_data(value.dtype)[0] != "D":
        raise UsageError(f"{value!r} is not a date; use datetime or Timestamp")
    return _signed(Kind.DATE, int(value.astype(np.int64)), 4)


_ENCODERS: list[tuple[Any, Callable[[Any], bytes]]] = [
    (type(None), lambda _: _primitive(Kind.NULL)),
    ((bool, np.bool_), _encode_bool),
    (np.datetime64, _encode_day),
    (np.generic, _encode_numpy),
    (int, _encode_int),
    (float, _encode_float),
    (str, _encode_string),
    (Decimal, _encode_decimal),
    ((bytes, bytearray, memoryview), _encode_binary),
    (datetime, _encode_datetime),
    (date, lambda value: _signed(Kind.DATE, value.toordinal() - _EPOCH_DAY, 4)),
    (time, _encode_time),
    (Timestamp, _encode_timestamp),
    (UUID, lambda value: _primitive(Kind.UUID, value.bytes)),
]
