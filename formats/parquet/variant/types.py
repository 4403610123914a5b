"""The types of Variant values and their headers (Variant Encoding, "Encoding types")."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

PRIMITIVE: Final = 0
SHORT_STRING: Final = 1
OBJECT: Final = 2
ARRAY: Final = 3


class Primitive(IntEnum):
    """The primitive types, by their ids."""

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


MAX_SHORT_STRING: Final = 63
MAX_DECIMAL_SCALE: Final = 38
MICROSECONDS_PER_DAY: Final = 86_400_000_000

DATA_SIZES: Final = {
    Primitive.NULL: 0,
    Primitive.TRUE: 0,
    Primitive.FALSE: 0,
    Primitive.INT8: 1,
    Primitive.INT16: 2,
    Primitive.INT32: 4,
    Primitive.INT64: 8,
    Primitive.DOUBLE: 8,
    Primitive.DECIMAL4: 5,
    Primitive.DECIMAL8: 9,
    Primitive.DECIMAL16: 17,
    Primitive.DATE: 4,
    Primitive.TIMESTAMP: 8,
    Primitive.TIMESTAMP_NTZ: 8,
    Primitive.FLOAT: 4,
    Primitive.TIME_NTZ: 8,
    Primitive.TIMESTAMP_NANOS: 8,
    Primitive.TIMESTAMP_NTZ_NANOS: 8,
    Primitive.UUID: 16,
}
"""The number of bytes after the header, for the types whose values all have the same size."""


class Kind(IntEnum):
    """What a value is, whatever the bytes that encode it: its type, and one kind for each text."""

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


def header_byte(basic_type: int, header: int) -> int:
    """Return the first byte of a value."""
    return basic_type | header << 2


KINDS: Final = np.full(256, Kind.INVALID, np.int8)
"""The kind of a value, by its first byte."""
SIZES: Final = np.full(256, -1, np.int64)
"""The size in bytes of a value, by its first byte; -1 if more of the value determines it."""

for _primitive in Primitive:
    KINDS[header_byte(PRIMITIVE, _primitive)] = _primitive
    if _primitive in DATA_SIZES:
        SIZES[header_byte(PRIMITIVE, _primitive)] = 1 + DATA_SIZES[_primitive]
for _header in range(64):
    KINDS[header_byte(SHORT_STRING, _header)] = Kind.STRING
    KINDS[header_byte(OBJECT, _header)] = Kind.OBJECT
    KINDS[header_byte(ARRAY, _header)] = Kind.ARRAY
    SIZES[header_byte(SHORT_STRING, _header)] = 1 + _header
KINDS.setflags(write=False)
SIZES.setflags(write=False)
