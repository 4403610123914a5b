"""The rows of a benchmark's file as a Parquet file, for the backends that serve Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ..dataset import Dataset


def write_parquet(dataset: Dataset, name: str) -> Path:
    """Write the rows of a file as Parquet, with pyarrow's default encodings and compression.

    Each record batch becomes a row group. The file lies beside the other one.
    """
    from pyarrow import parquet

    path = Path(dataset.path).with_name(f"{name}.parquet")
    with pa.memory_map(dataset.path) as source:
        table = pa.ipc.open_file(source).read_all()
        parquet.write_table(table, path, row_group_size=dataset.batch_rows)
    return path
