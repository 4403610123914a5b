"""Write record batches as CSV and JSON Lines, so that `--schema` reads the same values again."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from ..formats.arrow.json_values import find_unsupported, to_json_values
from ..formats.arrow.supported_types import SupportedTypes
from ..formats.arrow.text_values import (
    ValueTextError,
    convert_column,
    format_values,
    is_quoted,
)
from ..formats.arrow.truncation import pc
from . import Sink


class _TextSink(Sink):
    """Writes a format of text. A subclass converts one column at a time."""

    _name: str
    """What the format is, for errors."""
    _others: str
    """The suffixes of formats that store more types."""
    _nested: bool
    """Whether the format has values inside of others."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file)
        self._types = SupportedTypes(schema)
        schema = self._types.schema
        self._names = schema.names
        self._rows = 0
        if not schema.names:
            raise UsageError(
                f"{self._name} cannot store rows without columns; write to .arrow instead"
            )
        for index, name in enumerate(schema.names):
            reason = find_unsupported(schema.field(index), nested=self._nested)
            if reason is not None:
                raise UsageError(
                    f"{self._name} cannot store the column {name!r}: it has {reason}; "
                    f"write to {self._others} instead"
                )

    @abstractmethod
    def _convert(self, column: Any) -> Any:
        """Return what is written of a column."""

    def _convert_columns(self, batch: pa.RecordBatch) -> list[Any]:
        """Return what is written of each column."""
        columns: list[Any] = []
        batch = self._types.convert(batch)
        for name, column in zip(self._names, batch.columns, strict=True):
            try:
                columns.append(convert_column(self._convert, column))
            except ValueTextError as error:
                raise UsageError(
                    f"{self._name} cannot store the column {name!r}: in row "
                    f"{self._rows + error.index + 1}, {error.reason}; write to .arrow instead"
                ) from None
        self._rows += batch.num_rows
        return columns


class CsvSink(_TextSink):
    """Writes CSV with a header line.

    Text is quoted, and a null is nothing at all. So text that looks like a number stays text, and
    an empty text differs from a null. Some programs skip empty lines, so a null in the only column
    is ``""`` among values without quotes.
    """

    _name = "a CSV file"
    _others = ".jsonl or .parquet"
    _nested = False

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file, schema)
        self._has_values = False
        header = _quote(pa.array(schema.names, pa.large_string())).to_pylist()
        self._file.write((",".join(header) + "\n").encode())

    def _convert(self, column: Any) -> Any:
        texts = format_values(column).cast(pa.large_string())
        if is_quoted(column.type):
            return _quote(texts)
        self._has_values |= texts.null_count < len(texts)
        is_alone = len(self._names) == 1
        return pc.fill_null(texts, '""') if is_alone and self._has_values else texts

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        columns = self._convert_columns(batch)
        if not batch.num_rows:
            return
        columns.append(_join(columns.pop(), "\n", ""))
        lines = _join(*columns, ",")
        nbytes = pc.sum(pc.binary_length(lines)).as_py()
        self._file.write(lines.buffers()[2].slice(0, nbytes))


class JsonLinesSink(_TextSink):
    """Writes JSON Lines: a line with one JSON object for each row.

    Values that JSON has no type for are text: binary data, dates and times, decimals, NaN and
    infinity; see `to_json_values`.
    """

    _name = "a JSON Lines file"
    _others = ".arrow"
    _nested = True

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file, schema)
        repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
        if repeated is not None:
            raise UsageError(
                f"a JSON Lines file cannot store this data: several columns are named "
                f"{repeated!r}; write to .arrow instead"
            )

    def _convert(self, column: Any) -> Any:
        return to_json_values(column)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        rows = zip(*self._convert_columns(batch), strict=True)
        names = self._names
        encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
        lines = [encode(dict(zip(names, row, strict=True))) for row in rows]
        if lines:
            self._file.write(("\n".join(lines) + "\n").encode())


def _quote(texts: Any) -> Any:
    """Return large strings in quotes. A null stays null."""
    return pc.if_else(
        pc.is_valid(texts), _join('"', pc.replace_substring(texts, '"', '""'), '"', ""), None
    )


def _join(*parts: Any) -> Any:
    """Return texts and large strings joined with the last one between them. A null is empty."""
    wide = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*wide, null_handling="replace", null_replacement="")
