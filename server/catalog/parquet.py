"""Parquet files, decoded some rows at a time: never a whole row group."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...transport.regions import RegionFile
from .encoded import Batches
from .files import Contents, FileDataset, arrow_handle, reading
from .selection import Selection

BATCH_BYTES = 8 << 20
"""How large a batch should be, in bytes, if the reader does not say."""
MOST_ROWS = 128 << 10
"""How many rows it has at most; a compact file may hold rows that are large once decoded."""
_LEAST_ROWS = 64
_WHAT = "a Parquet file"
_COLUMN_BUFFER = 1 << 20
_VARIABLE_BYTES = 16


class ParquetDataset(FileDataset):
    """A dataset in a Parquet file."""

    _kind = "parquet file"
    is_decoded = True

    def look_into(self, file: RegionFile) -> Contents:
        """Return what the footer of the file says."""
        with reading(file.path, _WHAT), _parquet(file) as parquet:
            schema = parquet.schema_arrow
            rows = parquet.metadata.num_rows
            batch_rows = _batch_rows(parquet.metadata, schema)
        return Contents(file.version, schema, file.size, rows=rows, batch_rows=batch_rows)

    def skipped(self, file: RegionFile, contents: Contents, selection: Selection) -> Selection:
        """Return the selection with the row groups that need not be read taken from its offset."""
        offset, first = selection.offset, 0
        if not offset or selection.filter is not None:
            return selection
        with reading(file.path, _WHAT), _parquet(file) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if offset < rows:
                    break
                offset -= rows
                first += 1
        return replace(selection, first=first, offset=offset)

    def batches(self, file: RegionFile, contents: Contents, selection: Selection) -> Batches:
        """Yield record batches as the file is decoded."""
        count = selection.batch_rows or contents.batch_rows or _LEAST_ROWS
        if selection.limit is not None:
            count = min(count, max(selection.limit, 1))
        names = _names_to_read(contents.schema, selection)
        with reading(file.path, _WHAT), _parquet(file) as parquet:
            groups = _row_groups(file, parquet, selection)
            for batch in parquet.iter_batches(batch_size=count, row_groups=groups, columns=names):
                file.check()
                yield _arranged(batch, selection, by_name=names is not None), None


def _row_groups(file: RegionFile, parquet: Any, selection: Selection) -> list[int]:
    """Return the row groups to read: those whose statistics do not rule the filter out."""
    count: int = parquet.num_row_groups
    found = selection.filter
    if found is None or not found.is_in_place:
        return list(range(selection.first, count))
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow import fs

    format_ = ds.ParquetFileFormat()
    try:
        fragment: Any = format_.make_fragment(
            f"/proc/self/fd/{file.fileno()}", fs.LocalFileSystem()
        )
        return sorted(group.id for group in fragment.subset(filter=found.expression).row_groups)
    except (pa.ArrowException, OSError, ValueError):
        return list(range(count))  # the statistics do not help


@contextmanager
def _parquet(file: RegionFile) -> Generator[Any]:
    import pyarrow.parquet as pq  # takes a tenth of a second

    with closing(arrow_handle(file)) as handle:
        # Without a buffered stream, a whole column of a row group is read before it is decoded.
        parquet = pq.ParquetFile(handle, pre_buffer=False, buffer_size=_COLUMN_BUFFER)
        with closing(parquet):
            yield parquet


def _batch_rows(metadata: Any, schema: pa.Schema) -> int:
    """Return how many rows make about BATCH_BYTES once they are decoded."""
    encoded = sum(
        metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)
    )
    row_bytes = max(_row_bytes(schema), encoded / max(metadata.num_rows, 1), 1.0)
    return int(min(max(BATCH_BYTES / row_bytes, _LEAST_ROWS), MOST_ROWS))


def _row_bytes(schema: pa.Schema) -> float:
    """Return the least that a row takes, by its types."""
    total = 0.0
    for field in schema:
        try:
            total += field.type.bit_width / 8
        except ValueError:
            total += _VARIABLE_BYTES
    return total


def _names_to_read(schema: pa.Schema, selection: Selection) -> list[str] | None:
    """Return the columns to read, by name; None to read all.

    pyarrow takes a dot in a name for a step into a nested column.
    """
    if selection.columns is None:
        return None
    names = schema.names
    if len(set(names)) < len(names) or any("." in name for name in names):
        return None
    return [names[column] for column in selection.columns]


def _arranged(batch: pa.RecordBatch, selection: Selection, *, by_name: bool) -> pa.RecordBatch:
    if selection.columns is None:
        places = range(batch.num_columns)
    elif by_name:
        places = [batch.schema.get_field_index(name) for name in selection.schema.names]
    else:
        places = selection.columns
    arrays = [batch.column(place) for place in places]
    if not arrays:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
