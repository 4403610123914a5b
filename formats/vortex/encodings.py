"""Rules for the nodes of an array: the types, buffers and children that each encoding demands.

An array stores neither the types nor the rows of its nodes. They follow from the dtype of the
stream, the row count of the message, and the parameters of each encoding, which are protobuf
messages. Nodes of encodings that have no rule here are left to the library, with their children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...errors import InvalidDataError
from .array_body import ArrayNode, BufferEntry
from .dtype import DType, PType, TypeKind

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64


def read_fields(data: bytes) -> dict[int, list[int | bytes]]:
    r"""Return the values of each field, in order: numbers, or bytes of strings and messages.

    Raises `ValueError` if the bytes are not a protobuf message.

    Examples
    --------
    >>> read_fields(b"\x08\x96\x01\x12\x02hi")
    {1: [150], 2: [b'hi']}
    """
    fields: dict[int, list[int | bytes]] = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, position = _read_varint(data, position)
        elif kind in (_FIXED_64, _FIXED_32):
            end = position + (8 if kind == _FIXED_64 else 4)
            value = int.from_bytes(_slice(data, position, end), "little")
            position = end
        elif kind == _BYTES:
            length, position = _read_varint(data, position)
            value = _slice(data, position, position + length)
            position += length
        else:
            raise ValueError(f"a field has the unknown type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _slice(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise ValueError("a field ends behind the message")
    return data[begin:end]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable size, and the position behind it."""
    value = shift = 0
    while position < len(data) and shift < _MAX_VARINT_BITS:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("a number does not end")


_BOOL = DType(TypeKind.BOOL)
_INTEGERS = range(PType.U8, PType.F16)


class NodeContent(NamedTuple):
    """The content that a node must have."""

    dtype: DType | None
    """Its type; None if it is unknown."""
    rows: int | None
    """The number of its rows; None if it is unknown."""
    is_elements: bool = False
    """Whether its rows are the elements of lists, whose number the row count does not bound."""


class NodePlace:
    """A node with its content and its buffers, for the rules."""

    def __init__(
        self,
        node: ArrayNode,
        content: NodeContent,
        encoding: str,
        path: str,
        buffers: Sequence[BufferEntry],
    ) -> None:
        self.node = node
        self.rows = content.rows
        self.dtype = content.dtype
        self._name = f"node {path} ({encoding})"
        self._buffers = buffers

    def fail(self, problem: str) -> InvalidDataError:
        """Return the error for a problem."""
        return InvalidDataError(f"{self._name} {problem}")

    def read_fields(self) -> dict[int, list[int | bytes]]:
        """Return the parameters, by their number."""
        try:
            return read_fields(self.node.metadata)
        except ValueError:
            raise self.fail("has malformed parameters: they are not a protobuf message") from None

    def read_numbers(self, *fields: int) -> tuple[int, ...]:
        """Return parameters that are numbers, 0 for an absent one."""
        found = self.read_fields()
        numbers: list[int] = []
        for field in fields:
            value = found.get(field, [0])[-1]
            if not isinstance(value, int):
                raise self.fail(f"has malformed parameters: field {field} is not a number")
            numbers.append(value)
        return tuple(numbers)

    def require_kind(self, *kinds: TypeKind) -> None:
        """Check the type."""
        if self.dtype is not None and self.dtype.kind not in kinds:
            raise self.fail(f"has the type {self.dtype}, which its encoding cannot have")

    def require_buffers(self, least: int, most: int | None = None) -> None:
        """Check the number of buffers."""
        count = len(self.node.buffers)
        most = least if most is None else most
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"has {count} buffers; expected {expected}")

    def require_size(self, index: int, nbytes: int, *, exact: bool = True) -> None:
        """Check the size of a buffer, unless it is compressed."""
        number = self.node.buffers[index]
        entry = self._buffers[number]
        if entry.is_compressed or (entry.length == nbytes if exact else entry.length >= nbytes):
            return
        least = "" if exact else "at least "
        raise self.fail(
            f"has {entry.length} bytes in buffer {number}; expected {least}{nbytes} for "
            f"{self.rows} rows"
        )

    def require_children(self, least: int, most: int | None = None) -> int:
        """Check the number of children, and return it."""
        count = len(self.node.children)
        most = least if most is None else most
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"has {count} children; expected {expected}")
        return count

    def add_validity(self, children: list[NodeContent]) -> list[NodeContent]:
        """Return these children, and the validity if there is one more."""
        count = self.require_children(len(children), len(children) + 1)
        if count == len(children):
            return children
        if self.dtype is not None and not self.dtype.nullable:
            raise self.fail(f"has a validity, but its type {self.dtype} is not nullable")
        return [*children, NodeContent(_BOOL, self.rows)]

    def integer(self, number: int, field: str) -> DType:
        """Return the type of integers."""
        if number not in _INTEGERS:
            raise self.fail(f"has the {field} {number}; expected 0 to {_INTEGERS[-1]}")
        return DType(TypeKind.PRIMITIVE, True, PType(number))

    def more_rows(self, count: int) -> int | None:
        """Return the number of rows and some more."""
        return None if self.rows is None else self.rows + count


