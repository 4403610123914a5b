"""What our path to Parquet costs: ``python -m splitarrow.benchmarks.studies.parquet``.

All readers are in this process, and take turns; the figures are processor seconds, because other
work on the machine does not change them much. A plain file has numbers and text. A file of points
has a row group for each cell of a grid.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from ...filters import encode_filter
from ...formats.parquet.footer import MAGIC, TAIL_BYTES, wrap_footer
from ...formats.parquet.geo.crs import extension_metadata
from ...formats.parquet.logical_types import Kind, LogicalType
from ...formats.parquet.write_plan import GeoStatistics, WritePlan, read_footer
from ...geo import intersects
from ...protocol.request import Request
from ...server.catalog.dataset import Encoding
from ...server.catalog.files.parquet import ParquetDataset
from ...server.catalog.selection import Selection

_SIDE = 20
"""The number of cells along each axis of the grid."""


def compare_plain(folder: Path, rows: int, rounds: int) -> dict[str, float]:
    """Return the median processor seconds of pyarrow and of our path for a plain file."""
    import pyarrow.parquet as pq

    path = folder / "plain.parquet"
    numbers = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "n": np.arange(rows),
        "x": numbers.random(rows),
        "t": pa.array(np.arange(rows), pa.timestamp("us")),
        "word": [f"word {number % 1000}" for number in range(rows)],
    }
    table: Any = pa.table(columns)
    pq.write_table(table, path, row_group_size=1 << 17)
    file, contents = _open(path)
    file.close()
    batch_rows: int = contents.batch_rows

    def read_alone() -> int:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            return sum(batch.num_rows for batch in file.iter_batches(batch_size=batch_rows))

    figures = _take_turns([read_alone, lambda: _read(path)], rounds)
    return {"pyarrow": figures[0], "splitarrow": figures[1], "ratio": figures[1] / figures[0]}


def measure_box(folder: Path, rows: int) -> dict[str, float]:
    """Return the share of the rows in a box, and the share of the bytes that are read for it."""
    path = folder / "points.parquet"
    metadata: Any = extension_metadata(LogicalType(Kind.GEOMETRY), {})
    schema = pa.schema([pa.field("geom", pa.binary(), metadata=metadata)])
    _write_grid(path, schema, rows // _SIDE**2)
    dataset = ParquetDataset(path)
    text = encode_filter(intersects("geom", (2, 2, 3.999, 3.999)), dataset.schema)
    request = Request("points", filter=text)
    selection = Selection.resolve(request, Encoding(), dataset.schema)
    file, contents = _open(path)
    whole = _count_chunk_bytes(path, None)
    found = read = 0
    for batch, _ in dataset.read_batches(file, contents, selection.for_reading(dataset.schema)):
        read += batch.num_rows
        found += selection.apply_filter(batch).num_rows
    file.close()
    groups = read // (rows // _SIDE**2)
    return {
        "rows in the box": found / rows,
        "bytes read": _count_chunk_bytes(path, groups) / whole,
    }


def _write_grid(path: Path, schema: pa.Schema, points: int) -> None:
    """Write a row group of random points for each cell of the grid."""
    import pyarrow.parquet as pq

    numbers = np.random.default_rng(2)
    plan = WritePlan.of(schema)
    sink = pa.BufferOutputStream()
    statistics: list[dict[int, GeoStatistics]] = []
    with pq.ParquetWriter(sink, plan.schema) as writer:
        for cell in range(_SIDE**2):
            places = numbers.random((points, 2)) + divmod(cell, _SIDE)
            values = [struct.pack("<BIdd", 1, 1, *place) for place in places.tolist()]
            table = pa.table([pa.array(values, pa.binary())], schema=plan.schema)
            writer.write_table(table)
            statistics.append(plan.find_statistics(table))
    data = sink.getvalue().to_pybytes()
    former = read_footer(data)
    body = data[: -TAIL_BYTES - len(former)]
    path.write_bytes(body + wrap_footer(plan.annotate(former, statistics))[len(MAGIC) :])


def _count_chunk_bytes(path: Path, groups: int | None) -> int:
    """Return the size of the first row groups, or of all. All have about the same."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    count = metadata.num_row_groups if groups is None else groups
    return sum(metadata.row_group(group).column(0).total_compressed_size for group in range(count))


def _open(path: Path) -> tuple[Any, Any]:
    dataset = ParquetDataset(path)
    file = dataset.open_file()
    return file, dataset.load_contents(file)


def _read(path: Path) -> int:
    """Return the rows that are read: the server's part of a read, without messages."""
    dataset = ParquetDataset(path)
    file = dataset.open_file()
    try:
        contents = dataset.load_contents(file)
        batches = dataset.read_batches(file, contents, Selection(contents.schema))
        return sum(batch.num_rows for batch, _ in batches)
    finally:
        file.close()


def _take_turns(readers: list[Callable[[], int]], rounds: int) -> list[float]:
    seconds: list[list[float]] = [[] for _ in readers]
    for _ in range(rounds + 1):
        for index, read in enumerate(readers):
            start = time.process_time()
            read()
            seconds[index].append(time.process_time() - start)
    return [median(each[1:]) for each in seconds]


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description="Measure our path to Parquet.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {
            "plain file, processor seconds": compare_plain(folder, options.rows, options.rounds),
            "box of one percent": measure_box(folder, options.rows),
        }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
