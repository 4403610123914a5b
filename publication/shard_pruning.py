"""Shard pruning: skipping shards in which a filter cannot match, by the ranges of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..formats.parquet.geo.boxes import Box
from ..formats.parquet.geo.conditions import BoxCondition, may_match
from .column_ranges import decode_bound
from .manifest import ShardEntry


def prune_shards(
    shards: Sequence[ShardEntry],
    schema: pa.Schema,
    expression: Any,
    columns: Mapping[int, int],
    types: Sequence[Any],
) -> list[ShardEntry]:
    """Return the shards in which a filter may match, in order.

    Arrow's dataset scanner evaluates the filter: each shard becomes a fragment whose partition
    expression states the ranges of its columns. No file is opened.

    `expression`: It refers to columns by field number.
    """
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow.fs import LocalFileSystem

    # The expression refers to fields by number, so the names only have to be unique.
    fields = pa.schema([(str(number), data_type) for number, data_type in enumerate(types)])
    try:
        dataset: Any = ds.FileSystemDataset.from_paths(
            [str(index) for index in range(len(shards))],
            schema=fields,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=[_state_ranges(shard, schema, columns, types) for shard in shards],
        )
        fragments = list(dataset.get_fragments(filter=expression))
    except (pa.ArrowException, ValueError, TypeError):
        return list(shards)  # Arrow cannot compare this expression with ranges
    matching = {int(fragment.path) for fragment in fragments}
    return [shard for index, shard in enumerate(shards) if index in matching]


def prune_by_boxes(
    shards: Sequence[ShardEntry], conditions: Sequence[BoxCondition], geographies: frozenset[str]
) -> list[ShardEntry]:
    """Return the shards whose boxes allow rows that fulfill all conditions, in order."""
    return [shard for shard in shards if may_match(conditions, _list_boxes(shard, geographies))]


def _list_boxes(shard: ShardEntry, geographies: frozenset[str]) -> dict[str, tuple[Box, bool]]:
    return {
        name: (Box(*column.box), name in geographies)
        for name, column in shard.columns.items()
        if column.box is not None
    }


def _state_ranges(
    shard: ShardEntry, schema: pa.Schema, columns: Mapping[int, int], types: Sequence[Any]
) -> Any:
    """Return an expression that is true for every row of a shard."""
    statement: Any = pc.scalar(True)
    for number, index in columns.items():
        field = schema.field(index)
        column = shard.columns.get(field.name)
        data_type: Any = field.type
        if isinstance(data_type, pa.DictionaryType):
            data_type = data_type.value_type
        if column is None or not data_type.equals(types[number]):
            continue
        minimum: Any = decode_bound(column.minimum, data_type)
        maximum: Any = decode_bound(column.maximum, data_type)
        if minimum is None or maximum is None:
            continue
        value: Any = pc.field(number)
        above: Any = value >= pc.scalar(minimum)
        below: Any = value <= pc.scalar(maximum)
        if column.nulls:
            # Arrow understands a comparison or a null, but not a range or a null.
            above, below = above | value.is_null(), below | value.is_null()
        statement = statement & above & below
    return statement
