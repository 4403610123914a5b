"""Batch reads: the driver plans one task per shard of one version, and each task reads its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ...client.rpc.info import DatasetInfo
from ...errors import UsageError
from ..options import TLS_OPTIONS, Options
from ..portable import Portable
from ..types import arrow_schema, check_readable, spark_schema
from .filters import PushedFilter, combine_filters, referenced_columns, translate_filter
from .read_task import ReadTask, plan_read, read_batches, shard_ordinals
from .remote_dataset import RemoteDataset

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
    *TLS_OPTIONS,
    "path",
    "reader",
    "memory_limit",
    "folder",
)
"""The options of ``spark.read``. ``path``, the argument of ``load(...)``, means ``dataset``.

The last three are those of the reader in the JVM.
"""
READERS = ("auto", "jvm", "python")
"""The values of the option ``reader``."""

_PUSHDOWN_IS_SAFE = hasattr(ds.DataSourceReader, "pushLimit")
"""Whether Spark keeps the pushed filters of a query apart from other queries of the DataFrame.

Up to version 4.3 the other queries apply those filters as well, and miss rows.
"""


class ReadPartition(ds.InputPartition):
    """A read task as a partition of Spark."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


class DatasetReader(Portable, ds.DataSourceReader):
    """Plans a read on the driver, and reads partitions in the tasks. Spark pickles it for them.

    Parameters
    ----------
    options : Options
        The options of ``spark.read``.
    schema : pyspark.sql.types.StructType
        The columns to read.
    version : str or None
        The version to read if the options name none; None reads the current version.
    """

    def __init__(self, options: Options, schema: st.StructType, version: str | None) -> None:
        check_readable(schema)
        self._dataset = RemoteDataset.from_options(options)
        self._schema = arrow_schema(schema)
        self._version = options.text("version") or version
        self._limit = options.count("limit", minimum=0)
        self._shards_per_task = options.count("shards_per_partition") or 1
        self._pushdown = options.flag("pushdown", _PUSHDOWN_IS_SAFE)
        filter_text = options.text("filter")
        self._filter = None if filter_text is None else PushedFilter.from_text(filter_text)
        # PySpark refuses a reader that overrides this method while pushdown is disabled. Such a
        # session must work too: the reader returns all rows, and Spark filters them.
        self.pushFilters: Any = _FilterPushdown(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what the tasks need: they push no filters."""
        return {name: value for name, value in self.__dict__.items() if name != "pushFilters"}

    def push_filters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Accept the filters that the daemon can apply, and return the others."""
        if not self._pushdown or self._limit is not None or self._filter is not None:
            return filters
        accepted: list[tuple[Any, list[str]]] = []
        rejected: list[ds.Filter] = []
        for candidate in filters:
            expression = translate_filter(candidate, self._schema)
            if expression is None:
                rejected.append(candidate)
            else:
                accepted.append((expression, referenced_columns(candidate)))
        if accepted:
            self._filter = combine_filters(accepted, self._schema)
        return rejected

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Return one partition per ``shards_per_partition`` shards."""
        info = self._dataset.info(self._version)
        tasks = plan_read(info, shard_ordinals(info), self._shards_per_task, self._limit)
        return [ReadPartition(task) for task in tasks]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, ReadPartition):
            return iter(())  # the placeholder of PySpark for a read without partitions
        return read_batches(self._dataset, partition.value, self._filter, self._schema)


class _FilterPushdown:
    """The method ``pushFilters`` of a reader, in a form that PySpark takes for the inherited one.

    PySpark compares ``reader.pushFilters.__func__`` with the function of the base class.
    """

    def __init__(self, reader: DatasetReader) -> None:
        self.__func__ = ds.DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        return self._reader.push_filters(filters)


def dataset_schema(info: DatasetInfo, columns: Sequence[str] | None = None) -> st.StructType:
    """Return the Spark schema of a dataset.

    Parameters
    ----------
    info : DatasetInfo
        The control plane's description of the dataset.
    columns : sequence of str, optional
        The columns to select, in order. The default is all columns.

    Raises
    ------
    UsageError
        If the dataset has no such column.
    InvalidDataError
        If a column has a type that Spark cannot hold.
    """
    schema = info.schema
    if columns is not None:
        missing = [name for name in columns if name not in schema.names]
        if missing:
            raise UsageError(
                f"dataset {info.name!r} has no column {missing[0]!r}; "
                f"its columns are {', '.join(schema.names)}"
            )
        schema = pa.schema([schema.field(name) for name in columns])
    return spark_schema(schema)