_BLOCK_ROWS = 1024
"""The number of values that FastLanes packs at once."""
_MAX_DECIMAL_TYPE = 5
_BYTE_KINDS = (TypeKind.UTF8, TypeKind.BINARY)


Rule = Callable[[NodePlace], list[NodeContent]]
"""Checks a node, and returns the content that its children must have."""


def _check_null(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.NULL)
    place.require_buffers(0)
    place.require_children(0)
    return []


def _check_bool(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.BOOL)
    place.require_buffers(1)
    (offset,) = place.read_numbers(1)
    if offset >= 8:
        raise place.fail(f"has the offset {offset}; expected less than 8")
    if place.rows is not None:
        place.require_size(0, (offset + place.rows + 7) // 8, exact=False)
    return place.add_validity([])


def _check_byte_bool(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.BOOL)
    place.require_buffers(1)
    if place.rows is not None:
        place.require_size(0, place.rows)
    return place.add_validity([])


def _check_primitive(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(1)
    if place.rows is not None and place.dtype is not None and place.dtype.ptype is not None:
        place.require_size(0, place.rows * place.dtype.ptype.nbytes)
    return place.add_validity([])


def _check_decimal(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.DECIMAL)
    place.require_buffers(1)
    (values_type,) = place.read_numbers(1)
    if values_type > _MAX_DECIMAL_TYPE:
        raise place.fail(f"has the type of values {values_type}; expected at most 5")
    if place.rows is not None:
        place.require_size(0, place.rows << values_type)
    return place.add_validity([])


def _check_varbin(place: NodePlace) -> list[NodeContent]:
    place.require_kind(*_BYTE_KINDS)
    place.require_buffers(1)
    (ptype,) = place.read_numbers(1)
    offsets = place.integer(ptype, "type of offsets")
    return place.add_validity([NodeContent(offsets, place.more_rows(1))])


def _check_views(place: NodePlace) -> list[NodeContent]:
    place.require_kind(*_BYTE_KINDS)
    place.require_buffers(1, 1 << 16)
    if place.rows is not None:
        place.require_size(-1, 16 * place.rows)
    return place.add_validity([])


def _check_struct(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.STRUCT)
    place.require_buffers(0)
    if place.dtype is None:
        return []
    fields = [NodeContent(child, place.rows) for child in place.dtype.children]
    found = place.add_validity(fields)
    # The validity comes first.
    return [*found[len(fields) :], *fields]


def _element_type(place: NodePlace) -> DType | None:
    return None if place.dtype is None else place.dtype.children[0]


def _check_list(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.LIST)
    place.require_buffers(0)
    count, ptype = place.read_numbers(1, 2)
    offsets = place.integer(ptype, "type of offsets")
    elements = NodeContent(_element_type(place), count, is_elements=True)
    return place.add_validity([elements, NodeContent(offsets, place.more_rows(1))])


def _check_list_view(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.LIST)
    place.require_buffers(0)
    count, offset_type, size_type = place.read_numbers(1, 2, 3)
    offsets = place.integer(offset_type, "type of offsets")
    sizes = place.integer(size_type, "type of sizes")
    elements = NodeContent(_element_type(place), count, is_elements=True)
    places = [NodeContent(offsets, place.rows), NodeContent(sizes, place.rows)]
    return place.add_validity([elements, *places])


def _check_fixed_size_list(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.FIXED_SIZE_LIST)
    place.require_buffers(0)
    rows = None
    if place.rows is not None and place.dtype is not None:
        rows = place.rows * place.dtype.size
    return place.add_validity([NodeContent(_element_type(place), rows, is_elements=True)])


def _check_extension(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.EXTENSION)
    place.require_buffers(0)
    place.require_children(1)
    return [NodeContent(_element_type(place), place.rows)]


def _check_constant(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(1)
    return []


def _check_sequence(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(0)
    place.require_children(0)
    place.read_fields()
    return []


def _check_chunked(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(0)
    count = place.require_children(1, 1 << 32)
    offsets = NodeContent(DType(TypeKind.PRIMITIVE, ptype=PType.U64), count)
    return [offsets, *[NodeContent(place.dtype, None)] * (count - 1)]


def _check_dictionary(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(0)
    place.require_children(2)
    count, ptype = place.read_numbers(1, 2)
    if place.rows and not count and not (place.dtype is None or place.dtype.nullable):
        raise place.fail(f"has no values for {place.rows} rows")
    codes = place.integer(ptype, "type of codes")
    return [NodeContent(codes, place.rows), NodeContent(place.dtype, count)]


def _check_runs(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(0)
    place.require_children(2)
    ptype, runs, _ = place.read_numbers(1, 2, 3)
    if place.rows and not runs:
        raise place.fail(f"has no runs for {place.rows} rows")
    ends = place.integer(ptype, "type of ends")
    return [NodeContent(ends, runs), NodeContent(place.dtype, runs)]


def _check_one_integer(place: NodePlace) -> list[NodeContent]:
    """Check an encoding of integers as other integers of the same size."""
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(0)
    place.require_children(1)
    return [NodeContent(None, place.rows)]


def _check_bit_packed(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(1)
    width, offset = place.read_numbers(1, 2)
    bits = 64
    if place.dtype is not None and place.dtype.ptype is not None:
        bits = 8 * place.dtype.ptype.nbytes
    if width > bits or offset >= _BLOCK_ROWS:
        raise place.fail(
            f"has the bit width {width} and the offset {offset}; expected at most {bits}, and less "
            f"than {_BLOCK_ROWS}"
        )
    if place.rows is not None:
        blocks = -(-(place.rows + offset) // _BLOCK_ROWS)
        place.require_size(0, blocks * width * _BLOCK_ROWS // 8)
    return place.add_validity(_list_patches(place, 3))


def _list_patches(place: NodePlace, field: int) -> list[NodeContent]:
    """Return the children with the values that an encoding cannot hold, if there are such."""
    found = place.read_fields().get(field)
    if found is None:
        return []
    (metadata,) = found[-1:]
    if not isinstance(metadata, bytes):
        raise place.fail(f"has malformed parameters: field {field} is not a message")
    try:
        patches = read_fields(metadata)
    except ValueError:
        raise place.fail("has malformed parameters of its patches") from None
    numbers = {key: value[-1] for key, value in patches.items()}
    count, ptype, chunks = numbers.get(1, 0), numbers.get(3, 0), numbers.get(4)
    if not isinstance(count, int) or not isinstance(ptype, int) or isinstance(chunks, bytes):
        raise place.fail("has malformed parameters of its patches")
    if place.rows is not None and count > place.rows:
        raise place.fail(f"has {count} patches for {place.rows} rows")
    indices = NodeContent(place.integer(ptype, "type of indices"), count)
    contents = [indices, NodeContent(None, count)]
    return contents if chunks is None else [*contents, NodeContent(None, chunks)]


def _check_alp(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(0)
    contents = [NodeContent(None, place.rows), *_list_patches(place, 3)]
    place.require_children(len(contents))
    return contents


def _check_alp_rd(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.PRIMITIVE)
    place.require_buffers(0)
    parts = [NodeContent(None, place.rows)] * 2
    contents = [*parts, *_list_patches(place, 5)]
    place.require_children(len(contents))
    return contents


def _check_sparse(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(1)
    contents = _list_patches(place, 1)
    if not contents:
        raise place.fail("has no parameters of its patches")
    place.require_children(len(contents))
    return [contents[0], NodeContent(place.dtype, contents[1].rows), *contents[2:]]


def _check_fsst(place: NodePlace) -> list[NodeContent]:
    place.require_kind(*_BYTE_KINDS)
    place.require_buffers(2, 3)
    length_type, offset_type = place.read_numbers(1, 2)
    lengths = NodeContent(place.integer(length_type, "type of lengths"), place.rows)
    if len(place.node.buffers) == 2:  # before the offsets had a child of their own
        return []
    offsets = place.integer(offset_type, "type of offsets")
    return place.add_validity([lengths, NodeContent(offsets, place.more_rows(1))])


def _check_on_pair(place: NodePlace) -> list[NodeContent]:
    place.require_kind(*_BYTE_KINDS)
    place.require_buffers(1)
    length_type, size, codes, dictionary_type, code_type, offset_type = place.read_numbers(
        1, 3, 4, 5, 6, 7
    )
    return place.add_validity(
        [
            NodeContent(place.integer(dictionary_type, "type of dictionary offsets"), size + 1),
            NodeContent(place.integer(code_type, "type of codes"), codes),
            NodeContent(place.integer(offset_type, "type of offsets"), place.more_rows(1)),
            NodeContent(place.integer(length_type, "type of lengths"), place.rows),
        ]
    )


def _check_masked(place: NodePlace) -> list[NodeContent]:
    place.require_buffers(0)
    return place.add_validity([NodeContent(place.dtype, place.rows)])


def _check_date_time_parts(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.EXTENSION)
    place.require_buffers(0)
    place.require_children(3)
    names = ("type of days", "type of seconds", "type of fractions")
    types = place.read_numbers(1, 2, 3)
    return [
        NodeContent(place.integer(number, name), place.rows)
        for number, name in zip(types, names, strict=True)
    ]


def _check_decimal_parts(place: NodePlace) -> list[NodeContent]:
    place.require_kind(TypeKind.DECIMAL)
    place.require_buffers(0)
    place.require_children(1)
    (ptype,) = place.read_numbers(1)
    return [NodeContent(place.integer(ptype, "type of values"), place.rows)]


RULES: dict[str, Rule] = {
    "fastlanes.bitpacked": _check_bit_packed,
    "fastlanes.for": _check_one_integer,
    "vortex.alp": _check_alp,
    "vortex.alprd": _check_alp_rd,
    "vortex.bool": _check_bool,
    "vortex.bytebool": _check_byte_bool,
    "vortex.chunked": _check_chunked,
    "vortex.constant": _check_constant,
    "vortex.datetimeparts": _check_date_time_parts,
    "vortex.decimal": _check_decimal,
    "vortex.decimal_byte_parts": _check_decimal_parts,
    "vortex.dict": _check_dictionary,
    "vortex.ext": _check_extension,
    "vortex.fixed_size_list": _check_fixed_size_list,
    "vortex.fsst": _check_fsst,
    "vortex.list": _check_list,
    "vortex.listview": _check_list_view,
    "vortex.masked": _check_masked,
    "vortex.null": _check_null,
    "vortex.onpair": _check_on_pair,
    "vortex.primitive": _check_primitive,
    "vortex.runend": _check_runs,
    "vortex.sequence": _check_sequence,
    "vortex.sparse": _check_sparse,
    "vortex.struct": _check_struct,
    "vortex.varbin": _check_varbin,
    "vortex.varbinview": _check_views,
    "vortex.zigzag": _check_one_integer,
}
"""The rules by the identifier of the encoding. An identifier never changes its meaning."""


def walk_contents(
    root: ArrayNode,
    content: NodeContent,
    encodings: Sequence[str],
    buffers: Sequence[BufferEntry],
) -> Iterator[NodeContent]:
    """Check the nodes of an array, and yield the content of each whose type and rows are known.

    Raises `InvalidDataError` if a node does not fit its encoding. The error names the node.
    """
    stack = [(root, content, "root")]
    while stack:
        node, content, path = stack.pop()
        yield content
        encoding = encodings[node.encoding]
        rule = RULES.get(encoding)
        if rule is None:
            continue
        contents = rule(NodePlace(node, content, encoding, path, buffers))
        pairs = list(enumerate(zip(node.children, contents, strict=False)))
        for index, (child, expected) in reversed(pairs):
            stack.append((child, expected, f"{path}.{index}"))
