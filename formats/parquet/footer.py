"""The footer of Parquet files ("File Metadata"): its schema, read and replaced.

::

    PAR1 | column chunks … | FileMetaData | u32 size | PAR1

Only the schema is decoded, which is the first part of the footer. The row groups, which may take
many megabytes, stay unread.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidDataError
from .annotations import mark_misplaced
from .schema import Node, build_tree
from .thrift import CompactReader, Struct, ThriftList, Type, encode_list

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""The size of the fields after the footer: its size and the magic."""
_SIZE = struct.Struct("<I")
_SCHEMA = 2


def read_footer_size(tail: bytes, file_size: int) -> int:
    """Return the size of the footer in bytes.

    Parameters
    ----------
    tail : bytes
        The last `TAIL_BYTES` bytes of the file.
    file_size : int
        The size of the file in bytes.

    Raises
    ------
    InvalidDataError
        If the file does not end as a Parquet file, or the footer is larger than the file.
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

        Raises
        ------
        InvalidDataError
            If the footer is malformed. The error names the place.
        LimitError
            If it is nested too deeply or has too many values.
        """
        reader = CompactReader(data)
        for number, kind in reader.fields():
            if number != _SCHEMA:
                reader.skip_value(kind, 1)
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
