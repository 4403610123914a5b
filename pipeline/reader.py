"""Reading datasets: the driver plans one task per shard of one version, and each reads its own.

Three callers share the tasks: the readers of batch queries and of streaming queries, which
`datasource` and `streaming` contain, and `read`, which reads record batches with ``mapInArrow``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from ..client.arguments import Read, ReadArguments
from ..client.connect import AnyClient, connect
from ..client.dataset.requests import check_complete
from ..client.rpc.info import DatasetInfo
from ..client.tokens import Token
from ..errors import UsageError
from ..filters import decode_filter, encode_filter
from ..formats.nested_fields import select_schema
from ..protocol.request import Request
from ..transport.tls_options import TlsOptions
from .casting import Caster
from .options import TLS_OPTIONS, SparkOptions
from .types import arrow_schema, check_readable, importable_schema
from .workers import Portable, check_workers, use_worker_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLAN = Read.of({}).plan
READ_ARGUMENTS: ReadArguments = {
    "transport": _PLAN.transport,
    "connect_timeout": _PLAN.options.connect_timeout,
    "stall_timeout": _PLAN.options.stall_timeout,
    "window_bytes": 32 << 20,
}
"""The arguments of `Client.read` that are options of ``spark.read``, and their defaults.

Several tasks of an executor read at the same time, so each has a smaller window than a client.
"""
STREAM_OPTIONS = ("startingversion", "maxshardspertrigger", "maxbytespertrigger")
"""The options of ``spark.readStream`` alone, which the reader in the JVM supports."""
READ_OPTIONS = (
    "uri",
    "dataset",
    "columns",
    "limit",
    "version",
    "shards_per_partition",
    "pushdown",
    "filter",
    *READ_ARGUMENTS,
    "token",
    "token_file",
    *TLS_OPTIONS,
    "path",
    "reader",
    "memory_limit",
    "folder",
    *STREAM_OPTIONS,
)
"""The options of ``spark.read`` and ``spark.readStream``. ``path``, the argument of ``load(...)``,
means ``dataset``.

`read_options` adds ``versionAsOf``, another name of ``version``. The last ones, from
``memory_limit`` on, are those of the reader in the JVM.
"""
READERS = ("auto", "jvm", "python")
"""The values of the option ``reader``."""


def read_options(
    values: Mapping[str, str], supported: Iterable[str] = READ_OPTIONS
) -> SparkOptions:
    """Return the options of a read, in which ``versionAsOf`` means ``version``.

    Raises `UsageError` if the two differ, if ``timestampAsOf`` is set, or as `SparkOptions` does.
    """
    options = {name.lower(): value for name, value in values.items()}
    if options.pop("timestampasof", None):
        raise UsageError(
            "splitarrow finds versions by their number; use the option 'versionAsOf' instead of "
            "'timestampAsOf'"
        )
    number = options.pop("versionasof", None)
    if number:
        version = options.setdefault("version", number) or number
        if version != number:
            raise UsageError(
                f"the option 'version' is {version!r}, but 'versionAsOf' is {number!r}; set one"
            )
        options["version"] = number
    return SparkOptions(options, supported)


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """A dataset, where it is served, and the settings for reading it. Every task gets a copy."""

    uri: str
    """The URI of the control plane, or several URIs separated by commas."""
    name: str
    """The name of the dataset."""
    token: Token | None = field(default=None, repr=False)
    """The token that authenticates the reader; None sends no token."""
    tls: TlsOptions | None = None
    """The TLS settings; None takes them from the environment."""
    arguments: Mapping[str, Any] = field(default_factory=READ_ARGUMENTS.copy)
    """Values for all of `READ_ARGUMENTS`."""

    @classmethod
    def from_options(cls, options: SparkOptions) -> RemoteDataset:
        """Return the dataset that the options of a reader name.

        Raises `UsageError` if an option is missing or has a wrong value.
        """
        return cls(
            options.require("uri", "grpc://host:8815"),
            options.text("path") or options.require("dataset", "flights"),
            options.token(),
            options.tls(),
            options.arguments(READ_ARGUMENTS),
        )

    def connect(self) -> AnyClient:
        """Connect to the control plane. Raises the errors of `splitarrow.connect`."""
        timeout = self.arguments["connect_timeout"]
        return connect(self.uri, self.token, tls=self.tls, connect_timeout=timeout)

    def info(self, version: str | None = None) -> DatasetInfo:
        """Return the control plane's description of a version, by default of the current one.

        Raises `RemoteError` with the code FAILED_PRECONDITION if the daemon no longer has it.
        """
        with self.connect() as client:
            info = client.describe(Request(self.name, version=version or None))
            check_complete(info, client.uri)
            return info


MAX_TASK_BYTES, OPEN_BYTES = 128 << 20, 4 << 20
"""The largest size of the shards that share a task, and what opening one costs, in bytes.

