"""The rows of the Spark benchmark: int64, float64, int32 and string, in Arrow IPC files.

A second dataset has many columns of float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..formats.arrow.file_writer import AlignedFileWriter
from ..publication.manifest import ShardEntry
from ..publication.version_store import VersionStore

_BATCH_ROWS = 1 << 16
_CARRIERS = np.array([f"carrier {index:03}" for index in range(1000)])
SCHEMA = pa.schema(
    {"id": pa.int64(), "delay": pa.float64(), "airport": pa.int32(), "carrier": pa.string()}
)


def publish_shards(folder: Path, rows: int, shards: int) -> None:
    """Publish a dataset with a number of rows, divided evenly among Arrow IPC files."""
    random = np.random.default_rng(1)
    shard_rows = -(-rows // shards)
    ranges = ((min(rows, n * shard_rows), min(rows, (n + 1) * shard_rows)) for n in range(shards))
    _publish(folder, SCHEMA, (_batches(random, begin, end) for begin, end in ranges))


def publish_wide(folder: Path, rows: int, shards: int, columns: int) -> None:
    """Publish a dataset with columns of float64, whose names are ``c0``, ``c1`` and so on."""
    random = np.random.default_rng(2)
    names = [f"c{index}" for index in range(columns)]
    schema = pa.schema({name: pa.float64() for name in names})
    parts = (
        pa.table([pa.array(random.random(-(-rows // shards))) for _ in names], schema=schema)
        for _ in range(shards)
    )
    _publish(folder, schema, (part.to_batches(_BATCH_ROWS) for part in parts))


def _publish(folder: Path, schema: pa.Schema, shards: Iterable[Iterable[pa.RecordBatch]]) -> None:
    store = VersionStore(folder)
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[ShardEntry] = []
    for index, batches in enumerate(shards):
        path = folder / f"{index:05}.arrow"
        writer = AlignedFileWriter(schema)
        with path.open("wb") as file:
            file.writelines(writer.begin())
            for batch in batches:
                file.writelines(writer.add(batch))
            file.writelines(writer.end())
        entries.append(store.stage_file("benchmark", path.name, path)[1])
    store.commit("benchmark", schema, entries, append=False)


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
