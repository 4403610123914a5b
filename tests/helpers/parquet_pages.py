"""Parquet files page by page, for what no library writes: empty, damaged, contradictory pages."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from splitarrow.formats.parquet.footer import MAGIC
from splitarrow.formats.parquet.logical_types import LogicalType
from splitarrow.formats.parquet.schema import (
    CHILDREN,
    LENGTH,
    NAME,
    REPETITION,
    TYPE,
    Physical,
    Repetition,
    annotate,
)
from splitarrow.formats.parquet.thrift import Struct, ThriftList, Type, Value, encode_struct

PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
UNCOMPRESSED, SNAPPY, LZ4, ZSTD = 0, 1, 5, 6
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3


def _i32(value: int) -> Value:
    return Value(Type.I32, value)


def _i64(value: int) -> Value:
    return Value(Type.I64, value)


def group(name: str, count: int, repetition: int = 0, logical: LogicalType | None = None) -> Struct:
    """Return the schema element of a group of `count` fields."""
    element = {
        NAME: Value(Type.BINARY, name.encode()),
        CHILDREN: _i32(count),
        REPETITION: _i32(repetition),
    }
    return element if logical is None else annotate(element, logical)


def leaf(
    name: str,
    physical: Physical,
    repetition: int = 0,
    logical: LogicalType | None = None,
    length: int = 0,
) -> Struct:
    """Return the schema element of a column."""
    element = {
        TYPE: _i32(int(physical)),
        NAME: Value(Type.BINARY, name.encode()),
        REPETITION: _i32(repetition),
    }
    if length:
        element[LENGTH] = _i32(length)
    return element if logical is None else annotate(element, logical)


def levels(values: Sequence[int], *, prefixed: bool = True) -> bytes:
    """Return repetition or definition levels in runs; a page of version 1 has their size before."""
    runs = b"".join(
        _varint(len(list(each)) << 1) + bytes([level]) for level, each in groupby(values)
    )
    return struct.pack("<I", len(runs)) + runs if prefixed else runs


def indices(values: Sequence[int], width: int) -> bytes:
    """Return indices of a dictionary in runs, after their width in bits."""
    size = (width + 7) // 8
    runs = (
        _varint(len(list(each)) << 1) + index.to_bytes(size, "little")
        for index, each in groupby(values)
    )
    return bytes([width]) + b"".join(runs)


@dataclass(frozen=True)
class Page:
    """A page with its header."""

    header: Struct
    body: bytes

    @cached_property
    def data(self) -> bytes:
        """The bytes of the page."""
        return encode_struct(self.header) + self.body


def data_page(
    count: int, body: bytes, encoding: int = PLAIN, *, crc: int | None = None, size: int = -1
) -> Page:
    """Return a page of version 1 with `count` values. `size` is that of the decompressed body."""
    header = {1: _i32(count), 2: _i32(encoding), 3: _i32(RLE), 4: _i32(RLE)}
    return _page(_DATA, 5, header, body, crc, size)


def dictionary_page(count: int, body: bytes, *, crc: int | None = None) -> Page:
    """Return a dictionary of `count` values."""
    header = {1: _i32(count), 2: _i32(PLAIN)}
    return _page(_DICTIONARY, 7, header, body, crc, -1)


def data_page_2(
    rows: int,
    nulls: int,
    parts: tuple[bytes, bytes, bytes],
    *,
    count: int | None = None,
    is_compressed: bool = False,
    size: int = -1,
) -> Page:
    """Return a page of version 2: repetition levels, definition levels and values."""
    repetition, definition, _ = parts
    header = {
        1: _i32(rows if count is None else count),
        2: _i32(nulls),
        3: _i32(rows),
        4: _i32(PLAIN),
        5: _i32(len(definition)),
        6: _i32(len(repetition)),
        7: Value(Type.TRUE, is_compressed),
    }
    return _page(_DATA_2, 8, header, b"".join(parts), None, size)


def _page(kind: int, number: int, inner: Struct, body: bytes, crc: int | None, size: int) -> Page:
    header: Struct = {
        1: _i32(kind),
        2: _i32(len(body) if size < 0 else size),
        3: _i32(len(body)),
        number: Value(Type.STRUCT, inner),
    }
    if crc is not None:
        header[4] = _i32((zlib.crc32(body) + crc + (1 << 31)) % (1 << 32) - (1 << 31))
    return Page(header, body)


@dataclass(frozen=True)
class Chunk:
    """The pages of a column in the only row group."""

    path: str
    physical: Physical
    pages: Sequence[Page]
    count: int
    """The number of values that the footer states."""
    codec: int = UNCOMPRESSED
    extra: Struct = field(default_factory=dict[int, Value])
    """Further fields of ColumnMetaData."""
    chunk_fields: Struct = field(default_factory=dict[int, Value])
    """Further fields of ColumnChunk."""


def write_pages(schema: Sequence[Struct], chunks: Sequence[Chunk], rows: int) -> bytes:
    """Return a file of one row group.

    Parameters
    ----------
    schema : sequence of Struct
        The elements of the top-level fields and all fields in them.
    chunks : sequence of Chunk
        The columns.
    rows : int
        The number of rows.
    """
    out = bytearray(MAGIC)
    columns: list[Any] = []
    for chunk in chunks:
        start = len(out)
        offsets: dict[int, int] = {}
        for page in chunk.pages:
            offsets.setdefault(page.header[1].content, len(out))
            out += page.data
        size = len(out) - start
        metadata: Struct = {
            1: _i32(int(chunk.physical)),
            2: Value(Type.LIST, ThriftList(Type.I32, [PLAIN, RLE])),
            3: Value(
                Type.LIST,
                ThriftList(Type.BINARY, [name.encode() for name in chunk.path.split(".")]),
            ),
            4: _i32(chunk.codec),
            5: _i64(chunk.count),
            6: _i64(size),
            7: _i64(size),
            9: _i64(min(offsets.get(_DATA, 1 << 40), offsets.get(_DATA_2, 1 << 40))),
        }
        if _DICTIONARY in offsets:
            metadata[11] = _i64(offsets[_DICTIONARY])
        metadata |= chunk.extra
        columns.append({2: _i64(start), 3: Value(Type.STRUCT, metadata)} | chunk.chunk_fields)
    row_group: Struct = {
        1: Value(Type.LIST, ThriftList(Type.STRUCT, columns)),
        2: _i64(len(out)),
        3: _i64(rows),
    }
    footer = encode_struct(
        {
            1: _i32(1),
            2: Value(Type.LIST, ThriftList(Type.STRUCT, [_root(schema), *schema])),
            3: _i64(rows),
            4: Value(Type.LIST, ThriftList(Type.STRUCT, [row_group])),
        }
    )
    return bytes(out) + footer + struct.pack("<I", len(footer)) + MAGIC


def _root(schema: Sequence[Struct]) -> Struct:
    """Return the root of a schema: its fields are those that are in no other."""
    count = inside = 0
    for element in schema:
        if not inside:
            count += 1
        inside = max(inside - 1, 0) + (element[CHILDREN].content if CHILDREN in element else 0)
    return group("schema", count, int(Repetition.REQUIRED))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
