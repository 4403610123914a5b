"""Reading a dataset as record batches: the driver plans the parts, and ``mapInArrow`` reads them.

This path needs no jar. It skips the row by row hand-over of Spark's Python data sources, and reads
only the columns and rows that the caller names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..client.stream.filters import serialize_filter
from .options import Options
from .portable import Portable
from .source.filters import PushedFilter
from .source.read_task import ReadTask, plan_read, read_batches, shard_ordinals
from .source.reader import OPTIONS, dataset_schema
from .source.remote_dataset import RemoteDataset
from .spark.workers import check_workers, use_worker_python
from .types import arrow_schema, check_readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ARGUMENTS = ("columns", "filter", "folder", "limit", "memory_limit", "path", "pushdown", "reader")
"""The options of ``spark.read`` that are arguments here, or have no meaning."""


def read(
    spark: SparkSession,
    uri: str | Sequence[str],
    dataset: str,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    limit: int | None = None,
    **options: str | int | float,
) -> DataFrame:
    """Return the rows of a dataset as a DataFrame, with the types of the data source.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    uri : str or sequence of str
        The control plane, or several.
    dataset : str
        The name of the dataset.
    columns : sequence of str, optional
        The columns to read, in order. The default is all columns.
    filter : str, tuples, or expression, optional
        The condition on the rows, as `splitarrow.Client.read` takes it. The daemon applies it.
    limit : int, optional
        The largest number of rows; one task reads them.
    **options
        Other options of ``spark.read.format("splitarrow")``, such as ``version``, ``transport``,
        ``shards_per_partition`` and ``token``.

    Returns
    -------
    pyspark.sql.DataFrame
        One partition per ``shards_per_partition`` shards. The frame keeps the version that is
        current now.

    Raises
    ------
    UsageError
        If an option has a wrong value, the dataset has no such column, or the filter does not
        fit it.
    InvalidDataError
        If Spark cannot hold a column.
    ConfigError
        If the interpreter on an executor lacks a package.
    """
    uris = uri if isinstance(uri, str) else ",".join(uri)
    values = {"uri": uris, "dataset": dataset, **{name: str(v) for name, v in options.items()}}
    settings = Options(values, [name for name in OPTIONS if name not in _ARGUMENTS])
    remote = RemoteDataset.from_options(settings)
    info = remote.info(settings.text("version"))
    schema = dataset_schema(info, columns)
    check_readable(schema)
    pushed = None
    if filter is not None:
        pushed = PushedFilter.from_text(serialize_filter(dataset, info.schema, filter))
    shards_per_task = settings.count("shards_per_partition") or 1
    tasks = plan_read(info, shard_ordinals(info), shards_per_task, limit)
    if hasattr(spark, "_jsparkSession"):  # with Spark Connect, the server chooses the interpreter
        use_worker_python(spark)
        check_workers(spark)
    parts = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    reader = PartReader(remote, tuple(tasks), pushed, arrow_schema(schema))
    return parts.mapInArrow(_make_function(reader), schema)


@dataclass
class PartReader(Portable):
    """The parts, of which each task reads those whose numbers it gets."""

    dataset: RemoteDataset
    tasks: tuple[ReadTask, ...]
    filter: PushedFilter | None
    schema: pa.Schema

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts whose numbers are in the first column of the batches."""
        for batch in numbers:
            numbers_of_batch: Any = batch.column(0).to_pylist()
            for number in numbers_of_batch:
                yield from read_batches(self.dataset, self.tasks[number], self.filter, self.schema)


def _make_function(
    reader: PartReader,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``. It is pickled by value, since it is nested."""

    def read_parts(numbers: Any) -> Any:
        return reader.read(numbers)

    return read_parts
