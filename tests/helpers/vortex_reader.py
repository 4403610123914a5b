"""A reader that implements docs/vortex-messages.md with struct, without splitarrow or Vortex."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

PTYPES = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "f32", "f64")
FORMATS = "BHIQbhiqefd"


class Table:
    """A table of a FlatBuffer."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        self.data = data
        self.position = self.unpack("I", 0) if position is None else position

    def unpack(self, kind: str, position: int) -> int:
        return struct.unpack_from(f"<{kind}", self.data, position)[0]

    def find(self, number: int) -> int:
        vtable = self.position - self.unpack("i", self.position)
        slot = 4 + 2 * number
        if slot >= self.unpack("H", vtable):
            return 0
        offset = self.unpack("H", vtable + slot)
        return self.position + offset if offset else 0

    def number(self, number: int, kind: str) -> int:
        position = self.find(number)
        return self.unpack(kind, position) if position else 0

    def follow(self, position: int) -> int:
        return position + self.unpack("I", position)

    def table(self, number: int) -> Table:
        return Table(self.data, self.follow(self.find(number)))

    def vector(self, number: int, nbytes: int) -> list[bytes]:
        position = self.find(number)
        if not position:
            return []
        start = self.follow(position)
        begin = start + 4
        count = self.unpack("I", start)
        return [self.data[begin + i * nbytes : begin + (i + 1) * nbytes] for i in range(count)]

    def text(self, number: int) -> str:
        return b"".join(self.vector(number, 1)).decode()

    def references(self, number: int) -> list[int]:
        position = self.find(number)
        if not position:
            return []
        start = self.follow(position)
        return [self.follow(start + 4 + 4 * i) for i in range(self.unpack("I", start))]

    def tables(self, number: int) -> list[Table]:
        return [Table(self.data, position) for position in self.references(number)]

    def texts(self, number: int) -> list[str]:
        found = []
        for position in self.references(number):
            length = self.unpack("I", position)
            found.append(self.data[position + 4 : position + 4 + length].decode())
        return found


class Type(NamedTuple):
    kind: int
    nullable: bool
    ptype: int
    names: list[str]
    children: list[Type]
    size: int


def read_type(table: Table) -> Type:
    kind = table.number(0, "B")
    found = table.table(1)
    ptype = size = 0
    names: list[str] = []
    children: list[Type] = []
    flag = {3: 1, 4: 2, 7: 2, 8: 1, 10: 2, 13: 3}.get(kind, 0)
    match kind:
        case 3:
            ptype = found.number(0, "B")
        case 7 | 12:
            names = found.texts(0)
            children = [read_type(child) for child in found.tables(1)]
        case 8 | 10:
            children = [read_type(found.table(0))]
            size = found.number(1, "I") if kind == 10 else 0
        case 9:
            children = [read_type(found.table(1))]
        case 13:
            children = [read_type(found.table(0)), read_type(found.table(1))]
        case _:
            pass
    nullable = kind not in (1, 9, 12) and bool(found.number(flag, "B"))
    return Type(kind, nullable, ptype, names, children, size)


class Message(NamedTuple):
    kind: int
    rows: int
    encodings: list[str]
    body: bytes


def read_message(header: bytes, body: bytes) -> Message:
    message = Table(header)
    assert message.number(0, "B") == 0
    kind = message.number(1, "B")
    assert message.number(3, "Q") == len(body)
    found = message.table(2)
    if kind == 1:
        return Message(kind, found.number(0, "I"), found.texts(1), body)
    return Message(kind, 0, [], body)


def read_stream(data: bytes) -> list[Message]:
    messages: list[Message] = []
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        position += 4
        header = data[position : position + length]
        position += length
        size = Table(header).number(3, "Q")
        messages.append(read_message(header, data[position : position + size]))
        position += size
    assert position == len(data)
    return messages


class Array(NamedTuple):
    encoding: str
    metadata: bytes
    buffers: list[bytes]
    children: list[Array]


