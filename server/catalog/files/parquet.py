"""Parquet files, decoded a few rows at a time: never a whole row group."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from ....errors import ExhaustedError
from ....transport.memory.files import SourceFile
from ....units import format_size
from ..messages.reencoding import Batches
from ..query.selection import Selection
from .file_access import map_read_errors, open_handle
from .file_dataset import FileContents, FileDataset
from .object_file import ObjectFile

BATCH_BYTES = 8 << 20
"""The decoded size of a batch in bytes, if the request leaves the batch size open."""
MAX_BATCH_ROWS = 128 << 10
"""The largest number of rows in such a batch. Decoded rows may be larger than estimated."""
_FILE_TYPE = "a Parquet file"
_COLUMN_BUFFER = 1 << 20
_INT96_UNIT = "us"  # pyarrow's nanoseconds wrap around outside of the years 1677 to 2262
_VARIABLE_WIDTH_BYTES = 16


class ParquetDataset(FileDataset):
    """A dataset in a Parquet file."""

    _kind = "parquet file"
    decodes_batches = True

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, from its footer."""
        with map_read_errors(file.path, _FILE_TYPE), _open_parquet(file) as parquet:
            schema = parquet.schema_arrow
            rows = parquet.metadata.num_rows
            batch_rows = _choose_batch_rows(parquet.metadata, schema)
        return FileContents(file.version, schema, file.size, rows=rows, batch_rows=batch_rows)

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
        with map_read_errors(file.path, _FILE_TYPE), _open_parquet(file) as parquet:
            metadata = parquet.metadata
            return [metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        rows = selection.batch_rows or contents.batch_rows or 1
        if selection.limit is not None:
            rows = min(rows, max(selection.limit, 1))
        names = _select_names(contents.schema, selection)
        with map_read_errors(file.path, _FILE_TYPE), _open_parquet(file) as parquet:
            groups = _select_row_groups(file, parquet, selection)
            _check_sizes(file, parquet.metadata, groups, names, selection.budget.parquet_bytes)
            # Prefetching a row group from an object store takes its memory until it is decoded.
            steps = [[group] for group in groups] if isinstance(file, ObjectFile) else [groups]
            for step in steps:
                for batch in parquet.iter_batches(batch_size=rows, row_groups=step, columns=names):
                    file.check()
                    yield _select_columns(batch, selection, by_name=names is not None), None


@contextmanager
def _open_parquet(file: SourceFile) -> Generator[Any]:
    import pyarrow.parquet as pq  # takes a tenth of a second

    with closing(open_handle(file)) as handle:
        # Without a buffer size, pyarrow reads a whole column of a row group before decoding it.
        # From an object store, it reads the columns of a row group in few large requests.
        is_remote = isinstance(file, ObjectFile)
        parquet = pq.ParquetFile(
            handle,
            pre_buffer=is_remote,
            buffer_size=0 if is_remote else _COLUMN_BUFFER,
            coerce_int96_timestamp_unit=_INT96_UNIT,
        )
        with closing(parquet):
            yield parquet


def _select_row_groups(file: SourceFile, parquet: Any, selection: Selection) -> list[int]:
    """Return the row groups to read. Statistics rule out those in which the filter cannot match."""
    selected = range(parquet.num_row_groups)[selection.first_batch : selection.end_batch]
    row_filter = selection.filter
    if (
        row_filter is None
        or not row_filter.uses_dataset_numbers
        or not row_filter.cost.allows_pruning(parquet.num_row_groups)
    ):
        return list(selected)
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow import fs

    parquet_format = ds.ParquetFileFormat(coerce_int96_timestamp_unit=_INT96_UNIT)
    try:
        if isinstance(file, ObjectFile):
            handle: Any = file.open_handle()
            fragment: Any = parquet_format.make_fragment(handle)
        else:
            descriptor = f"/proc/self/fd/{file.fileno()}"
            fragment = parquet_format.make_fragment(descriptor, fs.LocalFileSystem())
        matching = fragment.subset(filter=row_filter.expression).row_groups
        return sorted(group.id for group in matching if group.id in selected)
    except (pa.ArrowException, OSError, ValueError):
        return list(selected)  # Arrow cannot compare this expression with statistics


def _check_sizes(
    file: SourceFile, metadata: Any, groups: list[int], names: list[str] | None, limit: int
) -> None:
    """Check the decoded sizes that the footer states for some columns of some row groups.

    A page or even a value may be as large as its column in a row group, and pyarrow decodes a page
    in one go.

    Raises
    ------
    ExhaustedError
        If a column in a row group is larger than `limit` bytes.
    """
    for group in groups:
        row_group = metadata.row_group(group)
        if row_group.total_byte_size <= limit:
            continue
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            path: str = column.path_in_schema
            nbytes: int = column.total_uncompressed_size
            if nbytes > limit and (names is None or path.partition(".")[0] in names):
                raise ExhaustedError(
                    f"the column {path!r} has {nbytes} bytes in row group {group} of "
                    f"{PurePath(file.path).name}; the limit is {format_size(limit)}: write smaller "
                    "row groups, read other columns, or start the server with more parquet_bytes"
                )


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
