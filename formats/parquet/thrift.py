"""The compact protocol of Thrift, in which Parquet files write their metadata.

A struct is read into a dictionary, so that fields that nobody knows yet survive a rewrite. Every
length and count is checked against the bytes that are left before memory is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError

MAX_DEPTH = 32
"""The largest number of structs and lists inside each other."""
MAX_VALUES = 1 << 21
"""The largest number of values that one reader decodes."""
_MAX_VARINT_BITS = 64
_DOUBLE = struct.Struct("<d")


class Type(IntEnum):
    """The types of values, as the compact protocol numbers them."""

    STOP = 0
    TRUE = 1
    FALSE = 2
    I8 = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    MAP = 11
    STRUCT = 12
    UUID = 13


_TYPES = {int(each): each for each in Type if each}
_INTEGERS = (Type.I16, Type.I32, Type.I64)
_BOOLEANS = (Type.TRUE, Type.FALSE)
_INTEGER_BITS = {Type.I16: 16, Type.I32: 32, Type.I64: 64}


class Value(NamedTuple):
    """A value and its type. A boolean has the type TRUE whatever it is."""

    type: Type
    content: Any
    """A bool, int, float, bytes, `Struct` or `ThriftList`. The encoded bytes of a map or a UUID."""


Struct = dict[int, Value]
"""A struct: its values by their field numbers, in the order of the bytes."""


@dataclass(slots=True)
class ThriftList:
    """A list or a set."""

    element: Type
    """The type of the elements."""
    items: list[Any] = field(default_factory=list[Any])
    """The contents of the elements; see `Value.content`."""
    type: Type = Type.LIST
    """LIST or SET."""


class CompactReader:
    """Reads values of the compact protocol.

    All methods raise `InvalidDataError` if the bytes are malformed, with the offset, and
    `LimitError` if the nesting or the number of values exceeds a limit.
    """

    def __init__(self, data: bytes, position: int = 0, max_values: int = MAX_VALUES) -> None:
        self._data = data
        self.position = position
        """The offset of the next byte."""
        self._values = 0
        self._max_values = max_values

    def read_struct(self, depth: int = 0) -> Struct:
        """Read a struct with all of its fields."""
        self._check_depth(depth)
        fields: Struct = {}
        number, kind = self._read_header(0)
        while kind is not None:
            if number in fields:
                raise self._error(f"field {number} appears twice")
            fields[number] = self.read_value(kind, depth + 1)
            number, kind = self._read_header(number)
        return fields

    def fields(self, depth: int = 0) -> Iterator[tuple[int, Type]]:
        """Yield the number and type of each field. The caller reads its value."""
        self._check_depth(depth)
        number, kind = self._read_header(0)
        while kind is not None:
            yield number, kind
            number, kind = self._read_header(number)

    def read_value(self, kind: Type, depth: int = 0) -> Value:
        """Read the value of a field."""
        self._count_values(1)
        if kind in _BOOLEANS:
            return Value(Type.TRUE, kind == Type.TRUE)
        return Value(kind, self._read_content(kind, depth))

    def read_list_header(self) -> tuple[Type, int]:
        """Read the header of a list: the type and the number of its elements."""
        header = self._read_byte()
        count = header >> 4
        if count == 15:
            count = self._read_varint()
        if count > self._left:
            raise self._error(f"a list has {count} elements, but only {self._left} bytes follow")
        kind = header & 0x0F
        return (Type.TRUE if not kind and not count else self._make_type(kind)), count

    def read_integer(self, bits: int) -> int:
        """Read a signed integer of at most `bits` bits."""
        encoded = self._read_varint()
        value = (encoded >> 1) ^ -(encoded & 1)
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise self._error(f"{value} does not fit in {bits} bits")
        return value

    @property
    def _left(self) -> int:
        return len(self._data) - self.position

    def _read_header(self, number: int) -> tuple[int, Type | None]:
        """Return the number and the type of the next field, after the number of the last one."""
        header = self._read_byte()
        kind, delta = header & 0x0F, header >> 4
        if not kind:
            if delta:
                raise self._error("the end of a struct has a field number")
            return number, None
        return (number + delta if delta else self.read_integer(16)), self._make_type(kind)

    def _read_content(self, kind: Type, depth: int) -> Any:
        bits = _INTEGER_BITS.get(kind)
        if bits is not None:
            return self.read_integer(bits)
        if kind == Type.BINARY:
            return self._take(self._read_varint())
        if kind == Type.STRUCT:
            return self.read_struct(depth)
        if kind in (Type.LIST, Type.SET):
            return self._read_list(kind, depth)
        if kind == Type.I8:
            return int.from_bytes(self._take(1), signed=True)
        if kind == Type.DOUBLE:
            return _DOUBLE.unpack(self._take(8))[0]
        if kind == Type.UUID:
            return self._take(16)
        return self._read_map(depth)

    def _read_list(self, kind: Type, depth: int) -> ThriftList:
        self._check_depth(depth)
        element, count = self.read_list_header()
        self._count_values(count)
        if element in _BOOLEANS:
            items: list[Any] = [each == Type.TRUE for each in self._take(count)]
            return ThriftList(Type.TRUE, items, kind)
        items = [self._read_content(element, depth + 1) for _ in range(count)]
        return ThriftList(element, items, kind)

    def _read_map(self, depth: int) -> bytes:
        """Return the encoded bytes of a map."""
        self._check_depth(depth)
        start = self.position
        count = self._read_varint()
        if count > self._left:
            raise self._error(f"a map has {count} entries, but only {self._left} bytes follow")
        self._count_values(2 * count)
        if count:
            header = self._read_byte()
            kinds = (self._make_type(header >> 4), self._make_type(header & 0x0F))
            for _ in range(count):
                for kind in kinds:
                    if kind in _BOOLEANS:
                        self._skip(1)
                    else:
                        self._read_content(kind, depth + 1)
        return self._data[start : self.position]

    def _read_varint(self) -> int:
        value = shift = 0
        while shift < _MAX_VARINT_BITS:
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise self._error("an integer has more than 10 bytes")

    def _read_byte(self) -> int:
        try:
            byte = self._data[self.position]
        except IndexError:
            raise self._error("the metadata ends inside a value") from None
        self.position += 1
        return byte

    def _take(self, count: int) -> bytes:
        start = self.position
        self._skip(count)
        return self._data[start : self.position]

    def _skip(self, count: int) -> None:
        if count > self._left:
            raise self._error(f"a value has {count} bytes, but only {self._left} follow")
        self.position += count

    def _make_type(self, kind: int) -> Type:
        found = _TYPES.get(kind)
        if found is None:
            raise self._error(f"{kind} is not a type of Thrift")
        return found

    def _count_values(self, count: int) -> None:
        self._values += count
        if self._values > self._max_values:
            raise LimitError(f"the metadata has more than {self._max_values} values")

    def _check_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise LimitError(f"the metadata is nested more than {MAX_DEPTH} levels deep")

    def _error(self, problem: str) -> InvalidDataError:
        return InvalidDataError(f"{problem} (at byte {self.position} of the metadata)")


def encode_struct(fields: Struct) -> bytes:
    """Return the bytes of a struct.

    Examples
    --------
    >>> encode_struct({1: Value(Type.I32, 3), 2: Value(Type.BINARY, b"x")}).hex()
    '150618017800'
    """
    out = bytearray()
    _write_struct(out, fields)
    return bytes(out)


def encode_list(values: ThriftList) -> bytes:
    """Return the bytes of a list, with its header."""
    out = bytearray()
    _write_list(out, values)
    return bytes(out)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number in sorted(fields):
        kind, content = fields[number]
        code = kind
        if kind == Type.TRUE:
            code = Type.TRUE if content else Type.FALSE
        if 0 < number - last < 16:
            out.append((number - last) << 4 | code)
        else:
            out.append(code)
            _write_integer(out, number)
        last = number
        if kind != Type.TRUE:
            _write_content(out, kind, content)
    out.append(Type.STOP)


def _write_content(out: bytearray, kind: Type, content: Any) -> None:
    if kind in _INTEGERS:
        _write_integer(out, content)
    elif kind == Type.BINARY:
        _write_varint(out, len(content))
        out += content
    elif kind == Type.STRUCT:
        _write_struct(out, content)
    elif kind in (Type.LIST, Type.SET):
        _write_list(out, content)
    elif kind == Type.I8:
        out += content.to_bytes(1, signed=True)
    elif kind == Type.DOUBLE:
        out += _DOUBLE.pack(content)
    elif kind == Type.TRUE:
        out.append(Type.TRUE if content else Type.FALSE)
    else:
        out += content


def _write_list(out: bytearray, values: ThriftList) -> None:
    count = len(values.items)
    if count < 15:
        out.append(count << 4 | values.element)
    else:
        out.append(0xF0 | values.element)
        _write_varint(out, count)
    for item in values.items:
        _write_content(out, values.element, item)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else ~(value << 1))


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