def read_array(message: Message) -> Array:
    body = message.body
    (length,) = struct.unpack("<I", body[-4:])
    table = Table(body[-4 - length : -4])
    buffers: list[bytes] = []
    position = 0
    for entry in table.vector(1, 8):
        padding, _, compression, size = struct.unpack("<HBBI", entry)
        assert compression == 0
        position += padding
        buffers.append(body[position : position + size])
        position += size
    assert 0 <= len(body) - 4 - length - position < 64
    return _read_node(table.table(0), message.encodings, buffers)


def _read_node(node: Table, encodings: list[str], buffers: list[bytes]) -> Array:
    numbers = [struct.unpack("<H", item)[0] for item in node.vector(3, 2)]
    return Array(
        encodings[node.number(0, "H")],
        b"".join(node.vector(1, 1)),
        [buffers[number] for number in numbers],
        [_read_node(child, encodings, buffers) for child in node.tables(2)],
    )


def read_values(array: Array, dtype: Type, rows: int) -> list[Any]:
    """Return the values of an array that is not compressed. Extensions become their storage."""
    buffers, children = array.buffers, array.children
    match array.encoding:
        case "vortex.null":
            return [None] * rows
        case "vortex.ext":
            return read_values(children[0], dtype.children[0], rows)
        case "vortex.bool":
            skipped = _read_varints(array.metadata).get(1, 0)
            bits = [bool(buffers[0][n // 8] >> n % 8 & 1) for n in range(skipped, skipped + rows)]
            return _mask(bits, children, rows)
        case "vortex.primitive":
            kind = FORMATS[dtype.ptype]
            return _mask(list(struct.unpack(f"<{rows}{kind}", buffers[0])), children, rows)
        case "vortex.varbin":
            offset_type = dtype._replace(kind=3, ptype=_read_varints(array.metadata).get(1, 0))
            offsets = read_values(children[0], offset_type, rows + 1)
            values = [buffers[0][offsets[row] : offsets[row + 1]] for row in range(rows)]
            texts = [value.decode() for value in values] if dtype.kind == 5 else values
            return _mask(texts, children[1:], rows)
        case "vortex.varbinview":
            values = [_read_view(buffers, row) for row in range(rows)]
            texts = [value.decode() for value in values] if dtype.kind == 5 else values
            return _mask(texts, children, rows)
        case "vortex.struct":
            count = len(dtype.children)
            fields = [
                read_values(child, child_type, rows)
                for child, child_type in zip(children[-count:], dtype.children, strict=True)
            ]
            values = [dict(zip(dtype.names, row, strict=True)) for row in zip(*fields, strict=True)]
            return _mask(values, children[:-count], rows)
        case "vortex.list":
            parameters = _read_varints(array.metadata)
            elements = read_values(children[0], dtype.children[0], parameters.get(1, 0))
            offset_type = dtype._replace(kind=3, ptype=parameters.get(2, 0))
            offsets = read_values(children[1], offset_type, rows + 1)
            lists = [elements[offsets[row] : offsets[row + 1]] for row in range(rows)]
            return _mask(lists, children[2:], rows)
        case "vortex.fixed_size_list":
            size = dtype.size
            elements = read_values(children[0], dtype.children[0], rows * size)
            lists = [elements[row * size : (row + 1) * size] for row in range(rows)]
            return _mask(lists, children[1:], rows)
        case _:
            raise NotImplementedError(array.encoding)


def _mask(values: list[Any], validity: list[Array], rows: int) -> list[Any]:
    if not validity:
        return values
    is_valid = read_values(validity[0], Type(2, False, 0, [], [], 0), rows)
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]


def _read_view(buffers: list[bytes], row: int) -> bytes:
    view = buffers[-1][16 * row : 16 * row + 16]
    (length,) = struct.unpack_from("<I", view)
    if length <= 12:
        return view[4 : 4 + length]
    number, offset = struct.unpack_from("<II", view, 8)
    return buffers[number][offset : offset + length]


def _read_varints(metadata: bytes) -> dict[int, int]:
    """Return the fields of a protobuf message whose fields are all varints."""
    numbers: list[int] = []
    value = shift = 0
    for byte in metadata:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return {tag >> 3: number for tag, number in zip(numbers[::2], numbers[1::2], strict=True)}
