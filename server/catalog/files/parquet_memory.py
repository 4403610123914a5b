"""The memory in which a row group of a Parquet file is decoded, from the headers of its pages.

pyarrow keeps the dictionary and one page of each column, and decodes a batch of rows. The footer
only claims a size, and a dictionary makes each row as large as its longest value. The headers of
the pages have the sizes that pyarrow allocates. The values of a dictionary are measured where they
could make a batch large, and the batch gets fewer rows then.

Two sizes are estimates. In nested columns, the rows of a page are unknown: a batch counts as up to
four times the average, and as one page at least. Values that share prefixes (DELTA_BYTE_ARRAY)
count as eight times their page, and their batches have so few rows that no file makes one of them
larger than 1 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ....errors import InvalidDataError
from ....formats.parquet.thrift import CompactReader, Struct, Type
from ....transport.memory.files import SourceFile

EXPANDED_BYTES = 32 << 20
"""The largest size of a column in a batch of several rows that repeat long values, in bytes."""
_PREFIXED_BYTES = 1 << 30
_PREFIX_FACTOR = 8
_SMALL_DICTIONARY = 8 << 20
_SKEW = 4
"""How many times as many values as on average the rows of a batch may have."""
_HEADER_BYTES, _MAX_HEADER_BYTES = 128, 1 << 20
_TYPE, _NBYTES, _STORED_NBYTES = 1, 2, 3
_COUNT = 1
_PAGE_HEADERS = {0: 5, 2: 7, 3: 8}
_ENCODINGS = {0: 2, 2: 2, 3: 4}
_DICTIONARY_PAGE = 2
_DICTIONARY_ENCODINGS, _DELTA_BYTE_ARRAY = (2, 8), 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_VARINT_TYPES = frozenset(map(int, (Type.I16, Type.I32, Type.I64, Type.BINARY)))
_BOOLEANS = frozenset(map(int, (Type.TRUE, Type.FALSE)))
_MAX_DEPTH = 8
_LEVEL_BYTES = 4
_OFFSET_BYTES = 4

HoldMemory = Callable[[int], AbstractContextManager[None]]
"""Returns a context in which a number of bytes of memory may be used."""
ReadDictionary = Callable[[str], pa.RecordBatch]
"""Returns a row of a leaf column, given its path, with a dictionary."""


class Page(NamedTuple):
    """A page of a column, as its header describes it."""

    nbytes: int
    """The size of the page in bytes, uncompressed."""
    stored_nbytes: int
    """The size of the page in the file, without the header."""
    value_count: int
    """The number of values."""
    encoding: int
    """The encoding of the values."""
    is_dictionary: bool
    """Whether it is the dictionary of the others."""


def read_pages(file: SourceFile, start: int, end: int, count: int) -> Iterator[Page]:
    """Yield the pages of a column, from their headers, until they have `count` values.

    They are in the bytes from `start` to `end` of the file. Raises `InvalidDataError` if a header
    is malformed.
    """
    while start < end and count > 0:
        header, nbytes = _read_header(file, start)
        try:
            kind, stored = header[_TYPE], header[_STORED_NBYTES]
            if kind in _PAGE_HEADERS:
                details = header[_PAGE_HEADERS[kind]]
                page = Page(
                    header[_NBYTES],
                    stored,
                    details[_COUNT],
                    details[_ENCODINGS[kind]],
                    kind == _DICTIONARY_PAGE,
                )
                if min(page) < 0:
                    raise InvalidDataError(f"the page at byte {start} has a negative size")
                count -= 0 if page.is_dictionary else page.value_count
                yield page
        except (KeyError, TypeError):
            raise InvalidDataError(f"the page at byte {start} has no complete header") from None
        start += nbytes + max(stored, 0)


def _read_header(file: SourceFile, start: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a page header, and its size in bytes."""
    size = _HEADER_BYTES
    while True:
        data = bytes(file.read(start, min(size, file.size - start)))
        try:
            return _read_fields(data, 0)
        except IndexError:
            if size >= min(_MAX_HEADER_BYTES, file.size - start):
                raise InvalidDataError(f"the page at byte {start} has no complete header") from None
            size *= 16
        except ValueError:  # unusual, but perhaps valid
            reader = CompactReader(data)
            return _plain(reader.read_struct()), reader.position


