"""Writing shards: a task turns its record batches into staged shard files.

A staged shard is invisible to readers until the driver commits it. A task holds about two record
batches in memory, whatever the size of the shards.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import DatasetError, InvalidDataError, UsageError
from ..formats.arrow.file_writer import AlignedFileWriter
from ..publication.column_ranges import RangeTracker, has_range
from ..publication.layout import format_data_folder, format_shard_name, format_staging_folder
from ..publication.manifest import RangeValue, ShardEntry
from ..publication.version_store import VersionStore
from .casting import Caster
from .dictionaries import DictionaryEncoder

TARGET_BATCH_BYTES = 4 << 20
"""The approximate size of the record batches of a shard, in bytes."""
_FILE_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WriteJob:
    """The settings of a write. The driver plans it, and every task gets a copy."""

    location: str
    """The dataset: a path, or the URL of an object store."""
    job_id: str
    """The identifier of the job. The dataset gets one version per identifier."""
    schema: pa.Schema
    """The schema of the rows, before dictionary encoding."""
    rows_per_shard: int | None = None
    """The number of rows after which a new shard begins; None sets no limit."""
    bytes_per_shard: int | None = None
    """The file size in bytes after which a new shard begins; None sets no limit."""
    compression: str | None = None
    """``lz4``, ``zstd`` or None."""
    dictionary: tuple[str, ...] = ()
    """The names of the columns to dictionary-encode."""

    @property
    def partition_by(self) -> list[str]:
        """The names of the columns that have one value in each shard."""
        return partition_columns(self.schema)

    @property
    def shard_schema(self) -> pa.Schema:
        """The schema of the shards, after dictionary encoding."""
        return DictionaryEncoder(self.schema, self.dictionary).schema


PARTITION_KEY = b"splitarrow.partition_by"
"""The key of the names of the partition columns, a JSON array, in the metadata of a schema."""


def partition_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that have one value in each shard of a dataset.

    Text in the metadata that is not such a list names no columns.
    """
    text = (schema.metadata or {}).get(PARTITION_KEY, b"[]")
    try:
        names: Any = json.loads(text)
    except ValueError:
        return []
    known = set(schema.names)
    is_list = isinstance(names, list) and all(isinstance(n, str) and n in known for n in names)
    return names if is_list else []


def partition_job(job: WriteJob, columns: Sequence[str]) -> WriteJob:
    """Return a job that begins a new shard where a value of these columns changes.

    Raises `UsageError` if a column does not exist, or its shards would have no exact ranges.
    """
    if not columns:
        return job
    for name in columns:
        if name not in job.schema.names:
            raise UsageError(
                f"cannot partition by {name!r}; the columns are {', '.join(job.schema.names)}"
            )
        data_type = job.schema.field(name).type
        if not has_range(data_type) or pa.types.is_floating(data_type):
            raise UsageError(
                f"cannot partition by {name!r}, which is {data_type}; use integers, strings, "
                "dates, timestamps or decimals"
            )
    metadata = {**(job.schema.metadata or {}), PARTITION_KEY: json.dumps(list(columns)).encode()}
    return replace(job, schema=job.schema.with_metadata(metadata))


Partition = tuple[RangeValue, ...]
"""The value that each partition column has in a shard, as in its range; None for null."""


def find_partition(shard: ShardEntry, columns: Sequence[str]) -> Partition:
    """Return the partition of a shard.

    Raises `InvalidDataError` if its range does not state the one value of a column.
    """
    values: list[RangeValue] = []
    for name in columns:
        found = shard.columns.get(name)
        if (
            found is None
            or found.minimum != found.maximum
            or (found.nulls != (0 if found.minimum is not None else shard.rows))
        ):
            raise InvalidDataError(
                f"the shard {shard.path} does not have one known value of {name!r}; values that "
                "partition a dataset have at most 64 characters"
            )
        values.append(found.minimum)
    return tuple(values)


@dataclass
class TaskShards:
    """The result of a task, for the driver."""

    partition: int
    """The partition of the DataFrame that the task wrote."""
    shards: list[ShardEntry]
    """The shards that the task staged, in the order of the rows."""
    job_id: str
    """The job in whose staging folder they are."""


def format_attempt(partition: int, attempt: int) -> str:
    """Return the beginning of the names of the files of an attempt of a task."""
    return f"{partition:05}-{attempt}"


