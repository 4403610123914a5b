"""Write record batches to a file, in the format that its suffix selects.

Here are the sinks for Arrow IPC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import IOBase
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from ..client.stream.batch_stream import find_metadata
from ..errors import UsageError
from ..formats.parquet.variant.arrow_fields import is_variant_field
from ..formats.parquet.variant_columns import find_variant_paths
from ..server.catalog.suggestions import suggest_names
from ..sinks import Sink
from ..sinks.text import CsvSink, JsonLinesSink
from .terminal import name_standard_output

_BUFFER_BYTES = 1 << 20
"""Smaller writes are combined into one of this size."""


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


def _check_shredded(schema: pa.Schema, name: str) -> None:
    """Check that a column is a Variant, and can be shredded."""
    found = schema.get_all_field_indices(name)
    if not found:
        inside = ""
        if name in find_variant_paths(schema):
            inside = ": this Variant is inside of a column, and only whole columns can be shredded"
        raise UsageError(
            f"--shred {name}: the data has no column {name!r}"
            f"{inside or suggest_names(name, schema.names)}"
        )
    if len(found) > 1:
        raise UsageError(
            f"--shred {name}: the data has {len(found)} columns {name!r}; expected one"
        )
    field = schema.field(found[0])
    if not is_variant_field(field):
        variants = [each.name for each in schema if is_variant_field(each)]
        choice = f"choose {' or '.join(map(repr, variants))}" if variants else "leave --shred out"
        raise UsageError(
            f"--shred {name}: the column {name!r} is of the type {field.type}; "
            f"expected a Variant column; {choice}"
        )


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
                from ..sinks.parquet import ParquetSink

                for name in shred or {}:
                    _check_shredded(schema, name)
                return ParquetSink(file, schema, shred)
            case ".vortexs":
                from ..sinks.vortex import VortexStreamSink

                return VortexStreamSink(file, schema)
            case ".vortex":
                from ..sinks.vortex import VortexFileSink

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
