"""CSV and JSON Lines files: types inferred from all rows, then read block by block.

A schema may replace the inference. Then all values have to be those of its types.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from ....formats.arrow.json_values import find_unsupported, from_json_values
from ....formats.arrow.supported_types import SupportedTypes
from ....formats.arrow.text_values import (
    ValueTextError,
    convert_column,
    is_quoted,
    parse_values,
)
from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..selection import Selection
from .csv_blocks import BlockReader, parse_block
from .csv_types import TEXT, Column
from .file_dataset import FileContents, FileDataset
from .json_rows import Shape, is_exact, read_rows, replace_timestamps
from .origins import open_with_arrow

_BLOCK_BYTES = 8 << 20
"""The size of the text that becomes one record batch, in bytes. A longer row is a batch."""


class TextDataset(FileDataset):
    """A dataset in a text file. The server reads it once to infer the types of its columns.

    With a `text_schema`, the columns have its types, and are matched by name.
    """

    decodes_batches = True
    _file_type: ClassVar[str]

    def __init__(
        self, source: Any, *, text_schema: pa.Schema | None = None, **arguments: Any
    ) -> None:
        self._text_schema = None if text_schema is None else SupportedTypes(text_schema).schema
        super().__init__(source, **arguments)

    def inspect(self, file: SourceFile) -> FileContents:
        """Read the whole file, and return its contents."""
        schema = self._text_schema
        with open_with_arrow(file, self._file_type) as handle:
            if schema is None:
                try:
                    schema, rows, plan = self._infer(handle)
                except RecursionError:
                    raise ValueError("its values are nested too deeply") from None
            else:
                rows = sum(batch.num_rows for batch in self._read_typed(handle, schema))
                plan = None
        return FileContents(file.version, schema, file.size, rows=rows, plan=plan)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        with open_with_arrow(file, self._file_type) as handle:
            if self._text_schema is None:
                batches = self._read(handle, contents)
            else:
                batches = self._read_typed(handle, contents.schema)
            for batch in selection.batches.iterate(batches):
                file.check()
                yield selection.select_columns(batch), None

    @abstractmethod
    def _infer(self, handle: Any) -> tuple[pa.Schema, int, Any]:
        """Return the schema of a file, its rows, and what `_read` needs beside them."""

    @abstractmethod
    def _read(self, handle: Any, contents: FileContents) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the inferred types."""

    @abstractmethod
    def _read_typed(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a schema."""


class CsvDataset(TextDataset):
    """A dataset in a CSV file whose first line has the names of the columns."""

    _kind = "csv file"
    _file_type = "a CSV file"

    def _infer(self, handle: Any) -> tuple[pa.Schema, int, Any]:
        columns: list[Column] = []
        while True:
            handle.seek(0)
            reader = BlockReader(handle, _BLOCK_BYTES)
            width = len(reader.names)
            columns = columns or [Column() for _ in reader.names]
            wanted = [index for index, column in enumerate(columns) if not column.is_checked]
            for index in wanted:
                columns[index].is_checked = True
            rows = 0
            has_quotes = False
            for block in reader:
                has_quotes |= b'"' in block.data
                for index in block.find_quoted_columns(width):
                    columns[index].is_quoted = True
                texts = parse_block(
                    block, [pa.string()] * width, quoted_nulls=_has_quoted_nulls(columns)
                )
                rows += len(texts[0])
                for index in wanted:
                    columns[index].observe(texts[index])
            if all(column.is_checked for column in columns):
                if _has_quoted_nulls(columns) and has_quotes and not columns[0].kind:
                    columns[0] = Column(kind=TEXT, is_quoted=True)  # all values are empty
                fields = [
                    (name, each.type) for name, each in zip(reader.names, columns, strict=True)
                ]
                return pa.schema(fields), rows, columns

    def _read(self, handle: Any, contents: FileContents) -> Iterator[pa.RecordBatch]:
        columns: list[Column] = contents.plan
        quoted_nulls = _has_quoted_nulls(columns)
        for block in BlockReader(handle, _BLOCK_BYTES):
            try:
                arrays = parse_block(block, contents.schema.types, quoted_nulls=quoted_nulls)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a null of others, decimal256
                strings = [pa.string()] * len(columns)
                texts = parse_block(block, strings, quoted_nulls=quoted_nulls)
                arrays = [column.convert(text) for column, text in zip(columns, texts, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=contents.schema)

    def _read_typed(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        _check_fields(schema, nested=False)
        reader = BlockReader(handle, _BLOCK_BYTES)
        width = len(reader.names)
        places = _match_columns(reader.names, schema.names)
        quoted_nulls = width == 1 and not is_quoted(schema.field(0).type)
        for block in reader:
            texts = parse_block(block, [pa.string()] * width, quoted_nulls=quoted_nulls)
            find_line = partial(block.find_line, has_empty=width == 1)
            arrays: list[Any] = []
            for field, place in zip(schema, places, strict=True):
                arrays.append(_convert(texts[place], field, _parse_texts, find_line))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_quoted_nulls(columns: list[Column]) -> bool:
    """Return whether ``""`` is a null, as in the only column of `CsvSink` unless it is text."""
    return len(columns) == 1 and not columns[0].is_quoted


def _match_columns(found: list[str], expected: list[str]) -> list[int]:
    """Return where each column of a schema is in a file. Columns of one name keep their order."""
    left: dict[str, list[int]] = {}
    for index, name in enumerate(found):
        left.setdefault(name, []).append(index)
    places: list[int] = []
    for name in expected:
        if not left.get(name):
            raise ValueError(f"it has no column {name!r}, which the schema has")
        places.append(left[name].pop(0))
    extra = next((name for name, indices in left.items() if indices), None)
    if extra is not None:
        raise ValueError(f"the schema has no column {extra!r}, which the file has")
    return places


class JsonLinesDataset(TextDataset):
    """A dataset in a file with a JSON object on each line."""

    _kind = "json lines file"
    _file_type = "a JSON Lines file"

    def _infer(self, handle: Any) -> tuple[pa.Schema, int, Any]:
        from pyarrow import json

        can_read = False
        schema, rows = pa.schema([]), 0
        with suppress(pa.ArrowInvalid):  # perhaps a column has a NaN, which is text
            table = json.read_json(handle, json.ReadOptions(block_size=_BLOCK_BYTES))
            schema, rows = table.schema, table.num_rows
            del table
            handle.seek(0)
            can_read = is_exact(handle, schema, _BLOCK_BYTES)
        if not can_read:
            handle.seek(0)
            schema, rows = self._infer_exactly(handle)
        if not schema.names:
            raise ValueError("its rows have no columns")
        return replace_timestamps(schema), rows, can_read

    def _infer_exactly(self, handle: Any) -> tuple[pa.Schema, int]:
        shape = Shape()
        rows = 0
        for block in read_rows(handle, _BLOCK_BYTES):
            shape.add(block.objects)
            rows += len(block.objects)
        return pa.schema(shape.infer_fields()), rows

    def _read(self, handle: Any, contents: FileContents) -> Iterator[pa.RecordBatch]:
        from pyarrow import json

        can_read: bool = contents.plan
        if not can_read:
            yield from self._read_typed(handle, contents.schema)
            return
        reader: Any = json.open_json(  # pyright: ignore[reportAttributeAccessIssue]
            handle,
            json.ReadOptions(block_size=_BLOCK_BYTES),
            json.ParseOptions(explicit_schema=contents.schema, unexpected_field_behavior="error"),
        )
        for batch in reader:
            yield batch.select(contents.schema.names)

    def _read_typed(self, handle: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        _check_fields(schema, nested=True)
        names = set(schema.names)
        for rows in read_rows(handle, _BLOCK_BYTES):
            for row, line in zip(rows.objects, rows.lines, strict=True):
                if not row.keys() <= names:
                    name = next(name for name in row if name not in names)
                    raise ValueError(f"the schema has no column {name!r}, which line {line} has")
            arrays = [
                _convert(
                    [row.get(field.name) for row in rows.objects],
                    field,
                    from_json_values,
                    rows.lines.__getitem__,
                )
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_fields(schema: pa.Schema, *, nested: bool) -> None:
    """Raise `ValueError` if text has no values of a schema."""
    for field in schema:
        if reason := find_unsupported(field, nested=nested):
            raise ValueError(f"it cannot have the column {field.name!r} with {reason}")


def _parse_texts(texts: Any, data_type: Any) -> Any:
    return parse_values(texts.cast(pa.string()), data_type)


def _convert(
    values: Any,
    field: pa.Field[Any],
    convert: Callable[[Any, Any], Any],
    find_line: Callable[[int], int],
) -> Any:
    """Return the values of a column of a schema; `find_line` returns the line of a row."""

    def read(values: Any) -> Any:
        array = convert(values, field.type)
        if not field.nullable and array.null_count:
            raise ValueError("a value is null")
        return array

    try:
        return convert_column(read, values)
    except ValueTextError as error:
        value = values[error.index]
        line = find_line(error.index)
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    text = json.dumps(text, ensure_ascii=False)
    text = text if len(text) <= 40 else f"{text[:40]}…"
    expected = f"{field.type}{'' if field.nullable else ' not null'}"
    raise ValueError(
        f"line {line}: {text} in the column {field.name!r} is not of the type {expected}"
    )
