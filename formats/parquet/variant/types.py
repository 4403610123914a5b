"""The types of Variant values and their headers (Variant Encoding, "Encoding types")."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

PRIMITIVE: Final = 0
SHORT_STRING: Final = 1
OBJECT: Final = 2
ARRAY: Final = 3


class Kind(IntEnum):
    """The kinds of values: the primitive types by their ids, and objects and arrays.

    Short strings are strings.
    """

    INVALID = -1
    NULL = 0
    TRUE = 1
    FALSE = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT64 = 6
    DOUBLE = 7
    DECIMAL4 = 8
    DECIMAL8 = 9
    DECIMAL16 = 10
    DATE = 11
    TIMESTAMP = 12
    TIMESTAMP_NTZ = 13
    FLOAT = 14
    BINARY = 15
    STRING = 16
    TIME_NTZ = 17
    TIMESTAMP_NANOS = 18
    TIMESTAMP_NTZ_NANOS = 19
    UUID = 20
    OBJECT = 21
    ARRAY = 22


MAX_SHORT_STRING: Final = 63
MAX_DECIMAL_SCALE: Final = 38
MICROSECONDS_PER_DAY: Final = 86_400_000_000

DATA_SIZES: Final = {
    Kind.NULL: 0,
    Kind.TRUE: 0,
    Kind.FALSE: 0,
    Kind.INT8: 1,
    Kind.INT16: 2,
    Kind.INT32: 4,
    Kind.INT64: 8,
    Kind.DOUBLE: 8,
    Kind.DECIMAL4: 5,
    Kind.DECIMAL8: 9,
    Kind.DECIMAL16: 17,
    Kind.DATE: 4,
    Kind.TIMESTAMP: 8,
    Kind.TIMESTAMP_NTZ: 8,
    Kind.FLOAT: 4,
    Kind.TIME_NTZ: 8,
    Kind.TIMESTAMP_NANOS: 8,
    Kind.TIMESTAMP_NTZ_NANOS: 8,
    Kind.UUID: 16,
}
"""The number of bytes after the header, for the types whose values all have the same size."""
INTEGERS: Final = frozenset({Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64})
DECIMAL_BYTES: Final = {Kind.DECIMAL4: 4, Kind.DECIMAL8: 8, Kind.DECIMAL16: 16}
"""The decimal types, and the sizes of their unscaled values."""
TIMESTAMPS: Final = {
    ("us", True): Kind.TIMESTAMP,
    ("us", False): Kind.TIMESTAMP_NTZ,
    ("ns", True): Kind.TIMESTAMP_NANOS,
    ("ns", False): Kind.TIMESTAMP_NTZ_NANOS,
}
"""The types of timestamps, by their unit and whether they are instants in UTC."""


def header_byte(basic_type: int, header: int) -> int:
    """Return the first byte of a value."""
    return basic_type | header << 2


KINDS: Final = np.full(256, Kind.INVALID, np.int8)
"""The kind of a value, by its first byte."""
SIZES: Final = np.full(256, -1, np.int64)
"""The size in bytes of a value, by its first byte; -1 if more of the value determines it."""

for _kind in range(Kind.NULL, Kind.UUID + 1):
    KINDS[header_byte(PRIMITIVE, _kind)] = _kind
for _kind, _size in DATA_SIZES.items():
    SIZES[header_byte(PRIMITIVE, _kind)] = 1 + _size
for _header in range(64):
    KINDS[header_byte(SHORT_STRING, _header)] = Kind.STRING
    KINDS[header_byte(OBJECT, _header)] = Kind.OBJECT
    KINDS[header_byte(ARRAY, _header)] = Kind.ARRAY
    SIZES[header_byte(SHORT_STRING, _header)] = 1 + _header
KINDS.setflags(write=False)
SIZES.setflags(write=False)
