"""Write record batches to a Parquet file, with every annotation that its format demands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import variant
from ..errors import ProtocolError, UsageError
from ..formats.arrow.numpy_arrays import require_numpy
from ..formats.parquet.footer import MAGIC, TAIL_BYTES, read_footer_size
from ..formats.parquet.variant.arrow_fields import is_variant_field
from ..formats.parquet.variant_columns import find_variant_paths
from ..formats.parquet.write_plan import GeoStatistics, WritePlan
from ..server.catalog.suggestions import suggest_names
from .output_file import Sink

_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
"""The size at which a row group is written. Until then it is kept in memory."""


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


class ParquetSink(Sink):
    """Writes a Parquet file, with several batches in a row group.

    `shred` has the types of the Variant columns to shred; None stands for the type that fits the
    first rows.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        schema: pa.Schema,
        path: Path,
        shred: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(file)
        self._path = path
        self._variants = find_variant_paths(schema)
        self._schema = schema
        self._shred = {} if shred is None else dict(shred)
        self._plan: Any = None
        self._writer: Any = None
        for name in self._shred:
            _check_shredded(schema, name)
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
                self._file,
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
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.get_total_buffer_size()
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
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
        self._writer.close()
        self._file.close()
        try:
            self._annotate()
            if self._variants:
                variant.annotate(self._path, self._variants)
        except (pa.ArrowException, ProtocolError) as error:
            raise self._unsupported(error) from None

    def abort(self) -> None:
        """Close the incomplete file. Raises nothing."""
        if self._writer is not None:
            with suppress(OSError, pa.ArrowException):
                self._writer.close()  # a finalizer would write to a closed file
        super().abort()

    def _annotate(self) -> None:
        """Replace the footer by one with all annotations, if they are not the same."""
        with self._path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(size - TAIL_BYTES)
            footer_size = read_footer_size(file.read(TAIL_BYTES), size)
            start = size - TAIL_BYTES - footer_size
            file.seek(start)
            former = file.read(footer_size)
            footer = self._plan.annotate(former, self._statistics)
            if footer == former:
                return
            file.seek(start)
            file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
            file.truncate()
