"""Write record batches to a Parquet file, with every annotation that its format demands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any, cast

import pyarrow as pa

from .. import variant
from ..errors import ProtocolError, UsageError
from ..formats.arrow.numpy_arrays import require_numpy
from ..formats.arrow.supported_types import SupportedTypes
from ..formats.parquet.footer import MAGIC, TAIL_BYTES, read_footer_size
from ..formats.parquet.variant_columns import annotate_variants, find_variant_paths
from ..formats.parquet.write_plan import GeoStatistics, WritePlan
from . import Sink

_ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 128 << 20
"""The size at which a row group is written. Until then it is kept in memory."""


class ParquetSink(Sink):
    """Writes a Parquet file, with several batches in a row group.

    `shred` has the types of the Variant columns to shred; None stands for the type that fits the
    first rows.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        schema: pa.Schema,
        shred: Mapping[str, Any] | None = None,
        *,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        super().__init__(file)
        if not len(schema):
            raise UsageError(
                "a Parquet file cannot store rows without columns; write to .arrow instead"
            )
        self._types = SupportedTypes(schema)
        schema = self._types.schema
        self._output = _Output(file)
        self._row_group_bytes = row_group_bytes
        self._variants = find_variant_paths(schema)
        self._schema = schema
        self._shred = {} if shred is None else dict(shred)
        self._plan: Any = None
        self._writer: Any = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._statistics: list[dict[int, GeoStatistics]] = []
        if not self._shred:
            self._open_writer()

    def _require_writer(self) -> None:
        """Open the writer at its first use: the types of shredded columns depend on the rows."""
        if self._writer is None:
            self._open_writer()

    def _open_writer(self) -> None:
        import pyarrow.parquet as pq

        try:
            schema = self._choose_types()
            self._plan = WritePlan.of(schema)
            self._writer = pq.ParquetWriter(
                pa.PythonFile(cast(Any, self._output), mode="w"),
                self._plan.schema,
                store_decimal_as_integer=bool(self._shred),  # as Variant Shredding demands
            )
            if self._plan.key_values:
                self._writer.add_key_value_metadata(dict(self._plan.key_values))
        except (pa.ArrowException, ProtocolError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the file, and not of a type
            raise self._unsupported(error) from None

    def _choose_types(self) -> pa.Schema:
        """Return the schema with the types of the columns to shred, inferred where they are open.

        A column whose values have too little in common is not shredded.
        """
        if not self._shred:
            return self._schema
        require_numpy()
        from ..formats.parquet.variant.shredding import shredded_type

        schema = self._schema
        for name, data_type in list(self._shred.items()):
            index = schema.get_field_index(name)
            if data_type is None:
                arrays = [batch.column(index) for batch in self._pending]
                column = pa.chunked_array(arrays, schema.field(index).type)
                data_type = self._shred[name] = variant.infer_type(column)
            if pa.types.is_null(data_type):
                del self._shred[name]
                continue
            nullable = schema.field(index).nullable
            schema = schema.set(index, pa.field(name, shredded_type(data_type), nullable))
        return schema

    def _shred_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, data_type in self._shred.items():
            index = batch.schema.get_field_index(name)
            column = variant.shred(batch.column(index), data_type)
            field = pa.field(name, column.type, batch.schema.field(index).nullable)
            batch = batch.set_column(index, field, column)
        return batch

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        batch = self._types.convert(batch)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.get_total_buffer_size()
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= self._row_group_bytes:
            self._write_group()

    def _write_group(self) -> None:
        self._require_writer()
        pending = self._pending
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        try:
            batches = [self._plan.convert(self._shred_columns(batch)) for batch in pending]
            group = pa.Table.from_batches(batches, self._plan.schema)
            for start in range(0, max(group.num_rows, 1), _ROW_GROUP_ROWS):
                part = group.slice(start, _ROW_GROUP_ROWS)
                statistics = self._plan.find_statistics(part)
                self._writer.write_table(part, row_group_size=_ROW_GROUP_ROWS)
                self._statistics.append(statistics)
        except (pa.ArrowException, ProtocolError) as error:
            raise self._unsupported(error) from None

    def _unsupported(self, error: Exception) -> UsageError:
        reason = error.message if isinstance(error, ProtocolError) else error
        return UsageError(
            f"a Parquet file cannot store this data: {reason}; write to .arrow instead"
        )

    def close(self) -> None:
        """Write the last row group and the footer, and close the file."""
        if self._pending:
            self._write_group()
        self._require_writer()
        tail = self._output.hold()
        self._writer.close()
        try:
            self._file.write(self._annotate(tail.getvalue()))
        except (pa.ArrowException, ProtocolError) as error:
            raise self._unsupported(error) from None
        self._file.close()

    def abort(self) -> None:
        """Close the incomplete file. Raises nothing."""
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()  # a finalizer would write to a closed file
        super().abort()

    def _annotate(self, tail: bytes) -> bytes:
        """Return the end of a file with all annotations in its footer."""
        size = read_footer_size(tail[-TAIL_BYTES:], self._output.tell())
        start = len(tail) - TAIL_BYTES - size
        footer = self._plan.annotate(tail[start:-TAIL_BYTES], self._statistics)
        if self._variants:
            footer = annotate_variants(footer, list(self._variants))
        return b"".join((tail[:start], footer, len(footer).to_bytes(4, "little"), MAGIC))


class _Output:
    """A file to write to, which can hold its end back."""

    def __init__(self, file: pa.NativeFile) -> None:
        self._target: Any = file
        self._position = 0
        self.closed = False

    def hold(self) -> BytesIO:
        """Return the memory to which everything goes from now on."""
        self._target = BytesIO()
        return self._target

    def write(self, data: Any) -> int:
        self._target.write(data)
        size = memoryview(data).nbytes
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: the sink closes the file."""

    def close(self) -> None:
        self.closed = True
