"""Write record batches to a Parquet file, with every annotation that its format demands."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import variant
from ..errors import ProtocolError, UsageError
from ..formats.parquet.footer import MAGIC, TAIL_BYTES, read_footer_size
from ..formats.parquet.variant_footer import find_variant_paths
from ..formats.parquet.writing import GeoStatistics, WritePlan, find_statistics

_ROW_GROUP_ROWS = 1 << 20
_ROW_GROUP_BYTES = 128 << 20
"""The size at which a row group is written. Until then it is kept in memory."""


class ParquetSink:
    """Writes a Parquet file, with several batches in a row group; see `Sink`.

    Parameters
    ----------
    file : pyarrow.NativeFile
        The file. The sink closes it.
    schema : pyarrow.Schema
        The schema of all batches.
    path : Path
        The path of the file, to annotate its footer at the end.
    """

    def __init__(self, file: pa.NativeFile, schema: pa.Schema, path: Path) -> None:
        import pyarrow.parquet as pq

        self._file = file
        self._path = path
        self._variants = find_variant_paths(schema)
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._statistics: list[dict[int, GeoStatistics]] = []
        try:
            self._plan = WritePlan.of(schema)
            self._writer: Any = pq.ParquetWriter(
                file, self._plan.schema, write_statistics=self._plan.statistics
            )
            if self._plan.key_values:
                self._writer.add_key_value_metadata(dict(self._plan.key_values))
        except (pa.ArrowException, ProtocolError) as error:
            raise self._unsupported(error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.get_total_buffer_size()
        if self._pending_rows >= _ROW_GROUP_ROWS or self._pending_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        pending = self._pending
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        try:
            batches = [self._plan.convert(batch) for batch in pending]
            group = pa.Table.from_batches(batches, self._plan.schema)
            for start in range(0, max(group.num_rows, 1), _ROW_GROUP_ROWS):
                part = group.slice(start, _ROW_GROUP_ROWS)
                statistics = {
                    index: find_statistics(part.column(index), edges)
                    for index, edges in self._plan.geospatial.items()
                }
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
        self._writer.close()
        self._file.close()
        try:
            self._annotate()
            if self._variants:
                variant.annotate(self._path, self._variants)
        except (pa.ArrowException, ProtocolError) as error:
            raise self._unsupported(error) from None

    def abort(self) -> None:
        """Close the file."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()  # a finalizer would write to a closed file
        with suppress(OSError, pa.ArrowException):
            self._file.close()

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