def _read_fields(data: bytes, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the integers and structs of a struct, and its end; eight times as fast as a reader.

    Raises `IndexError` if the bytes are too few, and `ValueError` if it knows a type or a form of
    a field too little.
    """
    fields: dict[int, Any] = {}
    number = 0
    while header := data[position]:
        position += 1
        kind, delta = header & 15, header >> 4
        number += delta
        if not delta or depth > _MAX_DEPTH:
            raise ValueError
        if kind in _VARINT_TYPES:
            value = shift = 0
            while (byte := data[position]) >= 128:
                value |= (byte & 127) << shift
                shift += 7
                position += 1
            position += 1
            value |= byte << shift
            fields[number] = (value >> 1) ^ -(value & 1)
            if kind == Type.BINARY:
                position += value
        elif kind == Type.STRUCT:
            fields[number], position = _read_fields(data, position, depth + 1)
        elif kind not in _BOOLEANS:
            raise ValueError
    return fields, position + 1


def _plain(fields: Struct) -> dict[int, Any]:
    """Return the contents of the values of a struct."""
    return {
        number: _plain(value.content) if value.type == Type.STRUCT else value.content
        for number, value in fields.items()
    }


@dataclass(slots=True)
class _Chunk:
    """The sizes of a column in a row group."""

    path: str
    is_flat: bool
    width: int | None
    """The size of a value in bytes; None if it varies."""
    rows: int
    dictionary: Page | None = None
    pages: list[Page] = field(default_factory=list[Page])

    @property
    def state_bytes(self) -> int:
        """What pyarrow keeps: the dictionary, a copy of its values, and the largest page."""
        largest = max((page.nbytes + page.stored_nbytes for page in self.pages), default=0)
        return (0 if self.dictionary is None else 2 * self.dictionary.nbytes) + largest

    @property
    def repeated_count(self) -> int:
        """The number of values that are in the dictionary."""
        return sum(page.value_count for page in self.pages if _is_encoded(page))

    @property
    def prefixed_bytes(self) -> int:
        """A bound on the longest value that shares a prefix, in bytes; 0 if there are none."""
        return max((page.nbytes for page in self.pages if _has_prefixes(page)), default=0)

    def count_values(self, rows: int) -> int:
        """Return how many values a batch of some rows may have."""
        if self.is_flat:
            return rows
        counts = [page.value_count for page in self.pages]
        average = -(-sum(counts) * rows // max(self.rows, 1))
        return min(sum(counts), max(_SKEW * average, *counts, 0))

    def fit_rows(self, rows: int, longest: int) -> int:
        """Return how many rows a batch has, at most `rows`, given the longest repeated value."""
        per_row = 1.0
        if not self.is_flat:
            per_row = max(sum(page.value_count for page in self.pages) / max(self.rows, 1), 1.0)
        for value, most in (
            (longest if self.repeated_count * longest > EXPANDED_BYTES else 0, EXPANDED_BYTES),
            (self.prefixed_bytes, _PREFIXED_BYTES),
        ):
            if value * per_row * rows > most:
                rows = max(1, int(most / (value * per_row)))
        return rows

    def batch_bytes(self, rows: int, longest: int) -> int:
        """Return a bound on the size of a batch of some rows, decoded, in bytes."""
        count = self.count_values(rows)
        overhead = count * (_OFFSET_BYTES if self.is_flat else _OFFSET_BYTES + _LEVEL_BYTES)
        if self.width is not None:
            return count * self.width + overhead
        return min(count, self.repeated_count) * longest + self._window_bytes(count) + overhead

    def whole_bytes(self, longest: int) -> int:
        """Return a bound on the size of all values, decoded, in bytes."""
        if self.width is not None:
            return sum(page.value_count for page in self.pages) * (self.width + _LEVEL_BYTES)
        plain = sum(_bound(page) for page in self.pages)
        return self.repeated_count * longest + plain

    def _window_bytes(self, count: int) -> int:
        """Return the largest size of pages that some consecutive values are in."""
        pages = [page for page in self.pages if not _is_encoded(page)]
        largest = nbytes = inner = first = 0
        for last, page in enumerate(pages):
            nbytes += _bound(page)
            if last - 1 > first:
                inner += pages[last - 1].value_count
            while first < last - 1 and inner > count - 2:  # one value in each of the outer pages
                nbytes -= _bound(pages[first])
                first += 1
                inner -= pages[first].value_count
            largest = max(largest, nbytes)
        return largest


def _is_encoded(page: Page) -> bool:
    """Return whether the values of a page are in the dictionary."""
    return page.encoding in _DICTIONARY_ENCODINGS


def _has_prefixes(page: Page) -> bool:
    return page.encoding == _DELTA_BYTE_ARRAY


def _bound(page: Page) -> int:
    """Return a bound on the size of the values of a page without a dictionary, in bytes."""
    return page.nbytes * (_PREFIX_FACTOR if _has_prefixes(page) else 1)


def measure_row_group(
    file: SourceFile,
    parquet: Any,
    group: int,
    leaves: Sequence[int],
    rows: int,
    read_dictionary: ReadDictionary,
    hold: HoldMemory,
) -> tuple[int, int]:
    """Return the memory that decoding a row group takes, in bytes, and the rows of a batch.

    `rows` is the largest number of rows of a batch. Two batches count: one is decoded while the
    one before is sent. Raises `InvalidDataError` if a page header is malformed.
    """
    row_group = parquet.metadata.row_group(group)
    chunks: list[tuple[_Chunk, int]] = []
    for index in leaves:
        column = row_group.column(index)
        chunk = _Chunk(
            parquet.schema.column(index).path,
            not parquet.schema.column(index).max_repetition_level,
            _find_width(parquet.schema.column(index)),
            row_group.num_rows,
        )
        for page in read_pages(file, *locate_pages(column), column.num_values):
            if page.is_dictionary:
                chunk.dictionary = page
            else:
                chunk.pages.append(page)
        longest = _measure_longest(chunk, rows, read_dictionary, hold)
        chunks.append((chunk, longest))
        rows = chunk.fit_rows(rows, longest)
    total = 0
    for chunk, longest in chunks:
        batches = min(2 * chunk.batch_bytes(rows, longest), chunk.whole_bytes(longest))
        total += chunk.state_bytes + batches
    return total, rows


def estimate_column(column: Any) -> int:
    """Return the memory that decoding a column takes, as the footer describes it, in bytes."""
    return max(column.total_compressed_size, 0) + 2 * max(column.total_uncompressed_size, 0)


def locate_pages(column: Any) -> tuple[int, int]:
    """Return the first byte of the pages of a column, and the one after the last.

    Some writers state that a column has no dictionary by the offset 0, and others that it has no
    values.
    """
    start = column.data_page_offset
    dictionary = column.dictionary_page_offset if column.has_dictionary_page else None
    if dictionary and dictionary > 0 and (dictionary < start or not column.num_values):
        start = dictionary
    return start, start + column.total_compressed_size


def _find_width(column: Any) -> int | None:
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return column.length
    return _WIDTHS.get(column.physical_type)


def _measure_longest(
    chunk: _Chunk, rows: int, read_dictionary: ReadDictionary, hold: HoldMemory
) -> int:
    """Return a bound on the longest value that is repeated, in bytes.

    The dictionary is read if its size leaves open whether a batch is small.
    """
    dictionary = chunk.dictionary
    if chunk.width is not None:
        return chunk.width
    if dictionary is None:
        return 0
    longest = max(dictionary.nbytes - _OFFSET_BYTES * dictionary.value_count, 0)
    repeated = min(chunk.count_values(rows), chunk.repeated_count)
    if longest * repeated <= EXPANDED_BYTES // 8:
        return longest
    if longest // max(dictionary.value_count, 1) > EXPANDED_BYTES:
        return longest  # a batch has one row in any case
    nbytes = chunk.state_bytes + dictionary.nbytes
    if nbytes <= _SMALL_DICTIONARY:
        return _find_longest(read_dictionary(chunk.path))
    with hold(nbytes):
        return _find_longest(read_dictionary(chunk.path))


def _find_longest(batch: pa.RecordBatch) -> int:
    """Return the size of the longest value of the dictionary in a batch of one leaf column."""
    array: Any = batch.column(0)
    while not isinstance(array, pa.DictionaryArray):
        array = array.field(0) if pa.types.is_struct(array.type) else array.values
    values: Any = array.dictionary.cast(pa.large_binary())
    return pc.max(pc.binary_length(values)).as_py() or 0
