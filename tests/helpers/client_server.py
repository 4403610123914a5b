"""The data that the tests of the client read."""

from __future__ import annotations

import pyarrow as pa

SHARDS = 7
SHARD_ROWS = 2000


def split(table: pa.Table) -> list[pa.Table]:
    """Split a table into shards of `SHARD_ROWS` rows."""
    return [table.slice(first, SHARD_ROWS) for first in range(0, SHARDS * SHARD_ROWS, SHARD_ROWS)]