def collect_shards(messages: Sequence[Any]) -> list[ShardEntry]:
    """Return the shards of all tasks in the order of the partitions.

    Raises `DatasetError` if the result of a task is missing or duplicate.
    """
    by_partition: dict[int, list[ShardEntry]] = {}
    for message in messages:
        if not isinstance(message, TaskShards):
            raise DatasetError(f"{len(messages)} tasks ran, but one of them returned no result")
        if message.partition in by_partition:
            raise DatasetError(f"two tasks returned a result for partition {message.partition}")
        by_partition[message.partition] = message.shards
    partitions = sorted(by_partition)
    if partitions != list(range(len(partitions))):
        raise DatasetError(
            f"{partitions[-1] + 1} partitions were written, but only {len(partitions)} tasks "
            "returned a result"
        )
    return [shard for partition in partitions for shard in by_partition[partition]]


def encode(value: Any) -> str:
    """Return an object as text that only `decode` reads, in a process of the same job."""
    return base64.b64encode(pickle.dumps(value)).decode()


def decode(text: str | None) -> Any:
    """Return the object that `encode` made text of."""
    return None if text is None else pickle.loads(base64.b64decode(text))


def stage_stream(values: Mapping[str, Any], stream: Any) -> dict[str, Any]:
    """Write the rows of a task of the writer in the JVM, which follow its request in a binary file.

    A micro-batch has a job of its own, whose staging folder the driver cannot create.
    """
    job: WriteJob = decode(values["task"])
    partition: int = values["partition"]
    store = VersionStore(job.location)
    if values["job"] is not None:
        job = replace(job, job_id=values["job"])
        store.create_staging(job.job_id)
    attempt = format_attempt(partition, values["attempt"])
    reader: Any = pa.ipc.open_stream(stream)
    try:
        shards = write_shards(job, attempt, reader)
    except BaseException:
        if values["job"] is not None:
            store.discard_empty_staging(job.job_id)
        raise
    return {"shards": encode(TaskShards(partition, shards, job.job_id))}


def write_shards(
    job: WriteJob, attempt: str, batches: Iterable[pa.RecordBatch]
) -> list[ShardEntry]:
    """Write the rows of a task to staged shards.

    File names begin with the attempt, so that attempts of one task do not overwrite each other's
    files. Raises `DatasetError` if the dataset cannot be written, or the job's staging folder does
    not exist (see `VersionStore.create_staging`), and `InvalidDataError` if a value does not fit
    the schema.
    """
    store = VersionStore(job.location)
    try:
        with _scratch_folder(store, job.job_id) as folder:
            shards = _ShardSequence(job, attempt, store, folder)
            try:
                for batch in _cast(_coalesce(batches, job.rows_per_shard), job.schema):
                    for rows in shards.divide(batch):
                        shards.add(rows)
                shards.stage()
            finally:
                shards.discard()
    except OSError as error:
        raise DatasetError(f"cannot write shards to {job.location}: {error.strerror}") from None
    return shards.staged


