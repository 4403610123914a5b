"""Publishing tables, and reading versions without a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from splitarrow.publication.manifest import Manifest, ShardEntry
from splitarrow.publication.version_store import VersionStore


def numbers(begin: int, rows: int = 10) -> pa.Table:
    """Return a table with consecutive numbers and texts."""
    n = range(begin, begin + rows)
    return pa.table(
        {"n": pa.array(n, pa.int64()), "text": pa.array([f"row {i}" for i in n], pa.string())}
    )


def stage(store: VersionStore, job: str, tables: Iterable[pa.Table]) -> list[ShardEntry]:
    """Write each table as a staged shard of a job."""
    return [
        store.write_shard(job, f"{index:05d}.arrow", table.schema, table.to_batches())
        for index, table in enumerate(tables)
    ]


def publish(
    store: VersionStore, job: str, *tables: pa.Table, append: bool = False, **options: Any
) -> Manifest:
    """Publish each table as a shard of one job."""
    return store.commit(job, tables[0].schema, stage(store, job, tables), append=append, **options)


def read_version(store: VersionStore, manifest: Manifest | None) -> pa.Table:
    """Return the rows of all shards of a version."""
    assert manifest is not None
    tables: list[pa.Table] = []
    for shard in manifest.shards:
        with store.open_shard(shard) as file, pa.ipc.open_file(file) as reader:
            tables.append(reader.read_all())
            assert tables[-1].num_rows == shard.rows
    return pa.concat_tables(tables)
