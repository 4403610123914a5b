"""Parquet files, decoded a few rows at a time: never a whole row group."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from ....formats.parquet.columns import Columns
from ....transport.memory.files import SourceFile
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors
from .file_dataset import FileContents, FileDataset
from .object_file import ObjectFile
from .parquet_checks import check_row_groups
from .parquet_fields import FieldReader, selects_fields
from .parquet_reader import inspect_parquet, open_parquet, select_row_groups

BATCH_BYTES = 8 << 20
"""The decoded size of a batch in bytes, if the request leaves the batch size open."""
MAX_BATCH_ROWS = 128 << 10
"""The largest number of rows in such a batch. Decoded rows may be larger than estimated."""
_FILE_TYPE = "a Parquet file"
_VARIABLE_WIDTH_BYTES = 16


class ParquetDataset(FileDataset):
    """A dataset in a Parquet file."""

    _kind = "parquet file"
    decodes_batches = True
    reads_fields = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its footer."""
        with map_read_errors(file.path, _FILE_TYPE):
            plan, parquet = inspect_parquet(file)
            with closing(parquet):
                rows = parquet.metadata.num_rows
                schema = plan.columns.schema
                batch_rows = _choose_batch_rows(parquet.metadata, schema)
        return FileContents(
            file.version, schema, file.size, rows=rows, batch_rows=batch_rows, plan=plan
        )

    def skip_rows(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Selection:
        """Return an equal selection that skips whole row groups; see `FileDataset.skip_rows`."""
        offset, first = selection.offset, selection.first_batch
        if not offset or selection.filter is not None:
            return selection
        for rows in self.list_batch_rows(file, contents)[first : selection.end_batch]:
            if offset < rows:
                break
            offset -= rows
            first += 1
        return replace(selection, first_batch=first, offset=offset)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each row group."""
        with map_read_errors(file.path, _FILE_TYPE), open_parquet(file, contents.plan) as parquet:
            metadata = parquet.metadata
            return [metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        rows = selection.batch_rows or contents.batch_rows or 1
        if selection.limit is not None:
            rows = min(rows, max(selection.limit, 1))
        if selects_fields(contents, selection):
            yield from self._read_fields(file, contents, selection, rows)
            return
        names = _select_names(contents.plan.columns.schema, selection)
        with map_read_errors(file.path, _FILE_TYPE), open_parquet(file, contents.plan) as parquet:
            columns: Columns = contents.plan.columns
            options = selection.budget.parquet_options
            groups = select_row_groups(file, parquet, contents.plan, selection)
            check_row_groups(file, parquet, groups, names, selection.budget.parquet_bytes)
            # Prefetching a row group from an object store takes its memory until it is decoded.
            steps = [[group] for group in groups] if isinstance(file, ObjectFile) else [groups]
            for step in steps:
                missing = sum(parquet.metadata.row_group(group).num_rows for group in step)
                for batch in parquet.iter_batches(batch_size=rows, row_groups=step, columns=names):
                    file.check()
                    missing -= batch.num_rows
                    batch = columns.convert(batch, by_name=names is not None, options=options)
                    yield _select_columns(batch, selection, by_name=names is not None), None
                if missing:
                    raise InvalidDataError(
                        f"a column has {abs(missing)} rows {'less' if missing > 0 else 'more'} "
                        "than the metadata states"
                    )

    def _read_fields(
        self, file: SourceFile, contents: FileContents, selection: Selection, rows: int
    ) -> Batches:
        """Yield batches with fields of Variants; see `read_batches`."""
        with map_read_errors(file.path, _FILE_TYPE), open_parquet(file, contents.plan) as parquet:
            reader = FieldReader(contents, selection)
            groups = reader.select_row_groups(parquet.metadata)
            limit = selection.budget.parquet_bytes
            check_row_groups(file, parquet, groups, reader.column_names, limit)
            for batch in parquet.iter_batches(
                batch_size=rows, row_groups=groups, columns=reader.physical_names
            ):
                file.check()
                yield reader.convert(batch), None


def _choose_batch_rows(metadata: Any, schema: pa.Schema) -> int:
    """Return a number of rows whose decoded size is about BATCH_BYTES in every row group."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    encoded = [group.total_byte_size / max(group.num_rows, 1) for group in groups]
    row_bytes = max(_estimate_row_bytes(schema), *encoded, 1.0)
    return int(min(max(BATCH_BYTES / row_bytes, 1), MAX_BATCH_ROWS))


def _estimate_row_bytes(schema: pa.Schema) -> float:
    """Return the decoded size of a row in bytes, estimated from the types of its columns."""
    total = 0.0
    for field in schema:
        try:
            total += field.type.bit_width / 8
        except ValueError:
            total += _VARIABLE_WIDTH_BYTES
    return total


def _select_names(schema: pa.Schema, selection: Selection) -> list[str] | None:
    """Return the names of the columns to read; None to read all.

    pyarrow selects columns by name only, and takes a dot in a name for a path into a nested column.
    If names are not unique or have a dot, all columns are read.
    """
    if selection.columns is None:
        return None
    names = schema.names
    if len(set(names)) < len(names) or any("." in name for name in names):
        return None
    return [names[column] for column in selection.columns]


def _select_columns(
    batch: pa.RecordBatch, selection: Selection, *, by_name: bool
) -> pa.RecordBatch:
    """Return the selected columns in order.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        A batch with the columns of `_select_names`.
    selection : Selection
        The selection.
    by_name : bool
        Whether the batch has only the selected columns.
    """
    if selection.columns is None:
        indices = range(batch.num_columns)
    elif by_name:
        indices = [batch.schema.get_field_index(name) for name in selection.schema.names]
    else:
        indices = selection.columns
    arrays = [batch.column(index) for index in indices]
    if not arrays:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
