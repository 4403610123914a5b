"""A Parquet file of a Delta table, read with the schema of the table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import DatasetError
from ....transport.memory.files import SourceFile
from ..files.file_access import map_read_errors
from ..files.file_dataset import FileContents
from ..files.origins import FileOrigin
from ..files.parquet import ParquetDataset
from ..messages.reencoding import Batches
from ..query.selection import Selection, select_fields

_FILE_TYPE = "a file of a Delta table"


class DeltaFileDataset(ParquetDataset):
    """A data file, with the columns of the table.

    These are its own columns, in the types of the table, the partition columns, and nulls for
    columns that were added to the table later.

    Parameters
    ----------
    origin : FileOrigin
        The file.
    schema : pyarrow.Schema
        The schema of the table.
    partition_values : mapping of str to pyarrow.Scalar
        The values of the partition columns for this file.

    Raises
    ------
    DatasetError
        If the file cannot be read or does not fit the schema.
    """

    reads_fields = False

    def __init__(
        self, origin: FileOrigin, schema: pa.Schema, partition_values: Mapping[str, Any]
    ) -> None:
        self._table_schema = schema
        self._partition_values = partition_values
        self._file_schema = schema
        # The data files of a table are never written to: each has a unique name.
        super().__init__(origin, keep_index=False, refuse_writers=False)

    def fits(self, schema: pa.Schema) -> bool:
        """Return whether the file was opened for a schema."""
        return self._table_schema.equals(schema, check_metadata=True)

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, with the schema of the table."""
        contents = super().inspect(file)
        own = contents.schema
        with map_read_errors(file.path, _FILE_TYPE):
            for field in self._table_schema:
                if field.name in self._partition_values:
                    continue
                if field.name in own.names:
                    pa.array([], own.field(field.name).type).cast(field.type)
                elif not field.nullable:
                    raise DatasetError(f"{file.path} lacks the column {field.name!r}")
        self._file_schema = own
        return replace(contents, schema=self._table_schema)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        own = self._file_schema
        own_contents = replace(contents, schema=own)
        names = selection.schema.names
        stored = [name for name in names if self._is_stored(name)]
        columns = tuple(own.get_field_index(name) for name in stored)
        in_file = replace(selection, schema=select_fields(own, columns), columns=columns)
        if own.remove_metadata() != self._table_schema.remove_metadata():
            in_file = replace(in_file, filter=None)  # it refers to the columns of the table
        with (
            map_read_errors(file.path, _FILE_TYPE),
            closing(super().read_batches(file, own_contents, in_file)) as batches,
        ):
            for batch, _ in batches:
                arrays = [self._build_column(batch, stored, field) for field in selection.schema]
                if arrays:
                    batch = pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
                yield batch, None

    def _is_stored(self, name: str) -> bool:
        return name not in self._partition_values and name in self._file_schema.names

    def _build_column(
        self, batch: pa.RecordBatch, stored: list[str], field: pa.Field[Any]
    ) -> pa.Array[Any]:
        if field.name in stored:
            column = batch.column(stored.index(field.name))
            return column if column.type == field.type else column.cast(field.type)
        value = self._partition_values.get(field.name)
        if value is None:
            return pa.nulls(batch.num_rows, field.type)
        return pa.repeat(value, batch.num_rows)
