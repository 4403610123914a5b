"""Checks of Vortex array messages before anything decodes them.

The checks compare every count, length, alignment and reference with the header, the dtype, the body
and the limits. Their time is proportional to the metadata: they read no value of a buffer.

An array stores neither the types nor the rows of its nodes. They follow from the dtype of the
stream, the row count of the message, and the parameters of each encoding, which are protobuf
messages. Nodes of encodings that have no rule here are left to the library, with their children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError, ProtocolError
from ..flight_data import iter_protobuf_fields
from .array_body import ArrayBody, ArrayNode, BufferEntry, LazyBytes, read_array_body
from .dtype import DType, PType, TypeKind
from .message import DEFAULT_LIMITS, MessageHeader, MessageKind, VortexLimits


class CheckedArray(NamedTuple):
    """An array message that has passed the checks."""

    body: ArrayBody
    """Its nodes and buffers."""
    rows: int
    """The number of rows."""
    buffer_bytes: int
    """The size of its buffers in the body, in bytes."""
    has_compressed_buffers: bool
    """Whether a buffer is compressed with LZ4."""
    declared_bytes: int
    """The smallest size of the decoded rows in Arrow, in bytes."""


def check_array(
    header: MessageHeader, body: Any, dtype: DType, limits: VortexLimits = DEFAULT_LIMITS
) -> CheckedArray:
    """Check an array message.

    Raises `InvalidDataError` or `LimitError`, which name the field, and the node or the buffer.
    """
    check_body_size(header, body)
    if header.kind is not MessageKind.ARRAY:
        raise InvalidDataError(f"the message is a {header.kind.name}; expected an ARRAY")
    nbytes = (header.row_count * dtype.count_row_bits() + 7) // 8
    if nbytes > limits.decoded_bytes:
        raise LimitError(
            f"the field row_count of the header is {header.row_count}; the rows of {dtype} have at "
            f"least {nbytes} bytes, and the limit is {limits.decoded_bytes}"
        )
    found = read_array_body(body, len(header.encodings), limits)
    nbytes += _check_nodes(header, found, dtype, limits)
    return CheckedArray(
        found,
        header.row_count,
        found.table.buffer_bytes,
        any(entry.is_compressed for entry in found.table.buffers),
        nbytes,
    )


def _check_nodes(header: MessageHeader, body: ArrayBody, dtype: DType, limits: VortexLimits) -> int:
    """Check all nodes; return the smallest size of the elements of lists in Arrow, in bytes."""
    bits = 0
    content = NodeContent(dtype, header.row_count)
    table = body.table
    for found in _walk_contents(table.root, content, header.encodings, table.buffers):
        if found.is_elements and found.rows is not None and found.dtype is not None:
            bits += found.rows * found.dtype.count_row_bits()
        if bits > 8 * limits.decoded_bytes:
            raise LimitError(
                f"the lists of the array have at least {bits // 8} bytes of elements; the limit is "
                f"{limits.decoded_bytes}"
            )
    return bits // 8


def check_body_size(header: MessageHeader, body: Any) -> None:
    """Compare the size of a body with that in the header."""
    size = body.nbytes if isinstance(body, LazyBytes) else memoryview(body).nbytes
    if size != header.body_size:
        raise InvalidDataError(
            f"the field body_size of the header is {header.body_size}; the body has {size} bytes"
        )


def _walk_contents(
    root: ArrayNode,
    content: NodeContent,
    encodings: Sequence[str],
    buffers: Sequence[BufferEntry],
) -> Iterator[NodeContent]:
    """Check the nodes of an array, and yield the content of each whose type and rows are known."""
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


def read_parameters(metadata: bytes) -> dict[int, int | bytes]:
    r"""Return the parameters of an encoding by their field numbers.

    A parameter is a number, or the bytes of a string or message. Raises `ProtocolError` if the
    bytes are not a protobuf message.

    Examples
    --------
    >>> read_parameters(b"\x08\x96\x01\x12\x02hi")
    {1: 150, 2: b'hi'}
    """
    return {
        number: value if isinstance(value, int) else bytes(value)
        for number, value in iter_protobuf_fields(metadata)
    }


_BOOL = DType(TypeKind.BOOL)
_INTEGERS = range(PType.U8, PType.F16)


class NodeContent(NamedTuple):
    """Expected content of an array node."""

    dtype: DType | None
    """Its type; None if it is unknown."""
    rows: int | None
    """The number of its rows; None if it is unknown."""
    is_elements: bool = False
    """Whether its rows are the elements of lists, whose number the row count does not bound."""


class NodePlace:
    """A node with its expected content, as a rule checks it."""

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

    def read_parameters(self) -> dict[int, int | bytes]:
        """Return the parameters by their field numbers."""
        try:
            return read_parameters(self.node.metadata)
        except ProtocolError:
            raise self.fail("has malformed parameters: they are not a protobuf message") from None

    def read_numbers(self, *fields: int) -> tuple[int, ...]:
        """Return parameters that are numbers, 0 for an absent one."""
        found = self.read_parameters()
        numbers: list[int] = []
        for field in fields:
            value = found.get(field, 0)
            if not isinstance(value, int):
                raise self.fail(f"has malformed parameters: field {field} is not a number")
            numbers.append(value)
        return tuple(numbers)

    def require(
        self,
        *kinds: TypeKind,
        buffers: int = 0,
        max_buffers: int | None = None,
        children: int | None = None,
    ) -> None:
        """Check the type, unless all are allowed, and the numbers of buffers and children."""
        if kinds and self.dtype is not None and self.dtype.kind not in kinds:
            raise self.fail(f"has the type {self.dtype}, which its encoding cannot have")
        self._require_count("buffers", len(self.node.buffers), buffers, max_buffers)
        if children is not None:
            self.require_children(children)

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
        return self._require_count("children", len(self.node.children), least, most)

    def _require_count(self, name: str, count: int, least: int, most: int | None) -> int:
        most = least if most is None else most
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"has {count} {name}; expected {expected}")
        return count

    def add_validity(self, children: list[NodeContent]) -> list[NodeContent]:
        """Return these children, with the validity if the node has one more child."""
        count = self.require_children(len(children), len(children) + 1)
        if count == len(children):
            return children
        if self.dtype is not None and not self.dtype.nullable:
            raise self.fail(f"has a validity, but its type {self.dtype} is not nullable")
        return [*children, NodeContent(_BOOL, self.rows)]

    def integer(self, number: int, field: str) -> DType:
        """Return the type of integers with the number of a `PType`."""
        if number not in _INTEGERS:
            raise self.fail(f"has the {field} {number}; expected 0 to {_INTEGERS[-1]}")
        return DType(TypeKind.PRIMITIVE, True, PType(number))

    def more_rows(self, count: int) -> int | None:
        """Return the number of rows plus `count`; None if it is unknown."""
        return None if self.rows is None else self.rows + count


_BLOCK_ROWS = 1024
"""The number of values that FastLanes packs at once."""
_MAX_DECIMAL_TYPE = 5
_BYTE_KINDS = (TypeKind.UTF8, TypeKind.BINARY)


Rule = Callable[[NodePlace], list[NodeContent]]
"""Checks a node, and returns the content that its children must have."""


def _check_null(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.NULL, children=0)
    return []


def _check_bool(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.BOOL, buffers=1)
    (offset,) = place.read_numbers(1)
    if offset >= 8:
        raise place.fail(f"has the offset {offset}; expected less than 8")
    if place.rows is not None:
        place.require_size(0, (offset + place.rows + 7) // 8, exact=False)
    return place.add_validity([])


def _check_byte_bool(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.BOOL, buffers=1)
    if place.rows is not None:
        place.require_size(0, place.rows)
    return place.add_validity([])


def _check_primitive(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.PRIMITIVE, buffers=1)
    if place.rows is not None and place.dtype is not None and place.dtype.ptype is not None:
        place.require_size(0, place.rows * place.dtype.ptype.nbytes)
    return place.add_validity([])


def _check_decimal(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.DECIMAL, buffers=1)
    (values_type,) = place.read_numbers(1)
    if values_type > _MAX_DECIMAL_TYPE:
        raise place.fail(f"has the type of values {values_type}; expected at most 5")
    if place.rows is not None:
        place.require_size(0, place.rows << values_type)
    return place.add_validity([])


def _check_varbin(place: NodePlace) -> list[NodeContent]:
    place.require(*_BYTE_KINDS, buffers=1)
    (ptype,) = place.read_numbers(1)
    offsets = place.integer(ptype, "type of offsets")
    return place.add_validity([NodeContent(offsets, place.more_rows(1))])


def _check_views(place: NodePlace) -> list[NodeContent]:
    place.require(*_BYTE_KINDS, buffers=1, max_buffers=1 << 16)
    if place.rows is not None:
        place.require_size(-1, 16 * place.rows)
    return place.add_validity([])


def _check_struct(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.STRUCT)
    if place.dtype is None:
        return []
    fields = [NodeContent(child, place.rows) for child in place.dtype.children]
    found = place.add_validity(fields)
    # The validity comes first.
    return [*found[len(fields) :], *fields]


def _element_type(place: NodePlace) -> DType | None:
    return None if place.dtype is None else place.dtype.children[0]


def _check_list(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.LIST)
    count, ptype = place.read_numbers(1, 2)
    offsets = place.integer(ptype, "type of offsets")
    elements = NodeContent(_element_type(place), count, is_elements=True)
    return place.add_validity([elements, NodeContent(offsets, place.more_rows(1))])


def _check_list_view(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.LIST)
    count, offset_type, size_type = place.read_numbers(1, 2, 3)
    offsets = place.integer(offset_type, "type of offsets")
    sizes = place.integer(size_type, "type of sizes")
    elements = NodeContent(_element_type(place), count, is_elements=True)
    places = [NodeContent(offsets, place.rows), NodeContent(sizes, place.rows)]
    return place.add_validity([elements, *places])


def _check_fixed_size_list(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.FIXED_SIZE_LIST)
    rows = None
    if place.rows is not None and place.dtype is not None:
        rows = place.rows * place.dtype.size
    return place.add_validity([NodeContent(_element_type(place), rows, is_elements=True)])


def _check_extension(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.EXTENSION, children=1)
    return [NodeContent(_element_type(place), place.rows)]


def _check_constant(place: NodePlace) -> list[NodeContent]:
    place.require(buffers=1)
    return []


def _check_sequence(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.PRIMITIVE, children=0)
    place.read_parameters()
    return []


def _check_chunked(place: NodePlace) -> list[NodeContent]:
    place.require()
    count = place.require_children(1, 1 << 32)
    offsets = NodeContent(DType(TypeKind.PRIMITIVE, ptype=PType.U64), count)
    return [offsets, *[NodeContent(place.dtype, None)] * (count - 1)]


def _check_dictionary(place: NodePlace) -> list[NodeContent]:
    place.require(children=2)
    count, ptype = place.read_numbers(1, 2)
    if place.rows and not count and not (place.dtype is None or place.dtype.nullable):
        raise place.fail(f"has no values for {place.rows} rows")
    codes = place.integer(ptype, "type of codes")
    return [NodeContent(codes, place.rows), NodeContent(place.dtype, count)]


def _check_runs(place: NodePlace) -> list[NodeContent]:
    place.require(children=2)
    ptype, runs, _ = place.read_numbers(1, 2, 3)
    if place.rows and not runs:
        raise place.fail(f"has no runs for {place.rows} rows")
    ends = place.integer(ptype, "type of ends")
    return [NodeContent(ends, runs), NodeContent(place.dtype, runs)]


def _check_one_integer(place: NodePlace) -> list[NodeContent]:
    """Check an encoding of integers as other integers of the same size."""
    place.require(TypeKind.PRIMITIVE, children=1)
    return [NodeContent(None, place.rows)]


def _check_bit_packed(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.PRIMITIVE, buffers=1)
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
    """Return the children with the values that an encoding cannot hold, if there are any."""
    metadata = place.read_parameters().get(field)
    if metadata is None:
        return []
    if not isinstance(metadata, bytes):
        raise place.fail(f"has malformed parameters: field {field} is not a message")
    try:
        numbers = read_parameters(metadata)
    except ProtocolError:
        raise place.fail("has malformed parameters of its patches") from None
    count, ptype, chunks = numbers.get(1, 0), numbers.get(3, 0), numbers.get(4)
    if not isinstance(count, int) or not isinstance(ptype, int) or isinstance(chunks, bytes):
        raise place.fail("has malformed parameters of its patches")
    if place.rows is not None and count > place.rows:
        raise place.fail(f"has {count} patches for {place.rows} rows")
    indices = NodeContent(place.integer(ptype, "type of indices"), count)
    contents = [indices, NodeContent(None, count)]
    return contents if chunks is None else [*contents, NodeContent(None, chunks)]


def _check_alp(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.PRIMITIVE)
    contents = [NodeContent(None, place.rows), *_list_patches(place, 3)]
    place.require_children(len(contents))
    return contents


def _check_alp_rd(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.PRIMITIVE)
    parts = [NodeContent(None, place.rows)] * 2
    contents = [*parts, *_list_patches(place, 5)]
    place.require_children(len(contents))
    return contents


def _check_sparse(place: NodePlace) -> list[NodeContent]:
    place.require(buffers=1)
    contents = _list_patches(place, 1)
    if not contents:
        raise place.fail("has no parameters of its patches")
    place.require_children(len(contents))
    return [contents[0], NodeContent(place.dtype, contents[1].rows), *contents[2:]]


def _check_fsst(place: NodePlace) -> list[NodeContent]:
    place.require(*_BYTE_KINDS, buffers=2, max_buffers=3)
    length_type, offset_type = place.read_numbers(1, 2)
    lengths = NodeContent(place.integer(length_type, "type of lengths"), place.rows)
    if len(place.node.buffers) == 2:  # before the offsets had a child of their own
        return []
    offsets = place.integer(offset_type, "type of offsets")
    return place.add_validity([lengths, NodeContent(offsets, place.more_rows(1))])


def _check_on_pair(place: NodePlace) -> list[NodeContent]:
    place.require(*_BYTE_KINDS, buffers=1)
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
    place.require()
    return place.add_validity([NodeContent(place.dtype, place.rows)])


def _check_date_time_parts(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.EXTENSION, children=3)
    names = ("type of days", "type of seconds", "type of fractions")
    types = place.read_numbers(1, 2, 3)
    return [
        NodeContent(place.integer(number, name), place.rows)
        for number, name in zip(types, names, strict=True)
    ]


def _check_decimal_parts(place: NodePlace) -> list[NodeContent]:
    place.require(TypeKind.DECIMAL, children=1)
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
