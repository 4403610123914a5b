"""What a manifest states of the shards of a version, and which of them a query needs.

A manifest has the exact range of a column in each shard, or none. A shard that lacks the range that
a decision needs is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st

from ...errors import SplitArrowError
from ...filters import decode_filter
from ...filters.binding import bind
from ...filters.ranges import Range, decide, to_bound
from ...filters.tree import list_columns
from ...formats.nested_fields import choose_fields, extend_schema
from ...publication.column_ranges import decode_bound, find_range
from ...publication.manifest import ColumnRange
from ..casting import CASTING_ERRORS, cast_array
from ..reader import pack_shards
from ..types import arrow_schema, compares_as_stored

_MAX_COMPARISONS = 1_000_000
"""Above this number of values in a filter times shards, a filter skips no shard."""


class UnknownError(Exception):
    """The manifest does not contain what is needed."""


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """What a manifest states of one shard."""

    rows: int
    """The number of rows."""
    columns: Mapping[str, ColumnRange]
    """The ranges of columns, by name."""

    def find(self, name: str) -> ColumnRange:
        """Return the range of a column; raise `UnknownError` if there is none."""
        if name not in self.columns:
            raise UnknownError
        return self.columns[name]

    def is_null(self, name: str) -> bool:
        """Return whether each value of a column is null."""
        return name in self.columns and self.columns[name].nulls == self.rows


@dataclass(frozen=True, slots=True)
class Order:
    """The first column of a sort order, and the number of rows that a query needs of it."""

    column: str
    """The name of the column."""
    descending: bool
    """Whether the largest values come first."""
    nulls_first: bool
    """Whether nulls come before all values."""
    rows: int
    """The number of rows."""

    def is_after(self, one: Any, other: Any) -> bool:
        """Return whether a key comes after another."""
        return one < other if self.descending else one > other

    def make_key(self, value: Any) -> tuple[int, Any]:
        """Return the key of a value, or of null."""
        is_null = value is None
        return int(is_null != (self.nulls_first != self.descending)), 0 if is_null else value


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """The statistics of all shards of a version, read when they are needed."""

    source: pa.Schema
    """The columns of the dataset."""
    target: pa.Schema
    """The columns with simple types, as Spark reads them."""
    read: Callable[[Sequence[str]], Sequence[ShardStatistics]]
    """Returns the statistics of all shards, in order, with the ranges of some columns; raises
    `UnknownError` or `SplitArrowError`."""

    def select(self, filter: str | None, order: Order | None) -> list[int] | None:
        """Return the positions of the shards that may have rows of a query; None for all."""
        try:
            if filter is not None:
                found = enumerate(self.decide(filter))
                return [index for index, decision in found if decision is not False]
            return None if order is None else self._select_first(order)
        except (UnknownError, SplitArrowError):
            return None

    def decide(self, filter: str) -> list[bool | None]:
        """Return for each shard whether a filter selects all rows, none (False), or some (None).

        Raises `UnknownError` or `SplitArrowError` if the ranges are not known.
        """
        tree = decode_filter(filter)
        names = list_columns(tree)
        schema = extend_schema(self.source, choose_fields(self.source, names))
        condition = bind(tree, schema)
        shards = self.read(names)
        if len(filter) * len(shards) > 16 * _MAX_COMPARISONS:
            raise UnknownError
        return [
            decide(condition, lambda index, shard=shard: self._make_range(shard, schema, index))
            for shard in shards
        ]

    def _make_range(self, shard: ShardStatistics, schema: pa.Schema, index: int) -> Range:
        field = schema.field(index)
        if index < len(self.source) and shard.is_null(field.name):
            return Range(nulls=True, values=False)
        return find_range(shard.columns, field)

    def _select_first(self, order: Order) -> list[int]:
        """Return the shards that may have one of the first rows."""
        shards = self.read([order.column])
        blocks = [self._find_blocks(shard, order) for shard in shards]
        known = [block for each in blocks for block in each or ()]
        known.sort(key=lambda block: block[1], reverse=order.descending)
        rows = 0
        for _, last, count in known:
            rows += count
            if rows >= order.rows:
                # So many rows come no later than this key, so that the first ones do.
                return [
                    index
                    for index, each in enumerate(blocks)
                    if each is None or not all(order.is_after(first, last) for first, _, _ in each)
                ]
        raise UnknownError

    def _find_blocks(
        self, shard: ShardStatistics, order: Order
    ) -> list[tuple[tuple[int, Any], tuple[int, Any], int]] | None:
        """Return the first key, the last key and the number of the nulls, and of the values.

        Return None if they are unknown.
        """
        if order.column not in shard.columns:
            return None
        nulls = shard.columns[order.column].nulls
        blocks = [(order.make_key(None), order.make_key(None), nulls)] if nulls else []
        if nulls < shard.rows:
            try:
                bounds = [to_bound(each) for each in self.find_bounds(shard, order.column)]
            except UnknownError:
                return None
            if None in bounds:
                return None
            first, last = map(order.make_key, reversed(bounds) if order.descending else bounds)
            blocks.append((first, last, shard.rows - nulls))
        return blocks

    def find_bounds(self, shard: ShardStatistics, name: str) -> tuple[Any, Any]:
        """Return the smallest and the largest value of a column, as Spark reads them.

        Raises `UnknownError` if they are not known.
        """
        found = shard.find(name)
        return self.convert(name, found.minimum), self.convert(name, found.maximum)

    def convert(self, name: str, bound: Any) -> Any:
        """Return a minimum or maximum of a column as a scalar of the type that Spark reads.

        Raises `UnknownError` if it is not known.
        """
        field = self.source.field(name)
        value = decode_bound(bound, field.type)
        if value is None or name not in self.target.names or not compares_as_stored(field):
            raise UnknownError
        try:
            return cast_array(pa.array([value], value.type), self.target.field(name).type)[0]
        except CASTING_ERRORS:
            raise UnknownError from None


PartitionKeys = Sequence[tuple[Any, ...] | None]
"""For each shard, the only value of each column by which a dataset is partitioned; None if it has
no rows."""


def simple_schema(schema: st.StructType) -> pa.Schema:
    """Return the columns that have an order, with the types that Spark gives them."""
    simple = (st.AtomicType, st.NumericType)
    return arrow_schema(
        st.StructType([field for field in schema if isinstance(field.dataType, simple)])
    )


def read_order(values: Mapping[str, Any]) -> Order | None:
    """Return the sort order of a request; None if it has none."""
    top = values.get("top")
    return None if top is None else Order(**top)


def divide(
    chosen: Sequence[int],
    sizes: Sequence[int | None],
    shards_per_task: int | None,
    values: Mapping[str, Any],
    keys: PartitionKeys | None = None,
) -> list[list[int]]:
    """Divide chosen shards among tasks, by the settings of a request; see `pack_shards`.

    With keys, the shards of a task have the same key, and shards without rows have no task.
    """
    settings = [values[name] for name in ("parallelism", "max_bytes", "open_bytes")]
    groups: dict[Any, list[int]] = {}
    for index in chosen:
        key = None if keys is None else keys[index]
        if keys is None or key is not None:
            groups.setdefault(key, []).append(index)
    return [
        [members[position] for position in task]
        for members in groups.values()
        for task in pack_shards([sizes[index] for index in members], shards_per_task, *settings)
    ]