They are the defaults of Spark's settings for files.
"""
_MAX_SLICE_BYTES = 16 << 20
"""The maximum size of a batch for Spark, in bytes. Spark copies each batch once more."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The shards of one version that one Spark task reads."""

    version: str
    """The version, as the control plane names it; empty for an unversioned dataset."""
    shards: tuple[int, ...] | None
    """The ordinals of the shards; None reads all rows."""
    limit: int | None = None
    """The maximum number of rows; None reads all of them."""


def pack_shards(
    sizes: Sequence[int | None],
    shards_per_task: int | None,
    parallelism: int,
    max_bytes: int = MAX_TASK_BYTES,
    open_bytes: int = OPEN_BYTES,
) -> list[range]:
    """Divide shards of some sizes in bytes among tasks: each reads some that follow each other.

    Unless `shards_per_task` is given, small shards share a task as small files do in Spark: up to
    `max_bytes` bytes, or so few that `parallelism` tasks have something to do. Each shard counts
    `open_bytes` more than it has. A shard of an unknown size has a task of its own.

    Examples
    --------
    >>> pack_shards([1 << 20] * 4, None, 2)
    [range(0, 2), range(2, 4)]
    """
    if shards_per_task is not None:
        starts = range(0, len(sizes), shards_per_task)
        return [range(start, min(start + shards_per_task, len(sizes))) for start in starts]
    costs = [max_bytes if size is None else size + open_bytes for size in sizes]
    limit = min(max_bytes, max(open_bytes, sum(costs) // parallelism))
    tasks: list[range] = []
    begin = cost = 0
    for index, each in enumerate(costs):
        if index > begin and cost + each > limit:
            tasks.append(range(begin, index))
            begin, cost = index, 0
        cost += each
    return [*tasks, range(begin, len(costs))] if costs else []


def plan_read(
    info: DatasetInfo, shards: Sequence[int], shards_per_task: int | None, limit: int | None
) -> list[ReadTask]:
    """Divide shards among read tasks. With a limit, a single task reads the dataset in order."""
    if limit is not None:
        return [ReadTask(info.version, None, limit)]
    if len(info.endpoints) == 1 and shards:
        return [ReadTask(info.version, None)]
    known = dict(zip(shard_ordinals(info), info.endpoints, strict=True))
    sizes = [known[ordinal].nbytes if ordinal in known else None for ordinal in shards]
    packed = pack_shards(sizes, shards_per_task, os.cpu_count() or 1)
    return [ReadTask(info.version, tuple(shards[index] for index in task)) for task in packed]


def refuse_stream_options(options: SparkOptions) -> None:
    """Raise `UsageError` if the options of a batch query contain one of streams alone."""
    for name in STREAM_OPTIONS:
        if options.text(name):
            raise UsageError(f"the option {name!r} is for spark.readStream only")


def shard_ordinals(info: DatasetInfo) -> list[int]:
    """Return the ordinals of a dataset's shards, which are by default their positions."""
    return [
        position if endpoint.ordinal is None else endpoint.ordinal
        for position, endpoint in enumerate(info.endpoints)
    ]


def read_batches(
    dataset: RemoteDataset, task: ReadTask, filter: str | None, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a read task that pass a filter, with the schema that Spark expects.

    Raises `SplitArrowError` if the data cannot be read to its end, or a value does not fit its
    type.
    """
    with (
        dataset.connect() as client,
        client.read(
            dataset.name,
            columns=schema.names or None,
            filter=None if filter is None else decode_filter(filter),
            limit=task.limit,
            prefetch_bytes=dataset.arguments["window_bytes"],
            parallel=2,
            shards=task.shards,
            version=task.version or None,
            **dataset.arguments,
        ) as stream,
    ):
        caster = Caster(stream.schema, schema)
        for batch in stream:
            for rows in slice_batch(batch):
                yield caster.cast(rows)


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of about 16 MiB or less. An empty batch yields none."""
    rows = batch.num_rows
    if not rows:
        return
    count = -(-batch.nbytes // _MAX_SLICE_BYTES) or 1
    slice_rows = -(-rows // count)
    for start in range(0, rows, slice_rows):
        yield batch if slice_rows >= rows else batch.slice(start, slice_rows)


def dataset_schema(info: DatasetInfo, columns: Sequence[str] | None = None) -> st.StructType:
    """Return the Spark schema of some columns of a dataset, as the source in Python reads them.

    Raises the errors of `select_columns`, and `InvalidDataError` if Spark cannot hold the type of
    a column.
    """
    return importable_schema(select_columns(info, columns))


def select_columns(info: DatasetInfo, columns: Sequence[str] | None) -> pa.Schema:
    """Return the Arrow schema of some columns of a dataset, in order, or of all.

    Raises `UsageError` if the dataset has no such column.
    """
    if columns is None:
        return info.schema
    try:
        return select_schema(info.schema, columns)
    except UsageError as error:
        raise UsageError(f"dataset {info.name!r} has {error.message}") from None


_NOT_OPTIONS_OF_READ = {
    *("columns", "filter", "limit"),  # arguments of `read`
    *("folder", "memory_limit", "path", "pushdown", "reader"),  # without meaning for it
    *STREAM_OPTIONS,
}


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
        The partitions are those of `pack_shards`. The frame keeps the version that is
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
    settings = read_options(
        values, [name for name in READ_OPTIONS if name not in _NOT_OPTIONS_OF_READ]
    )
    remote = RemoteDataset.from_options(settings)
    info = remote.info(settings.text("version"))
    schema = dataset_schema(info, columns)
    check_readable(schema)
    pushed = None if filter is None else encode_filter(filter, info.schema)
    shards_per_task = settings.count("shards_per_partition")
    tasks = plan_read(info, shard_ordinals(info), shards_per_task, limit)
    if hasattr(spark, "_jsparkSession"):  # with Spark Connect, the server chooses the interpreter
        use_worker_python(spark)
        check_workers(spark)
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    reader = TaskReader(remote, tuple(tasks), pushed, arrow_schema(schema))
    return numbers.mapInArrow(_make_function(reader), schema)


@dataclass
class TaskReader(Portable):
    """Read tasks, of which each task of Spark runs those whose numbers it gets."""

    dataset: RemoteDataset
    tasks: tuple[ReadTask, ...]
    filter: str | None
    schema: pa.Schema

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tasks whose numbers are in the first column of the batches."""
        for batch in numbers:
            chosen: Any = batch.column(0).to_pylist()
            for number in chosen:
                yield from read_batches(self.dataset, self.tasks[number], self.filter, self.schema)


def _make_function(
    reader: TaskReader,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow``. It is pickled by value, since it is nested."""

    def read_tasks(numbers: Any) -> Any:
        return reader.read(numbers)

    return read_tasks
