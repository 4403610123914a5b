"""Blocks of whole rows of CSV, and which of their columns have quotes.

pyarrow parses the fields of a block. It does not report which values were quoted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

_MAX_ROW_BYTES = 1 << 30
"""The size of the longest row, in bytes."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_RAGGED = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


class Block:
    """Whole rows of a file, without the header."""

    def __init__(self, data: bytes, first_line: int) -> None:
        self.data = data
        """The bytes of the rows."""
        self.first_line = first_line
        """The number of the first line in the file, from 1."""

    @cached_property
    def _bytes(self) -> Any:
        import numpy as np

        return np.frombuffer(self.data, np.uint8)

    @cached_property
    def _quotes(self) -> Any:
        """The positions of the quotes that begin and end quoted values, in turn.

        The two quotes of an escaped quote end a value and begin it again.
        """
        import numpy as np

        quotes = np.flatnonzero(self._bytes == ord('"'))
        before = self._bytes[quotes[::2] - 1]  # of the first byte, the last one
        begins = (before == ord(",")) | (before == ord("\n")) | (before == ord("\r"))
        begins |= quotes[::2] == 0
        begins[1:] |= quotes[2::2] - 1 == quotes[1::2][: len(begins) - 1]
        return quotes if begins.all() else self._find_quotes(quotes.tolist())

    def _find_quotes(self, quotes: list[int]) -> Any:
        """Return `_quotes` if some are in values without quotes, where they mean themselves."""
        import numpy as np

        found: list[int] = []
        for position in quotes:
            is_inside = len(found) % 2
            is_first = position == 0 or self.data[position - 1] in b",\n\r"
            is_escaped = bool(found) and found[-1] == position - 1
            if is_inside or is_first or is_escaped:
                found.append(position)
        return np.array(found, np.int64)

    def _find_outside(self, is_found: Any) -> Any:
        """Return the positions of a mask that are not in a quoted value."""
        import numpy as np

        found = np.flatnonzero(is_found)
        if b'"' not in self.data:
            return found
        return found[np.searchsorted(self._quotes, found) % 2 == 0]

    @cached_property
    def row_ends(self) -> Any:
        """The positions of the last bytes of the rows that end in the block."""
        is_end = self._bytes == ord("\n")
        if b"\r" in self.data:
            is_return = self._bytes == ord("\r")
            is_return[:-1] &= ~is_end[1:]
            is_end |= is_return
        return self._find_outside(is_end)

    def cut(self, end: int) -> Block:
        """Return the first bytes as a block."""
        block = Block(self.data[:end], self.first_line)
        if b'"' in block.data:
            block._quotes = self._quotes[self._quotes < end]
        return block

    def find_quoted_columns(self, width: int) -> Collection[int]:
        """Return the numbers of the columns with a quoted value.

        The only column may have the value ``""`` for a null, so it does not count there.
        """
        import numpy as np

        if b'"' not in self.data:
            return ()
        begins, ends = self._quotes[::2], self._quotes[1::2]
        is_first = np.append(True, begins[1:] != ends[: len(begins) - 1] + 1)[: len(begins)]
        if width == 1:
            is_empty = is_first[: len(ends)] & (ends == begins[: len(ends)] + 1)
            is_empty &= np.append(is_first[1:], True)[: len(ends)]
            return () if is_empty.all() else (0,)
        begins = begins[is_first]
        delimiters = self._find_outside(self._bytes == ord(","))
        starts = np.append(0, self.row_ends + 1)
        row_starts = starts[np.searchsorted(starts, begins, side="right") - 1]
        columns = np.searchsorted(delimiters, begins) - np.searchsorted(delimiters, row_starts)
        return np.flatnonzero(np.bincount(columns)).tolist()

    def find_line(self, row: int, *, has_empty: bool) -> int:
        """Return the number of the line of a row in the file; `has_empty` counts empty lines."""
        start = 0
        for end in [*self.row_ends.tolist(), len(self.data)]:
            if has_empty or self.data[start : end + 1].strip(b"\r\n"):
                if not row:
                    break
                row -= 1
            start = end + 1
        return self.first_line + self.data.count(b"\n", 0, start)


