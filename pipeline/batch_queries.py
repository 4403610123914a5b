"""Batch queries of the data source in Python: the objects that PySpark sends to the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from ..publication.version_store import VersionStore
from .filters import combine_filters, parse_option, translate_filter
from .options import SparkOptions
from .reader import (
    ReadTask,
    RemoteDataset,
    plan_read,
    read_batches,
    refuse_stream_options,
    shard_ordinals,
)
from .shards import WriteJob
from .types import arrow_schema, check_readable
from .workers import Portable, one_line_errors
from .writer import commit_shards, stage_task

_CAN_PUSH = hasattr(ds.DataSourceReader, "pushFilters")
"""Whether Spark offers filters to data sources in Python: from 4.1 on."""
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

    `version` is read if the options name none.
    """

    def __init__(self, options: SparkOptions, schema: st.StructType, version: str | None) -> None:
        check_readable(schema)
        refuse_stream_options(options)
        self._dataset = RemoteDataset.from_options(options)
        self._schema = arrow_schema(schema)
        self._version = options.text("version") or version
        self._limit = options.count("limit", minimum=0)
        self._shards_per_task = options.count("shards_per_partition")
        self._pushdown = options.flag("pushdown", _PUSHDOWN_IS_SAFE)
        self._filter = options.text("filter")
        if self._filter is not None:
            parse_option(self._filter)
        # PySpark refuses a reader that overrides this method while pushdown is disabled. Such a
        # session must work too: the reader returns all rows, and Spark filters them.
        if _CAN_PUSH:
            self.pushFilters: Any = _FilterPushdown(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what the tasks need: they push no filters."""
        return {name: value for name, value in self.__dict__.items() if name != "pushFilters"}

    @one_line_errors
    def push_filters(self, filters: list[Any]) -> list[Any]:
        """Accept the filters that the daemon can apply, and return the others."""
        if not self._pushdown or self._limit is not None or self._filter is not None:
            return filters
        schema = self._dataset.info(self._version).schema
        translated = [translate_filter(candidate, schema) for candidate in filters]
        self._filter = combine_filters((each for each in translated if each is not None), schema)
        if self._filter is None:
            return filters
        pairs = zip(filters, translated, strict=True)
        return [candidate for candidate, tree in pairs if tree is None]

    @one_line_errors
    def partitions(self) -> Sequence[ds.InputPartition]:
        """Return the partitions; see `pack_shards`."""
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

    def __call__(self, filters: list[Any]) -> list[Any]:
        return self._reader.push_filters(filters)


class ShardWriter(Portable, ds.DataSourceArrowWriter):
    """Writes a DataFrame as shards. Spark pickles it for the tasks.

    The driver creates it, and with it the staging folder of the job. `write` runs in every task.
    `commit` or `abort` runs once, on the driver.
    """

    def __init__(self, job: WriteJob, overwrite: bool) -> None:
        self._job = job
        self._overwrite = overwrite
        VersionStore(job.location).create_staging(job.job_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ds.WriterCommitMessage:
        """Write the rows of a task to staged shards."""
        return stage_task(self._job, iterator)

    @one_line_errors
    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Publish the shards of all tasks as the next version, unless the job has one already."""
        commit_shards(self._job, messages, self._overwrite)

    def abort(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Delete the shards that the tasks have staged."""
        del messages
        VersionStore(self._job.location).discard(self._job.job_id)
