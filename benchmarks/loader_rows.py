"""The rows of the benchmark of loaders: 20 columns of numbers, and their checksums.

All values are multiples of 1/1024 below 1024, so sums of them in float64 are exact in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..formats.arrow.file_writer import AlignedFileWriter

BATCH_ROWS = 4096
"""The rows of each batch that a loader yields."""
SHARDS = 8
"""The files of each format."""
ROW = "row"
"""The column with the number of the row."""
KINDS = {
    ROW: "int64",
    **{f"f{index:02}": "float32" for index in range(10)},
    **{f"d{index:02}": "float64" for index in range(4)},
    **{f"l{index:02}": "int64" for index in range(3)},
    **{f"i{index:02}": "int32" for index in range(2)},
}
"""The NumPy type of each of the 20 columns; a row has 112 bytes."""

_RECORD_BATCH_ROWS = 1 << 16
_WEIGHTS = 1021
_VALUES = 1 << 20
_UNIT = 1024

Columns = dict[str, Any]
"""NumPy arrays by the names of their columns."""


def make_shards(rows: int) -> Iterator[Columns]:
    """Yield the columns of each shard. Equal numbers of rows give equal columns."""
    random = np.random.default_rng(1)
    count = rows // SHARDS
    for shard in range(SHARDS):
        columns: Columns = {ROW: np.arange(shard * count, (shard + 1) * count)}
        for name, kind in list(KINDS.items())[1:]:
            values = random.integers(0, _VALUES, count)
            columns[name] = (values / _UNIT if kind.startswith("f") else values // _UNIT).astype(
                kind
            )
        yield columns


def checksum(columns: Columns) -> dict[str, float]:
    """Return a sum of each column in which every row has a weight that follows from its number.

    A row that is missing, repeated or put together from two rows changes the sum.
    """
    weights = (np.asarray(columns[ROW]) % _WEIGHTS).astype(np.float64)
    return {name: float(np.asarray(columns[name], np.float64) @ weights) for name in KINDS}


def add_checksums(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Return the checksums of the rows of both."""
    return {name: first.get(name, 0.0) + value for name, value in second.items()}


def batches_of(columns: Columns) -> Iterator[Columns]:
    """Yield the rows of a shard in batches of `BATCH_ROWS`."""
    for begin in range(0, len(columns[ROW]), BATCH_ROWS):
        yield {name: values[begin : begin + BATCH_ROWS] for name, values in columns.items()}


def write_arrow(folder: Path, rows: int) -> None:
    """Write the rows as Arrow IPC files, which splitarrow and pyarrow read."""
    folder.mkdir()
    for index, columns in enumerate(make_shards(rows)):
        table = pa.table(columns)
        writer = AlignedFileWriter(table.schema)
        with (folder / f"{index:05}.arrow").open("wb") as file:
            file.writelines(writer.begin())
            for batch in table.to_batches(_RECORD_BATCH_ROWS):
                file.writelines(writer.add(batch))
            file.writelines(writer.end())


def write_parquet(folder: Path, rows: int) -> None:
    """Write the rows as Parquet files, with pyarrow's default compression."""
    from pyarrow import parquet

    folder.mkdir()
    for index, columns in enumerate(make_shards(rows)):
        path = folder / f"{index:05}.parquet"
        parquet.write_table(pa.table(columns), path, row_group_size=_RECORD_BATCH_ROWS)


def drop_from_page_cache(folder: Path) -> None:
    """Write the files of a folder to the disk, and drop their pages that no process maps."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