class _ShardSequence:
    """The shards of one task. At most one is open."""

    def __init__(self, job: WriteJob, attempt: str, store: VersionStore, folder: Path) -> None:
        self._job = job
        self._attempt = attempt
        self._store = store
        self._folder = folder
        self._open: _ShardFile | None = None
        self._partition: pa.RecordBatch | None = None
        self.staged: list[ShardEntry] = []

    def divide(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the parts of a batch that have one partition each, and stage the shard before."""
        columns = self._job.partition_by
        if not columns:
            yield batch
            return
        for part in _divide(batch, columns):
            first = part.slice(0, 1).select(columns)
            if self._partition is not None and not first.equals(self._partition):
                self.stage()
            self._partition = first
            yield part

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch. Where a shard becomes full, stage it and begin the next one."""
        begin = 0
        while begin < batch.num_rows:
            if self._open is None:
                self._open = _ShardFile(self._job, self._folder / f"{self._stem}.part")
            rows = batch.slice(begin, self._open.remaining_rows)
            self._open.add(rows)
            begin += rows.num_rows
            if self._open.is_full:
                self.stage()

    def stage(self) -> None:
        """Stage the open shard, if there is one."""
        if self._open is not None:
            self.staged.append(self._open.stage(self._store, f"{self._stem}.arrow"))
            self._open = None

    def discard(self) -> None:
        """Delete the open shard, if there is one."""
        if self._open is not None:
            self._open.discard()

    @property
    def _stem(self) -> str:
        return f"{self._attempt}-{len(self.staged):05}"


class _ShardFile:
    """A shard that is being written to a local file."""

    def __init__(self, job: WriteJob, path: Path) -> None:
        self._job = job
        self._path = path
        self._dictionaries = DictionaryEncoder(job.schema, job.dictionary)
        self._format = AlignedFileWriter(self._dictionaries.schema, job.compression)
        self._ranges = RangeTracker(job.schema)
        self._digest = hashlib.sha256()
        self._rows = 0
        self._file = path.open("xb", buffering=_FILE_BUFFER_BYTES)
        self._write(self._format.begin())

    @property
    def is_full(self) -> bool:
        max_rows, max_bytes = self._job.rows_per_shard, self._job.bytes_per_shard
        return (max_rows is not None and self._rows >= max_rows) or (
            max_bytes is not None and self._format.position >= max_bytes
        )

    @property
    def remaining_rows(self) -> int | None:
        max_rows = self._job.rows_per_shard
        return None if max_rows is None else max_rows - self._rows

    def add(self, batch: pa.RecordBatch) -> None:
        self._ranges.add(batch)
        self._write(self._format.add(self._dictionaries.encode(batch)))
        self._rows += batch.num_rows

    def stage(self, store: VersionStore, name: str) -> ShardEntry:
        """Finish the file, and move or upload it to the staging folder of the job."""
        self._write(self._format.end())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sha256, job_id = self._digest.hexdigest(), self._job.job_id
        name = format_shard_name(name, sha256)
        store.storage.put(f"{format_staging_folder(job_id)}/{name}", self._path)
        nbytes, ranges = self._format.position, self._ranges.ranges()
        path = f"{format_data_folder(job_id)}/{name}"
        entry = ShardEntry(path, self._rows, nbytes, sha256, ranges)
        find_partition(entry, self._job.partition_by)
        return entry

    def discard(self) -> None:
        self._file.close()
        with suppress(OSError):
            self._path.unlink()

    def _write(self, buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            self._digest.update(buffer)
            self._file.write(buffer)


@contextmanager
def _scratch_folder(store: VersionStore, job_id: str) -> Generator[Path]:
    """Yield a local folder for open shards: the staging folder itself, if it is local.

    A task does not create the staging folder: one that still runs after its job was aborted
    would leave a new one behind.
    """
    root = store.storage.folder
    if root is None:
        with TemporaryDirectory(prefix="splitarrow-shards-") as temporary:
            yield Path(temporary)
        return
    staging = root / format_staging_folder(job_id)
    if not staging.is_dir():
        raise DatasetError(
            f"{staging} does not exist: either the job was aborted, or this machine does not "
            "share the folder with the driver"
        )
    yield staging


def _cast(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast batches to a schema."""
    caster: Caster | None = None
    for batch in batches:
        caster = caster or Caster(batch.schema, schema)
        yield caster.cast(batch)


def _coalesce(batches: Iterable[pa.RecordBatch], max_rows: int | None) -> Iterator[pa.RecordBatch]:
    """Concatenate small batches to about `TARGET_BATCH_BYTES` bytes or `max_rows` rows.

    Spark passes batches of few rows, so whatever happens to each one of them takes much time.
    """
    pending: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows += batch.num_rows
        nbytes += batch.get_total_buffer_size()
        if nbytes >= TARGET_BATCH_BYTES or (max_rows is not None and rows >= max_rows):
            yield _concatenate(pending)
            pending, rows, nbytes = [], 0, 0
    if pending:
        yield _concatenate(pending)


def _divide(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the parts of a batch between which a value of the columns changes."""
    changes: Any = pa.array([False] * (batch.num_rows - 1), pa.bool_())
    for name in columns:
        column: Any = batch.column(name)
        before, after = column[:-1], column[1:]
        differs = pc.or_(
            pc.fill_null(pc.not_equal(before, after), pa.scalar(False)),
            pc.not_equal(before.is_null(), after.is_null()),
        )
        changes = pc.or_(changes, differs)
    begin = 0
    for index in pc.indices_nonzero(changes).to_pylist():
        yield batch.slice(begin, index + 1 - begin)
        begin = index + 1
    yield batch.slice(begin)


def _concatenate(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    arrow: Any = pa  # the stubs lack this function
    return batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
