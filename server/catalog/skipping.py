"""Leaving out shards in which a filter finds nothing, by the ranges of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...formats.manifest import ShardEntry
from ...formats.ranges import range_scalar
from .filters import RowFilter


def shards_to_read(
    shards: Sequence[ShardEntry], row_filter: RowFilter, schema: pa.Schema
) -> list[ShardEntry]:
    """Return the shards in which a filter may find something, in order.

    Parameters
    ----------
    shards : sequence of ShardEntry
        The shards.
    row_filter : RowFilter
        The filter.
    schema : pyarrow.Schema
        The schema of the shards.
    """
    import pyarrow.dataset as ds  # takes a third of a second
    from pyarrow.fs import LocalFileSystem

    # The expression takes columns by their places, so what is known of them has to as well.
    own = pa.schema([(str(place), kind) for place, kind in enumerate(row_filter.types)])
    try:
        known: Any = ds.FileSystemDataset.from_paths(
            [str(index) for index in range(len(shards))],
            schema=own,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=[_known_of(shard, row_filter, schema) for shard in shards],
        )
        fragments = list(known.get_fragments(filter=row_filter.expression))
    except (pa.ArrowException, ValueError, TypeError):
        return list(shards)  # it says nothing about ranges
    wanted = {int(fragment.path) for fragment in fragments}
    return [shard for index, shard in enumerate(shards) if index in wanted]


def _known_of(shard: ShardEntry, row_filter: RowFilter, schema: pa.Schema) -> Any:
    """Return what holds for every row of a shard, as an expression."""
    known: Any = pc.scalar(True)
    for place, column in row_filter.places.items():
        field = schema.field(column)
        found = shard.columns.get(field.name)
        kind: Any = field.type
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        if found is None or not kind.equals(row_filter.types[place]):
            continue
        minimum: Any = range_scalar(found.minimum, kind)
        maximum: Any = range_scalar(found.maximum, kind)
        if minimum is None or maximum is None:
            continue
        value: Any = pc.field(place)
        between: Any = (value >= pc.scalar(minimum)) & (value <= pc.scalar(maximum))
        known = known & ((between | value.is_null()) if found.nulls else between)
    return known
