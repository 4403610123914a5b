"""Write record batches as CSV and JSON Lines."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from ..formats.arrow.supported_types import SupportedTypes
from . import Sink


class CsvSink(Sink):
    """Writes CSV with a header line."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        from pyarrow import csv

        super().__init__(file)
        self._types = SupportedTypes(schema)
        self._schema = pa.schema([_plain_field(field) for field in self._types.schema])
        try:
            # The writer refuses a type only when it writes.
            csv.write_csv(self._schema.empty_table(), pa.BufferOutputStream())
            sink: Any = file
            self._writer = csv.CSVWriter(sink, self._schema)
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"a CSV file cannot store this data: {reason}; write to .jsonl or .parquet instead"
            ) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        with _refusals("a CSV file"):
            self._writer.write_batch(self._types.convert(batch).cast(self._schema))

    def close(self) -> None:
        """Complete the file and close it."""
        self._writer.close()
        super().close()


class JsonLinesSink(Sink):
    """Writes JSON Lines: a line with one JSON object for each row.

    Binary data is base64, times are text, decimals are text with all digits, and numbers that JSON
    lacks (NaN, infinity) are null.
    """

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        super().__init__(file)
        repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
        if repeated is not None:
            raise UsageError(
                f"a JSON Lines file cannot store this data: several columns are named "
                f"{repeated!r}; write to .arrow instead"
            )
        self._types = SupportedTypes(schema)
        self._schema = pa.schema([_readable_field(field) for field in self._types.schema])
        self._has_floats = any(_has_floats(field.type) for field in schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        with _refusals("a JSON Lines file"):
            rows: list[Any] = self._types.convert(batch).cast(self._schema).to_pylist()
        if self._has_floats:
            rows = _without_nan(rows)
        lines = [json.dumps(row, ensure_ascii=False, default=_as_text) for row in rows]
        if lines:
            self._file.write(("\n".join(lines) + "\n").encode())


@contextmanager
def _refusals(output: str) -> Generator[None]:
    """Convert errors of values that a format has no form for to `UsageError`."""
    try:
        yield
    except (pa.ArrowNotImplementedError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"{output} cannot store this data: {reason}; write to .arrow instead"
        ) from None


def _plain_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a field without dictionary encoding."""
    if isinstance(field.type, pa.DictionaryType):
        return field.with_type(field.type.value_type)
    return field


def _readable_field(field: pa.Field[Any]) -> pa.Field[Any]:
    """Return a field whose values Python reads exactly: times become text."""
    plain = _plain_field(field)
    types = pa.types
    is_time = types.is_timestamp(plain.type) or types.is_time(plain.type)
    return plain.with_type(pa.string()) if is_time else plain


def _has_floats(data_type: pa.DataType) -> bool:
    children = (data_type.field(index).type for index in range(data_type.num_fields))
    return pa.types.is_floating(data_type) or any(map(_has_floats, children))


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list) else value


def _as_text(value: Any) -> str:
    """Return the text of a value that JSON has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
