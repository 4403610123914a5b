"""One table as every type of dataset, and filters as requests encode them."""

from __future__ import annotations

import decimal
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from helpers.files import write_file, write_parquet, write_stream
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import ServedDataset

DATASET_TYPES = ["file", "stream", "parquet", "table", "arrow directory", "parquet directory"]
ROWS, BATCH_ROWS = 1000, 250


def make_table(rows: int = ROWS) -> pa.Table:
    """Return a table with columns of many types, with nulls."""
    numbers = range(rows)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "f": pa.array([None if n % 7 == 0 else n / 2 for n in numbers], pa.float64()),
            "t": pa.array([None if n % 3 == 0 else f"text {n}" for n in numbers], pa.string()),
            "b": pa.array([n % 2 == 0 for n in numbers]),
            "d": pa.array([f"word {n % 5}" for n in numbers]).dictionary_encode(),
            "m": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
            "l": pa.array([[n, None] if n % 4 else None for n in numbers], pa.list_(pa.int32())),
            "s": pa.array([{"x": n, "y": str(n)} for n in numbers]),
            "w": pa.array(numbers, pa.timestamp("us", "UTC")),
        }
    )


def make_dataset(dataset_type: str, folder: Path, data: pa.Table | None = None) -> ServedDataset:
    """Return a table as a dataset whose batches, row groups or files have BATCH_ROWS rows."""
    data = make_table() if data is None else data
    batches = data.to_batches(max_chunksize=BATCH_ROWS)
    if dataset_type == "file":
        return open_dataset(write_file(folder / "x.arrow", batches))
    if dataset_type == "stream":
        return open_dataset(write_stream(folder / "x.arrows", batches))
    if dataset_type == "parquet":
        return open_dataset(write_parquet(folder / "x.parquet", data, row_group_size=BATCH_ROWS))
    if dataset_type == "table":
        return open_dataset(batches)
    for number, batch in enumerate(batches):
        halves = [batch.slice(0, 100), batch.slice(100)]
        if dataset_type.startswith("arrow"):
            write_file(folder / f"{number}.arrow", halves)
        else:
            write_parquet(folder / f"{number}.parquet", pa.Table.from_batches(halves))
    return open_dataset(folder)


def encode_filter(expression: pc.Expression, schema: pa.Schema) -> str:
    """Return a filter in the encoding of requests."""
    data: Any = expression.to_substrait(schema)
    return urlsafe_b64encode(bytes(data)).decode()
