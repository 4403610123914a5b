"""Write record batches to a file, in the format that its suffix selects.

Here are the sinks for CSV, JSON Lines and Arrow IPC.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from io import IOBase
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ..client.stream.batch_stream import find_metadata
from ..errors import UsageError
from .output_file import Sink
from .terminal import name_standard_output

_BUFFER_BYTES = 1 << 20
"""Smaller writes are combined into one of this size."""


class CsvSink(Sink):
    """Writes CSV with a header line."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema) -> None:
        from pyarrow import csv

        super().__init__(file)
        self._schema = pa.schema([_plain_field(field) for field in schema])
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
            self._writer.write_batch(batch.cast(self._schema))

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
        self._schema = pa.schema([_readable_field(field) for field in schema])
        self._has_floats = any(_has_floats(field.type) for field in schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        with _refusals("a JSON Lines file"):
            rows: list[Any] = batch.cast(self._schema).to_pylist()
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
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, KeyError) as error:
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


class StreamSink(Sink):
    """Writes the IPC stream format."""

    _open: Callable[..., Any] = staticmethod(pa.ipc.new_stream)

    def __init__(self, file: pa.NativeFile, schema: pa.Schema, **arguments: Any) -> None:
        super().__init__(file)
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = self._open(file, schema, options=options, **arguments)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, with the custom metadata that it arrived with."""
        self._writer.write_batch(batch, custom_metadata=find_metadata(batch))

    def close(self) -> None:
        """Write the end of the stream and close the file."""
        self._writer.close()
        super().close()


class FileSink(StreamSink):
    """Writes the IPC file format, which is Feather version 2.

    The format has one dictionary for each field. A later batch may extend it but not replace it.
    So a batch with another dictionary is written with the previous one, extended by new values.
    """

    _open = staticmethod(pa.ipc.new_file)

    def __init__(
        self,
        file: pa.NativeFile,
        schema: pa.Schema,
        footer_metadata: Mapping[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(file, schema, metadata=footer_metadata)
        self._dictionary_names = [field.name for field in schema if _has_dictionary(field.type)]
        self._is_ordered = any(_has_dictionary(field.type, ordered=True) for field in schema)
        self._previous: pa.RecordBatch | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch, with the custom metadata that it arrived with."""
        if not self._dictionary_names:
            super().write(batch)
            return
        try:
            super().write(batch)
        except pa.ArrowInvalid as error:
            if self._previous is None:
                raise
            if not batch.num_rows:
                return
            batch = self._write_extended(batch, self._previous, error)
        self._previous = batch.slice(0, 0)

    def _write_extended(
        self, batch: pa.RecordBatch, previous: pa.RecordBatch, reason: Exception
    ) -> pa.RecordBatch:
        """Write a batch with the extended dictionaries of the previous one, and return it."""
        try:
            if self._is_ordered:
                raise reason
            both = pa.Table.from_batches([previous, batch]).unify_dictionaries()
            extended = both.to_batches()[-1]
            self._writer.write_batch(extended, custom_metadata=find_metadata(batch))
        except pa.ArrowException as error:
            raise UsageError(
                "an Arrow IPC file holds one dictionary for each column, and the dictionaries of "
                f"{', '.join(self._dictionary_names)} cannot be merged ({error}); "
                "write to .arrows or .parquet instead"
            ) from None
        return extended


_TEXT = {"csv": CsvSink, "jsonl": JsonLinesSink}


class StandardOutputTextSink(Sink):
    """Writes CSV or JSON Lines to standard output."""

    def __init__(self, text_format: str, schema: pa.Schema) -> None:
        output = open(1, "wb", buffering=_BUFFER_BYTES, closefd=False)  # noqa: SIM115
        super().__init__(pa.PythonFile(cast(IOBase, output), mode="w"))
        self._sink = _TEXT[text_format](self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        with name_standard_output():
            self._sink.write(batch)

    def close(self) -> None:
        """Write the rest."""
        with name_standard_output():
            self._sink.close()


def open_sink(
    suffix: str,
    path: Path,
    schema: pa.Schema,
    footer_metadata: Mapping[bytes, bytes] | None = None,
    shred: Mapping[str, Any] | None = None,
) -> Sink:
    """Open a file for writing. An existing file is overwritten."""
    file = pa.BufferedOutputStream(pa.OSFile(str(path), "wb"), _BUFFER_BYTES)
    try:
        match suffix:
            case ".arrow" | ".feather":
                return FileSink(file, schema, footer_metadata)
            case ".arrows":
                return StreamSink(file, schema)
            case ".csv":
                return CsvSink(file, schema)
            case ".parquet":
                from .parquet_output import ParquetSink

                return ParquetSink(file, schema, path, shred)
            case ".vortexs":
                from .vortex_output import VortexStreamSink

                return VortexStreamSink(file, schema)
            case ".vortex":
                from .vortex_output import VortexFileSink

                file.close()  # the library opens it itself
                return VortexFileSink(schema, path)
            case _:
                return JsonLinesSink(file, schema)
    except BaseException:
        file.close()
        raise


def _has_dictionary(data_type: pa.DataType, *, ordered: bool = False) -> bool:
    """Return whether a type contains a dictionary type, or only an ordered one if `ordered`."""
    if isinstance(data_type, pa.DictionaryType):
        value_type = data_type.value_type
        return not ordered or data_type.ordered or _has_dictionary(value_type, ordered=ordered)
    if isinstance(data_type, pa.BaseExtensionType):
        return _has_dictionary(data_type.storage_type, ordered=ordered)
    children = (data_type.field(index).type for index in range(data_type.num_fields))
    return any(_has_dictionary(child, ordered=ordered) for child in children)
