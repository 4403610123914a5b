"""The aggregates of a query that the manifest of a version answers, without its rows.

An aggregate that needs a range that some shard lacks has no answer here, and Spark reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import SplitArrowError
from ..shards import partition_columns
from .pruning import PartitionKeys, ShardStatistics, UnknownError, VersionStatistics

Aggregate = Mapping[str, str]
"""``function``: ``min``, ``max``, ``count`` or ``rows``; ``column``, except for ``rows``."""
Value = Any
"""An integer, a text in Spark's internal form (days, microseconds, digits), or None for null."""


def compute_aggregates(
    statistics: VersionStatistics,
    aggregates: Sequence[Aggregate],
    groups: Sequence[str] = (),
    filter: str | None = None,
) -> list[list[Value]] | None:
    """Return the values of aggregates over the rows that a filter selects, or None if unknown.

    Return a row for each group: the values of the columns `groups`, and then the aggregates. Each
    shard must be in one group. Without groups, there is one row.
    """
    named = [each["column"] for each in aggregates if "column" in each]
    columns = list(dict.fromkeys([*groups, *named]))
    if not set(columns) <= {*statistics.target.names} & {*statistics.source.names}:
        return None
    try:
        shards = [shard for shard in statistics.read(columns) if shard.rows]
        if filter is not None:
            shards = _filter(statistics, columns, filter)
        grouped: dict[tuple[Value, ...], list[ShardStatistics]] = {} if groups else {(): []}
        for shard in shards:
            grouped.setdefault(find_key(statistics, shard, groups), []).append(shard)
        return [
            [*key, *(_aggregate(statistics, each, members) for each in aggregates)]
            for key, members in grouped.items()
        ]
    except (UnknownError, SplitArrowError):
        return None


def _filter(
    statistics: VersionStatistics, columns: Sequence[str], filter: str
) -> list[ShardStatistics]:
    """Return the shards that a filter selects as a whole, if it selects a part of none."""
    pairs = zip(statistics.read(columns), statistics.decide(filter), strict=True)
    known = [(shard, decision) for shard, decision in pairs if shard.rows]
    if any(decision is None for _, decision in known):
        raise UnknownError
    return [shard for shard, decision in known if decision]


def find_keys(statistics: VersionStatistics) -> PartitionKeys | None:
    """Return the keys of the shards of a partitioned dataset; None if a shard may have several.

    Floating-point numbers are no keys, because 0.0 equals -0.0.
    """
    names = partition_columns(statistics.source)
    if not names or not set(names) <= {*statistics.target.names}:
        return None
    if any(pa.types.is_floating(statistics.target.field(name).type) for name in names):
        return None
    try:
        shards = statistics.read(names)
        return [find_key(statistics, each, names) if each.rows else None for each in shards]
    except (UnknownError, SplitArrowError):
        return None


def find_key(
    statistics: VersionStatistics, shard: ShardStatistics, names: Sequence[str]
) -> tuple[Value, ...]:
    """Return the only value of each of some columns in a shard.

    Raises `UnknownError` if a column may have several.
    """
    return tuple(_find_only_value(statistics, shard, name) for name in names)


def _find_only_value(statistics: VersionStatistics, shard: ShardStatistics, name: str) -> Value:
    if shard.is_null(name):
        return None
    minimum, maximum = statistics.find_bounds(shard, name)
    if shard.find(name).nulls or minimum != maximum:
        raise UnknownError
    if pa.types.is_floating(minimum.type):
        return _encode(pa.scalar(minimum.as_py() + 0.0, minimum.type))  # Spark groups -0.0 with 0.0
    return _encode(minimum)


def _aggregate(
    statistics: VersionStatistics, aggregate: Aggregate, shards: Sequence[ShardStatistics]
) -> Value:
    function = aggregate["function"]
    if function == "rows":
        return sum(shard.rows for shard in shards)
    name = aggregate["column"]
    ranges = [(shard.rows, shard.find(name)) for shard in shards]
    if function == "count":
        if _hides_nulls(statistics.source.field(name).type):
            raise UnknownError
        return sum(rows - column.nulls for rows, column in ranges)
    bounds = [
        statistics.convert(name, column.minimum if function == "min" else column.maximum)
        for rows, column in ranges
        if column.nulls < rows
    ]
    if not bounds:
        return None
    found: Any = pc.min_max(pa.array(bounds, bounds[0].type))[function]
    return _encode(found)


def _hides_nulls(data_type: Any) -> bool:
    """Return whether arrays of a type do not count their nulls, which their children have."""
    if isinstance(data_type, pa.BaseExtensionType):
        return _hides_nulls(data_type.storage_type)
    return pa.types.is_run_end_encoded(data_type) or pa.types.is_union(data_type)


def _encode(value: Any) -> Value:
    """Return a value of a column as text in Spark's internal form."""
    data_type = value.type
    if pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type):
        return str(value.value)
    if pa.types.is_floating(data_type):
        return repr(float(value.as_py()))
    if pa.types.is_decimal(data_type) or pa.types.is_integer(data_type):
        return str(value.as_py())
    if pa.types.is_string(data_type):
        return value.as_py()
    raise UnknownError
