"""The rows of the Spark benchmark: int64, float64, int32 and string, in Arrow IPC files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..formats.arrow.aligned import AlignedFileWriter

_BATCH_ROWS = 1 << 16
_CARRIERS = np.array([f"carrier {index:03}" for index in range(1000)])
SCHEMA = pa.schema(
    {"id": pa.int64(), "delay": pa.float64(), "airport": pa.int32(), "carrier": pa.string()}
)


def write_shards(folder: Path, rows: int, shards: int) -> None:
    """Write rows to a new folder, divided evenly among Arrow IPC files.

    Parameters
    ----------
    folder : Path
        The folder to create.
    rows : int
        The number of rows of all files.
    shards : int
        The number of files.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    shard_rows = -(-rows // shards)
    for index in range(shards):
        begin = min(rows, index * shard_rows)
        end = min(rows, begin + shard_rows)
        writer = AlignedFileWriter(SCHEMA)
        with (folder / f"{index:05}.arrow").open("wb") as file:
            file.writelines(writer.begin())
            for batch in _batches(random, begin, end):
                file.writelines(writer.add(batch))
            file.writelines(writer.end())


def _batches(random: np.random.Generator, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    for first in range(begin, end, _BATCH_ROWS):
        ids = np.arange(first, min(end, first + _BATCH_ROWS))
        count = len(ids)
        columns = [
            pa.array(ids),
            pa.array(random.random(count)),
            pa.array(random.integers(0, 1 << 30, count, dtype=np.int32)),
            pa.array(_CARRIERS[random.integers(0, len(_CARRIERS), count)].tolist(), pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
