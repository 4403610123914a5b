"""The footer of Parquet files ("File Metadata"): its schema, read and replaced, and its row groups.

::

    PAR1 | column chunks … | FileMetaData | u32 size | PAR1

`Footer` decodes only the schema, which is the first part of the footer. The row groups may take
many megabytes.

pyarrow throws an exception that nothing catches for a column with encrypted metadata, for a
minimum or maximum of the wrong size, and for malformed SizeStatistics. `find_malformed_statistics`
searches the row groups for them before pyarrow gets them, and decodes nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import InvalidDataError, LimitError
from .schema import Node, Physical, Repetition, build_tree, mark_misplaced
from .thrift import MAX_DEPTH, CompactReader, Struct, ThriftList, Type, encode_list

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""The size of the fields after the footer: its size and the magic."""
_SIZE = struct.Struct("<I")
_SCHEMA = 2


def read_footer_size(tail: bytes, file_size: int) -> int:
    """Return the size of the footer in bytes; `file_size` is in bytes, too.

    Raises `InvalidDataError` if the file does not end as a Parquet file, or the footer is larger
    than the file.
    """
    if len(tail) != TAIL_BYTES or tail[4:] != MAGIC:
        raise InvalidDataError(f"the file ends with {tail[4:]!r}; a Parquet file ends with 'PAR1'")
    (size,) = _SIZE.unpack_from(tail)
    if size + TAIL_BYTES + len(MAGIC) > file_size:
        raise InvalidDataError(f"the footer has {size} bytes, but the file has only {file_size}")
    return size


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer with a decoded schema."""

    data: bytes
    """The bytes of FileMetaData."""
    elements: tuple[Struct, ...]
    """The SchemaElements in the order of the file: depth first."""
    root: Node
    """The same elements as a tree. An annotation that a column must not have is a mark."""
    span: tuple[int, int]
    """The offsets in `data` at which the list of SchemaElements begins and ends."""

    @classmethod
    def parse(cls, data: bytes) -> Footer:
        """Read the schema of a footer.

        Raises `InvalidDataError` if the footer is malformed, with the place, and `LimitError` if it
        is nested too deeply or has too many values.
        """
        reader = CompactReader(data)
        for number, kind in reader.fields():
            if number != _SCHEMA:
                reader.read_value(kind, 1)
                continue
            start = reader.position
            if kind is not Type.LIST:
                raise InvalidDataError("the schema is not a list")
            schema: ThriftList = reader.read_value(kind, 1).content
            if schema.element is not Type.STRUCT:
                raise InvalidDataError("the schema is not a list of elements")
            elements = tuple(schema.items)
            root = build_tree(elements)
            mark_misplaced(root)
            return cls(data, elements, root, (start, reader.position))
        raise InvalidDataError("the footer has no schema")

    def with_elements(self, elements: Sequence[Struct]) -> bytes:
        """Return the bytes of FileMetaData with another schema. Everything else is unchanged."""
        schema = encode_list(ThriftList(Type.STRUCT, list[Any](elements)))
        start, end = self.span
        return self.data[:start] + schema + self.data[end:]


def wrap_footer(data: bytes) -> bytes:
    """Return a file that has no data but a footer. pyarrow reads metadata from it."""
    return MAGIC + data + _SIZE.pack(len(data)) + MAGIC


_ROW_GROUPS, _ENCRYPTION = 4, 8
_COLUMNS = 1
_METADATA, _CRYPTO_METADATA = 3, 8
_STATISTICS, _SIZE_STATISTICS = 12, 16
_BYTE_COUNT, _REPETITION_HISTOGRAM, _DEFINITION_HISTOGRAM = 1, 2, 3
"""The fields of SizeStatistics."""
_BOUNDS = frozenset((1, 2, 5, 6))
"""The maximum and the minimum in Statistics, in two forms each."""
_WIDTHS = {
    Physical.INT32: 4,
    Physical.INT64: 8,
    Physical.INT96: 12,
    Physical.FLOAT: 4,
    Physical.DOUBLE: 8,
    Physical.BOOLEAN: 1,
}
_SIZES = {int(Type.I8): 1, int(Type.DOUBLE): 8, int(Type.UUID): 16}
_STRUCT, _LIST, _BINARY = int(Type.STRUCT), int(Type.LIST), int(Type.BINARY)


def find_malformed_statistics(data: bytes, root: Node) -> frozenset[int]:
    """Return the columns with statistics of the wrong size, by the index of their column chunk.

    Raises `InvalidDataError` if the footer is malformed, a row group does not have the columns of
    the schema, SizeStatistics do not fit a column, or columns are encrypted, and `LimitError` if
    the footer is nested too deeply.
    """
    scanner = _Scanner(data, _list_leaves(root))
    try:
        scanner.scan_footer()
    except IndexError:
        raise InvalidDataError("the footer ends inside a value") from None
    return frozenset(scanner.malformed)


class _Leaf(NamedTuple):
    """A column, as its statistics must describe it."""

    path: str
    width: int
    """The size of a minimum in bytes; 0 if it may have any."""
    repetition_levels: int
    definition_levels: int
    has_bytes: bool
    """Whether values are byte arrays of any length."""


def _list_leaves(root: Node) -> list[_Leaf]:
    leaves: list[_Leaf] = []
    stack = [(root, 1, 1)]
    while stack:
        node, repetitions, definitions = stack.pop()
        if node is not root:
            repetitions += node.is_repeated
            definitions += node.repetition is not Repetition.REQUIRED
        if node.physical is not None:
            width = node.length or _WIDTHS.get(node.physical, 0)
            has_bytes = node.physical is Physical.BYTE_ARRAY
            leaves.append(_Leaf(node.path, width, repetitions, definitions, has_bytes))
        stack.extend((child, repetitions, definitions) for child in reversed(node.children))
    return leaves


class _Scanner:
    """Walks through a footer. All methods take an offset, and return that of the next value."""

    def __init__(self, data: bytes, leaves: Sequence[_Leaf]) -> None:
        self.data = data
        self.leaves = leaves
        self.malformed: set[int] = set()
        """The columns with malformed statistics."""

    def scan_footer(self) -> None:
        """Scan all row groups."""
        at = number = 0
        while True:
            at, number, kind = self._read_header(at, number)
            if not kind:
                return
            if number == _ENCRYPTION:
                raise _encrypted()
            if number == _ROW_GROUPS and kind == _LIST:
                at, count = self._read_structs(at)
                for group in range(count):
                    at = self._scan_row_group(at, group)
            else:
                at = self._skip(at, kind, 1)

    def _scan_row_group(self, at: int, group: int) -> int:
        number = found = 0
        while True:
            at, number, kind = self._read_header(at, number)
            if not kind:
                break
            if number == _COLUMNS and kind == _LIST:
                at, found = self._read_structs(at)
                if found != len(self.leaves):
                    break
                for column in range(found):
                    at = self._scan_chunk(at, column)
            else:
                at = self._skip(at, kind, 2)
        if found != len(self.leaves):
            raise InvalidDataError(
                f"row group {group} has {found} columns, but the schema has {len(self.leaves)}"
            )
        return at

    def _scan_chunk(self, at: int, column: int) -> int:
        number = 0
        while True:
            at, number, kind = self._read_header(at, number)
            if not kind:
                return at
            if number == _CRYPTO_METADATA:
                raise _encrypted()
            if number == _METADATA and kind == _STRUCT:
                at = self._scan_metadata(at, column)
            else:
                at = self._skip(at, kind, 4)

    def _scan_metadata(self, at: int, column: int) -> int:
        data = self.data
        number = 0
        while True:
            header = data[at]
            kind = header & 15
            if header > 15 and kind:
                number += header >> 4
                at += 1
            else:
                at, number, kind = self._read_header(at, number)
            if 4 <= kind <= 6:
                while data[at] > 127:
                    at += 1
                at += 1
            elif not kind:
                return at
            elif number == _STATISTICS and kind == _STRUCT:
                at = self._scan_statistics(at, column)
            elif number == _SIZE_STATISTICS and kind == _STRUCT:
                at = self._scan_size_statistics(at, self.leaves[column])
            else:
                at = self._skip(at, kind, 5)

    def _scan_statistics(self, at: int, column: int) -> int:
        width = self.leaves[column].width
        number = 0
        while True:
            at, number, kind = self._read_header(at, number)
            if not kind:
                return at
            if kind == _BINARY and number in _BOUNDS:
                at, size = self._read_size(at)
                at += size
                if width and size != width:
                    self.malformed.add(column)
            else:
                at = self._skip(at, kind, 6)

    def _scan_size_statistics(self, at: int, leaf: _Leaf) -> int:
        number = 0
        while True:
            at, number, kind = self._read_header(at, number)
            if not kind:
                return at
            if number in (_REPETITION_HISTOGRAM, _DEFINITION_HISTOGRAM) and kind == _LIST:
                is_repetition = number == _REPETITION_HISTOGRAM
                levels = leaf.repetition_levels if is_repetition else leaf.definition_levels
                _, _, count = self._read_list(at)
                if count not in (0, levels):
                    raise InvalidDataError(
                        f"the size statistics of the column {leaf.path!r} have a histogram of "
                        f"{count} levels; the column has {levels}"
                    )
            elif number == _BYTE_COUNT and not leaf.has_bytes:
                raise InvalidDataError(
                    f"the size statistics of the column {leaf.path!r} count the bytes of byte "
                    "arrays; its values have a fixed size"
                )
            at = self._skip(at, kind, 6)

    def _skip(self, at: int, kind: int, depth: int) -> int:
        data = self.data
        if 4 <= kind <= 6:
            while data[at] > 127:
                at += 1
            return at + 1
        if kind == _BINARY:
            at, size = self._read_size(at)
            return at + size
        if kind <= 2:
            return at
        if depth > MAX_DEPTH:
            raise LimitError(f"the footer is nested more than {MAX_DEPTH} levels deep")
        if kind == _STRUCT:
            number = 0
            while True:
                at, number, kind = self._read_header(at, number)
                if not kind:
                    return at
                at = self._skip(at, kind, depth + 1)
        if kind in (Type.LIST, Type.SET):
            at, element, count = self._read_list(at)
            if element == _BINARY:
                for _ in range(count):
                    at, size = self._read_size(at)
                    at += size
                return at
            if element <= 3:
                return at + count
            for _ in range(count):
                at = self._skip(at, element, depth + 1)
            return at
        if kind == Type.MAP:
            return self._skip_map(at, depth)
        if kind not in _SIZES:
            raise InvalidDataError(f"the footer has a value of type {kind} at byte {at}")
        return at + _SIZES[kind]

    def _skip_map(self, at: int, depth: int) -> int:
        at, count = self._read_size(at)
        if not count:
            return at
        kinds = (self.data[at] >> 4, self.data[at] & 15)
        at += 1
        for _ in range(count):
            for kind in kinds:
                at = at + 1 if kind <= 2 else self._skip(at, kind, depth + 1)
        return at

    def _read_header(self, at: int, number: int) -> tuple[int, int, int]:
        """Return the offset after the header of a field, its number and its type."""
        header = self.data[at]
        at += 1
        kind = header & 15
        if header > 15 and not kind:
            raise InvalidDataError(f"the footer has a field of type {kind} at byte {at - 1}")
        if header > 15:
            return at, number + (header >> 4), kind
        if kind:
            at, encoded = self._read_size(at, limit=1 << 16)
            number = (encoded >> 1) ^ -(encoded & 1)
        return at, number, kind

    def _read_structs(self, at: int) -> tuple[int, int]:
        """Return the offset of the first element of a list of structs, and their number."""
        start = at
        at, element, count = self._read_list(at)
        if count and element != _STRUCT:
            raise InvalidDataError(f"the footer has a list of type {element} at byte {start}")
        return at, count

    def _read_list(self, at: int) -> tuple[int, int, int]:
        header = self.data[at]
        at += 1
        count = header >> 4
        if count == 15:
            at, count = self._read_size(at)
        kind = header & 15
        return at, kind, count

    def _read_size(self, at: int, limit: int = 0) -> tuple[int, int]:
        """Return the offset after an unsigned integer, and the integer: at most what is left."""
        data = self.data
        value = data[at]
        start = at
        at += 1
        if value > 127:
            value &= 127
            shift = 7
            while data[at] > 127 and shift < 70:
                value |= (data[at] & 127) << shift
                shift += 7
                at += 1
            value |= data[at] << shift
            at += 1
        if value > (limit or len(data) - at):
            raise InvalidDataError(f"the footer has a size of {value} at byte {start}")
        return at, value


def _encrypted() -> InvalidDataError:
    return InvalidDataError("it has encrypted columns, which are not supported")
