"""Reading with Spark: one task for each shard of one version, filters done by the daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..client.described import DatasetInfo
from ..errors import UsageError
from .filters import PushedFilter, columns_of, expression_for, pushed_filter
from .options import TLS_NAMES, Options
from .reading import Origin, Portion, batches
from .types import arrow_schema, check_readable, spark_schema

OPTIONS = (
    "uri",
    "dataset",
    "columns",
    "limit",
    "version",
    "transport",
    "shards_per_partition",
    "pushdown",
    "filter",
    "window_bytes",
    "connect_timeout",
    "stall_timeout",
    "token",
    *(f"tls_{name}" for name in TLS_NAMES),
    "path",
)
"""What ``spark.read`` takes; ``path`` is what ``load(...)`` is given, and means ``dataset``."""

_SCOPED = hasattr(ds.DataSourceReader, "pushLimit")
"""Whether Spark keeps pushed filters to the query that has them.

Up to version 4.3 another query of the same DataFrame gets them as well, and too few rows.
"""


class PortionPartition(ds.InputPartition):
    """A portion, as Spark wants it."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(portion)


def origin_of(options: Options) -> Origin:
    """Return where the options say that the data is.

    Raises
    ------
    UsageError
        If an option is wrong or missing.
    """
    defaults = Origin("", "")
    return Origin(
        uri=options.needed("uri", "grpc://host:8815"),
        dataset=options.text("path") or options.needed("dataset", "flights"),
        token=options.token(),
        tls=options.tls(),
        transport=options.text("transport") or defaults.transport,
        connect_timeout=options.seconds("connect_timeout", defaults.connect_timeout),
        stall_timeout=options.seconds("stall_timeout", defaults.stall_timeout),
        window_bytes=options.nbytes("window_bytes", defaults.window_bytes) or 0,
    )


def schema_of(info: DatasetInfo, columns: Sequence[str] | None) -> st.StructType:
    """Return the Spark schema of some columns of a dataset, in their order; None: all.

    Raises
    ------
    UsageError
        If there is no such column.
    InvalidDataError
        If Spark cannot hold one.
    """
    found = info.schema
    if columns is not None:
        missing = [name for name in columns if name not in found.names]
        if missing:
            raise UsageError(
                f"{info.name!r} has no column {missing[0]!r}; it has {', '.join(found.names)}"
            )
        found = pa.schema([found.field(name) for name in columns])
    return spark_schema(found)


def ordinals(info: DatasetInfo) -> list[int]:
    """Return what the shards of a dataset are asked for by."""
    return [
        place if endpoint.ordinal is None else endpoint.ordinal
        for place, endpoint in enumerate(info.endpoints)
    ]


def portions(
    info: DatasetInfo, shards: Sequence[int], per_partition: int, limit: int | None
) -> list[Portion]:
    """Return what the tasks read.

    Parameters
    ----------
    info : DatasetInfo
        What the control plane told.
    shards : sequence of int
        The ordinals of the shards that are wanted.
    per_partition : int
        How many of them one task reads.
    limit : int or None
        How many rows are wanted in all: then one task reads everything in order.
    """
    if limit is not None:
        return [Portion(info.version, None, limit)]
    if len(info.endpoints) == 1 and shards:
        return [Portion(info.version, None)]
    return [
        Portion(info.version, tuple(shards[begin : begin + per_partition]))
        for begin in range(0, len(shards), per_partition)
    ]


class ShardReader(ds.DataSourceReader):
    """Plans a read, and reads portions. It is pickled from the driver to the tasks.

    Parameters
    ----------
    options : Options
        What the user said.
    schema : pyspark.sql.types.StructType
        The columns to read.
    version : str or None
        The version to read; None: the one that is there.
    """

    def __init__(self, options: Options, schema: st.StructType, version: str | None) -> None:
        check_readable(schema)
        self._origin = origin_of(options)
        self._target = arrow_schema(schema)
        self._version = options.text("version") or version
        self._limit = options.count("limit", least=0)
        self._per_partition = options.count("shards_per_partition", 1) or 1
        self._pushdown = options.flag("pushdown", _SCOPED)
        text = options.text("filter")
        self._filter = None if text is None else PushedFilter.from_text(text)
        # PySpark refuses readers that override the method while the setting is off. Who has
        # not switched it on is to get all rows, and Spark filters them.
        self.pushFilters: Any = _Pushed(self)

    def take_filters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Take the filters that the daemon can apply; return the others."""
        if not self._pushdown or self._limit is not None or self._filter is not None:
            return filters
        taken: list[tuple[Any, list[str]]] = []
        left: list[ds.Filter] = []
        for found in filters:
            expression = expression_for(found, self._target)
            if expression is None:
                left.append(found)
            else:
                taken.append((expression, columns_of(found)))
        if taken:
            self._filter = pushed_filter(taken, self._target)
        return left

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Return one partition for each shard, or for as many as the option says."""
        info = self._origin.info(self._version)
        found = portions(info, ordinals(info), self._per_partition, self._limit)
        return [PortionPartition(portion) for portion in found]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, PortionPartition):
            return iter(())  # PySpark's own, for a dataset without shards
        return batches(self._origin, partition.value, self._filter, self._target)


class _Pushed:
    """The method ``pushFilters`` of a reader; PySpark takes it for one that is not overridden."""

    def __init__(self, reader: ShardReader) -> None:
        self.__func__ = ds.DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        return self._reader.take_filters(filters)
