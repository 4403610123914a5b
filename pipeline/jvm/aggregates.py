"""The aggregates of a query that the manifest of a version answers, without its rows.

A manifest has the exact range of a column in each shard, or none. An aggregate that needs a range
that some shard lacks has no answer here, and Spark reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from ...client.cluster.info import MergedDataset, ReplicaInfo
from ...client.dataset.endpoints import TRANSIENT
from ...client.rpc.info import ShardRanges, read_ranges
from ...errors import SplitArrowError
from ...protocol.request import Request
from ...publication.column_ranges import decode_bound
from ...publication.manifest import ColumnRange, decode_range
from ..casting import CASTING_ERRORS, cast_array
from ..reader import RemoteDataset
from ..types import compares_as_stored

if TYPE_CHECKING:
    from ...client.dataset.client import Client

Aggregate = Mapping[str, str]
"""``function``: ``min``, ``max``, ``count`` or ``rows``; ``column``, except for ``rows``."""


class _UnknownError(Exception):
    """The manifest does not contain the value of an aggregate."""


def compute_aggregates(
    dataset: RemoteDataset,
    merged: MergedDataset,
    aggregates: Sequence[Aggregate],
    target: pa.Schema,
) -> list[Any] | None:
    """Return the values of aggregates over all rows of a version, or None if one is unknown.

    For each aggregate an integer, a text in Spark's internal form (days, microseconds, digits), or
    None for null.
    """
    columns = tuple(dict.fromkeys(each["column"] for each in aggregates if "column" in each))
    if not set(columns) <= {*target.names} & {*merged.info.schema.names}:
        return None
    try:
        shards = _collect_ranges(dataset, merged, columns)
        return [_aggregate(each, shards, merged.info.schema, target) for each in aggregates]
    except (_UnknownError, SplitArrowError, *CASTING_ERRORS):
        return None


def _collect_ranges(
    dataset: RemoteDataset, merged: MergedDataset, columns: tuple[str, ...]
) -> list[ShardRanges]:
    """Read the ranges of all shards, from as few daemons as possible."""
    found: dict[int, ShardRanges] = {}
    for address, replicas in _list_holders(merged).items():
        if replicas.keys() <= found.keys():
            continue
        version = next(iter(replicas.values())).version
        request = Request(dataset.name, columns=columns or None, version=version)
        try:
            with replace(dataset, uri=address).connect() as client:
                # One address has no other client.
                ranges = read_ranges(cast("Client", client).channel, request)
        except TRANSIENT:
            continue
        for index, replica in replicas.items():
            if (replica.shard or 0) in ranges:
                found[index] = ranges[replica.shard or 0]
    if len(found) < len(merged.replicas):
        raise _UnknownError
    return list(found.values())


def _list_holders(merged: MergedDataset) -> dict[str, dict[int, ReplicaInfo]]:
    holders: dict[str, dict[int, ReplicaInfo]] = {}
    for index, replicas in enumerate(merged.replicas):
        for replica in replicas:
            holders.setdefault(replica.address, {})[index] = replica
    return holders


def _aggregate(
    aggregate: Aggregate, shards: Sequence[ShardRanges], source: pa.Schema, target: pa.Schema
) -> Any:
    function = aggregate["function"]
    if function == "rows":
        return sum(shard.rows for shard in shards)
    name = aggregate["column"]
    ranges = [(shard.rows, _find_range(shard, name)) for shard in shards if shard.rows]
    if function == "count":
        return sum(rows - column.nulls for rows, column in ranges)
    if not compares_as_stored(source.field(name)):
        raise _UnknownError
    bounds = [
        _decode(column.minimum if function == "min" else column.maximum, source.field(name).type)
        for rows, column in ranges
        if column.nulls < rows
    ]
    if not bounds:
        return None
    found: Any = pc.min_max(pa.array(bounds, bounds[0].type))[function]
    return _encode(cast_array(pa.array([found], found.type), target.field(name).type)[0])


def _find_range(shard: ShardRanges, name: str) -> ColumnRange:
    if name not in shard.columns:
        raise _UnknownError
    return decode_range(shard.columns[name])


def _decode(bound: Any, data_type: pa.DataType) -> pa.Scalar[Any]:
    value = decode_bound(bound, data_type)
    if value is None:
        raise _UnknownError
    return value


def _encode(value: Any) -> Any:
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
    raise _UnknownError