class BlockReader:
    """Splits a file of CSV into blocks; an iterator of them. It reads the header at once."""

    def __init__(self, handle: Any, block_bytes: int) -> None:
        from pyarrow import csv

        self._handle = handle
        self._block_bytes = block_bytes
        self._rest = handle.read(block_bytes).removeprefix(_BYTE_ORDER_MARK)
        self._line = 1
        header = b"\n"
        while not header.strip(b"\r\n"):
            block = self._read_block(only_first=True)
            if block is None:
                raise ValueError("it has no line with the names of the columns")
            header = block.data
        source: Any = pa.BufferReader(header.rstrip(b"\r\n") + b"\n")
        parse: Any = csv.ParseOptions(newlines_in_values=True)
        table: Any = csv.read_csv(source, parse_options=parse)
        self.names: list[str] = table.column_names
        """The names of the columns."""

    def __iter__(self) -> Iterator[Block]:
        while (block := self._read_block()) is not None:
            yield block

    def _read_block(self, *, only_first: bool = False) -> Block | None:
        """Return the next rows, or the next one; None at the end of the file."""
        size = self._block_bytes
        while True:
            read = self._handle.read(max(size - len(self._rest), 0))
            is_end = not read and len(self._rest) < size
            self._rest += read
            block = Block(self._rest, self._line)
            end = len(self._rest) if is_end and not only_first else _find_end(block, only_first)
            if is_end:
                end = end or len(self._rest)
            if end:
                self._rest = self._rest[end:]
                block = block.cut(end)
                self._line += block.data.count(b"\n")
                return block
            if is_end:
                return None
            if size >= _MAX_ROW_BYTES:
                raise ValueError(f"a row has more than {_MAX_ROW_BYTES} bytes")
            size *= 2 if len(self._rest) >= size else 1


def _find_end(block: Block, only_first: bool) -> int:
    """Return the end of the first row, or of the last complete one, or 0."""
    data = block.data
    if not only_first and b'"' not in data and b"\r" not in data:
        return data.rfind(b"\n") + 1
    ends = block.row_ends
    if data.endswith(b"\r"):  # perhaps a line feed follows
        ends = ends[ends < len(data) - 1]
    return int(ends[0 if only_first else -1]) + 1 if len(ends) else 0


def parse_block(
    block: Block, types: Sequence[pa.DataType], *, quoted_nulls: bool = False
) -> list[Any]:
    """Return the columns of a block. An empty value is null if it has no quotes, or `quoted_nulls`.

    Text that is not UTF-8 is binary. Raises `ArrowInvalid` if a value is not of its type, and
    `ValueError` if a row has another number of values.
    """
    from pyarrow import csv

    width = len(types)
    names = [str(index) for index in range(width)]
    parse: Any = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=width > 1)

    def read(*, threads: bool) -> Any:
        convert = csv.ConvertOptions(
            column_types=dict(zip(names, types, strict=True)),
            strings_can_be_null=True,
            quoted_strings_can_be_null=quoted_nulls,
            null_values=[""],
        )
        options = csv.ReadOptions(
            column_names=names, block_size=len(block.data) + 1, use_threads=threads
        )
        source: Any = pa.BufferReader(block.data)
        return csv.read_csv(source, options, parse, convert)

    try:
        table = read(threads=True)
    except pa.ArrowInvalid as error:
        if _RAGGED.search(str(error)) is not None:
            _report_ragged_row(block, width, lambda: read(threads=False))
        if "UTF8" not in str(error):
            raise
        types = [pa.binary() if pa.types.is_string(each) else each for each in types]
        table = read(threads=True)
    return [column.combine_chunks() for column in table.columns]


def _report_ragged_row(block: Block, width: int, read: Any) -> None:
    """Read again with one thread, which counts rows, and raise a `ValueError`."""
    try:
        read()
    except pa.ArrowInvalid as error:
        match = _RAGGED.search(str(error))
        if match is None or match[1] is None:
            raise
        line = block.find_line(int(match[1]) - 1, has_empty=width == 1)
        raise ValueError(
            f"line {line} has {match[3]} values, and the first line has {match[2]} names"
        ) from None
