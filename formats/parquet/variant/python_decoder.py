"""A Variant as a Python value."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal
from uuid import UUID

import numpy as np

from ....errors import InvalidDataError
from .checks import MAX_DEPTH
from .types import (
    ARRAY,
    DATA_SIZES,
    MAX_DECIMAL_SCALE,
    MICROSECONDS_PER_DAY,
    OBJECT,
    PRIMITIVE,
    SHORT_STRING,
    Primitive,
)

_EPOCH: Final = datetime(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = date.min.toordinal(), date.max.toordinal()
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_NANOS: Final = (Primitive.TIMESTAMP_NANOS, Primitive.TIMESTAMP_NTZ_NANOS)
_ZONED: Final = (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NANOS)
_FORMATS: Final = {
    Primitive.INT8: struct.Struct("<b"),
    Primitive.INT16: struct.Struct("<h"),
    Primitive.INT32: struct.Struct("<i"),
    Primitive.INT64: struct.Struct("<q"),
    Primitive.DOUBLE: struct.Struct("<d"),
    Primitive.FLOAT: struct.Struct("<f"),
}
_CONSTANTS: Final = {Primitive.NULL: None, Primitive.TRUE: True, Primitive.FALSE: False}


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

    Raises
    ------
    InvalidDataError
        If the metadata is invalid.
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

    Parameters
    ----------
    metadata, value : bytes
        The encoded Variant.
    ordered : bool, optional
        Refuse objects whose fields are not in the order of their names.

    Raises
    ------
    InvalidDataError
        If the Variant is invalid.
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
        if code > Primitive.UUID:
            raise InvalidDataError(f"the type id {code} is not one of version 1")
        kind = Primitive(code)
        if kind in (Primitive.BINARY, Primitive.STRING):
            if at + 4 > end:
                raise InvalidDataError("the size of a value does not fit its bytes")
            self._require_size(4 + int.from_bytes(self._data[at : at + 4], "little"), at, end)
            content = self._data[at + 4 : end]
            return content if kind == Primitive.BINARY else _decode_text(content)
        self._require_size(DATA_SIZES[kind], at, end)
        data = self._data[at:end]
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _FORMATS:
            return _FORMATS[kind].unpack(data)[0]
        if kind == Primitive.UUID:
            return UUID(bytes=data)
        if kind in (Primitive.DECIMAL4, Primitive.DECIMAL8, Primitive.DECIMAL16):
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


def _decode_time(kind: Primitive, count: int) -> Any:
    if kind == Primitive.DATE:
        if _FIRST_DAY <= count + _EPOCH_DAY <= _LAST_DAY:
            return date.fromordinal(count + _EPOCH_DAY)
        return np.datetime64(count, "D")
    if kind == Primitive.TIME_NTZ:
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
