"""Published datasets for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from splitarrow.formats.manifest import Manifest, ShardEntry
from splitarrow.server.catalog.versions import VersionStore


def numbers(begin: int, rows: int = 10) -> pa.Table:
    """A table of the numbers from `begin` on, and texts."""
    n = range(begin, begin + rows)
    return pa.table(
        {"n": pa.array(n, pa.int64()), "text": pa.array([f"row {i}" for i in n], pa.string())}
    )


def staged(store: VersionStore, job: str, tables: Iterable[pa.Table]) -> list[ShardEntry]:
    """Write each table as a shard of a job."""
    return [
        store.write_shard(job, f"{index:05d}.arrow", table.schema, table.to_batches())
        for index, table in enumerate(tables)
    ]


def publish(
    store: VersionStore, job: str, *tables: pa.Table, append: bool = False, **options: Any
) -> Manifest:
    """Publish tables as the shards of one job."""
    return store.commit(job, tables[0].schema, staged(store, job, tables), append=append, **options)


def content(store: VersionStore, manifest: Manifest | None) -> pa.Table:
    """Read all shards of a version, without a server."""
    assert manifest is not None
    tables: list[pa.Table] = []
    for shard in manifest.shards:
        with store.open_shard(shard) as file, pa.ipc.open_file(file) as reader:
            tables.append(reader.read_all())
            assert tables[-1].num_rows == shard.rows
    return pa.concat_tables(tables)
