"""Delta tables: the newest version, and older ones as readers request them.

deltalake reads the transaction log ("Delta Transaction Log Protocol"): the schema, the files
and the protocol of a version. Each Parquet file is read with the schema of the table.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import DatasetError, MissingExtraError, install_hint, remote_error
from ...filters.ranges import UNKNOWN, Range, make_point
from ...formats.nested_fields import choose_fields, extend_schema
from ...formats.parquet.variant.arrow_fields import is_variant_field
from ...formats.roaring import RowSet
from ...protocol.request import Request
from ...publication.storage import (
    LocalStorage,
    ObjectStorage,
    Storage,
    StoredObject,
    check_credentials,
    is_object_url,
)
from ...transport.memory.files import SourceFile, open_beneath
from ..logs import get_logger
from .batch_ranges import BatchRanges
from .dataset import (
    Encoding,
    FixedDataset,
    GeneratorSource,
    Measures,
    Shard,
    VersionedDataset,
    parse_version_number,
    select_shards,
)
from .deletion_vectors import DeletionVector, VectorLog, Vectors
from .delta_features import DELETION_VECTORS, find_unsupported_use, mark_variants
from .files.concatenated import ConcatenatedFiles
from .files.file_dataset import FileContents
from .files.origins import FileOrigin, LocalOrigin, ObjectOrigin, map_read_errors
from .files.parquet import ParquetDataset, open_parquet
from .files.row_groups import select_row_groups
from .messages.reencoding import Batches
from .selection import Selection, select_fields

LOG_FOLDER = "_delta_log"
"""The folder that makes a folder a Delta table."""
_SIDECARS = "_sidecars"
_PARTITION = "partition."
_FILE_TYPE = "a file of a Delta table"
_REQUESTS = 16
"""The number of data files that are inspected at a time."""
_POLL_SECONDS = 1.0
"""The shortest time between two looks at the log in an object store, in seconds."""


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A data file of one version of a table."""

    name: str
    """The path below the folder of the table. ``/`` separates its components."""
    partition_values: Mapping[str, Any]
    """The values of the partition columns, as ``pyarrow.Scalar``."""
    vector: DeletionVector | None
    """The rows that are deleted; None if no row is."""


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """One version of a table."""

    number: int
    """The version in the log."""
    version: str
    """The number, and a hash that differs for a table created elsewhere or anew."""
    schema: pa.Schema
    """The schema of the table, partition columns included."""
    files: tuple[DeltaFile, ...]
    """The data files, in the order of their names."""

    @property
    def table(self) -> str:
        """A hash that differs for a table created elsewhere or anew."""
        return self.version.partition("-")[2]


class DeltaLog:
    """The log of a table. Safe to use from several threads. Errors are those of `DeltaDataset`."""

    def __init__(self, location: str, storage: Storage, confining: Path | None) -> None:
        self.location = location
        """The folder, or the URL."""
        self._confining = confining
        check_credentials(location, os.environ)
        self._api = _import_deltalake(location)
        self._vectors = VectorLog(storage)
        self._storage = storage
        self._lock = threading.Lock()
        self._table: Any = self._open(None)
        self._commit = self._find_commit()

    def load_newest(self, known: DeltaSnapshot | None = None) -> DeltaSnapshot:
        """Return the newest version; `known` if that is still the newest.

        Raises `DatasetError` if the log cannot be read, or the table uses a feature that is not
        supported.
        """
        with self._lock:
            self._check_links()
            if self._find_commit() == self._commit:
                try:
                    self._table.update_incremental()
                except self._errors as error:
                    raise self._read_error(error) from None
                if known is not None and known.number == self._table.version():
                    return known
            else:  # the table was removed and created anew
                self._table, self._vectors = self._open(None), VectorLog(self._storage)
            self._commit = self._find_commit()
            return self._load(self._table)

    def _find_commit(self) -> StoredObject | None:
        """Return the file of the newest commit that is known; None if it was removed."""
        return self._storage.find(f"{LOG_FOLDER}/{self._table.version():020}.json")

    def load(self, number: int) -> DeltaSnapshot | None:
        """Return a version; None if the log does not have it any more.

        Raises `DatasetError` if the table uses a feature that is not supported.
        """
        try:
            return self._load(self._open(number))
        except DatasetError as error:
            if isinstance(error.__cause__, self._errors):
                return None
            raise

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._api.exceptions.DeltaError, OSError, ValueError)

    def _open(self, number: int | None) -> Any:
        self._check_links()
        try:
            return self._api.DeltaTable(self.location, version=number)
        except self._errors as error:
            raise self._read_error(error) from error

    def _check_links(self) -> None:
        """Raise `DatasetError` if a symbolic link in the log leads out of the folder."""
        folder = self._confining
        if folder is None:
            return
        with suppress(OSError):  # the library reports what is missing
            for part in (folder / LOG_FOLDER, folder / LOG_FOLDER / _SIDECARS):
                os.close(open_beneath(part, folder))
                with os.scandir(part) as entries:
                    links = [entry.path for entry in entries if entry.is_symlink()]
                for link in links:
                    os.close(open_beneath(link, folder))

    def _read_error(self, error: Exception) -> DatasetError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        return DatasetError(f"cannot read the Delta table {self.location}: {reason}")

    def _load(self, table: Any) -> DeltaSnapshot:
        protocol, metadata = table.protocol(), table.metadata()
        features: frozenset[str] = frozenset(protocol.reader_features or ())
        try:
            delta_schema = json.loads(table.schema().to_json())
            unsupported = find_unsupported_use(
                protocol.min_reader_version, features, metadata.configuration, delta_schema
            )
            if unsupported is not None:
                raise self._unsupported(unsupported)
            schema = mark_variants(pa.schema(table.schema()), delta_schema)
            actions = pa.table(table.get_add_actions(flatten=True))
        except (*self._errors, pa.ArrowException) as error:
            raise self._read_error(error) from None
        number: int = table.version()
        paths = [str(path) for path in actions["path"].to_pylist()]
        vectors: Vectors = {}
        if DELETION_VECTORS in features:
            vectors = self._vectors.load(number, set(paths))
        files = self._list_files(actions, schema, metadata.partition_columns, vectors)
        digest = hashlib.blake2b(str(metadata.id).encode(), digest_size=4).hexdigest()
        return DeltaSnapshot(number, f"{number}-{digest}", schema, files)

    def _list_files(
        self,
        actions: pa.Table,
        schema: pa.Schema,
        partition_columns: list[str],
        vectors: Vectors,
    ) -> tuple[DeltaFile, ...]:
        values = {
            name: _read_values(actions[_PARTITION + name].cast(schema.field(name).type))
            for name in partition_columns
        }
        files: list[DeltaFile] = []
        for number, path in enumerate(map(str, actions["path"].to_pylist())):
            name = unquote(path)
            if "://" in name or name.startswith("/") or ".." in name.split("/"):
                raise self._unsupported("files outside of its folder (a shallow clone)")
            partition_values = {key: column[number] for key, column in values.items()}
            files.append(DeltaFile(name, partition_values, vectors.get(path)))
        return tuple(sorted(files, key=lambda file: file.name.split("/")))

    def _unsupported(self, feature: str) -> DatasetError:
        return DatasetError(
            f"the Delta table {self.location} uses {feature}, which is not supported"
        )


def _import_deltalake(location: str) -> Any:
    try:
        deltalake = import_module("deltalake")
        import_module("deltalake.exceptions")
    except ImportError:
        raise MissingExtraError(
            f"{location} is a Delta table, which needs the extra delta: {install_hint('delta')}"
        ) from None
    return deltalake


class DeltaFileDataset(ParquetDataset):
    """A data file, with the columns of the table, without the rows that are deleted.

    These are its own columns, in the types of the table, the partition columns, and nulls for
    columns that were added to the table later.

    Raises `DatasetError` if the file cannot be read or does not fit the schema or its deletion
    vector.
    """

    def __init__(
        self,
        origin: FileOrigin,
        schema: pa.Schema,
        file: DeltaFile,
        vector_origin: FileOrigin | None,
    ) -> None:
        self._table_schema = schema
        self._partition_values = file.partition_values
        self._vector = file.vector
        self._vector_origin = vector_origin
        self._file_schema = schema
        self._variants = [field.name for field in schema if is_variant_field(field)]
        # The data files of a table are never written to: each has a unique name.
        super().__init__(origin, keep_index=False, refuse_writers=False)

    def fits(self, schema: pa.Schema, vector: DeletionVector | None) -> bool:
        """Return whether the file was opened for a schema and a deletion vector."""
        return self._vector == vector and self._table_schema.equals(schema, check_metadata=True)

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file, with the schema of the table."""
        contents = super().inspect(file)
        own = contents.schema
        with map_read_errors(file.path, _FILE_TYPE):
            for field in self._table_schema:
                if field.name in self._partition_values:
                    continue
                if field.name in own.names:
                    pa.array([], own.field(field.name).type).cast(field.type)
                elif not field.nullable:
                    raise DatasetError(f"{file.path} lacks the column {field.name!r}")
        self._file_schema = own
        rows = contents.rows or 0
        if self._vector is not None:
            rows -= self._vector.rows
            if rows < 0:
                raise DatasetError(
                    f"the deletion vector of {file.path} deletes {self._vector.rows} rows; "
                    f"the file has {contents.rows}"
                )
        return replace(contents, schema=self._table_schema, rows=rows)

    def list_batch_rows(self, file: SourceFile, contents: FileContents) -> list[int]:
        """Return the rows of each row group that are not deleted."""
        counts = super().list_batch_rows(file, contents)
        if self._vector is None:
            return counts
        deleted = self._load_vector(self._vector, file, sum(counts))
        ends = accumulate(counts)
        return [
            count - deleted.count(end - count, end) for count, end in zip(counts, ends, strict=True)
        ]

    def find_range(self, index: int) -> Range:
        """Return what is known of a column: partition columns have one value."""
        if index < len(self._table_schema):
            value = self._partition_values.get(self._table_schema.field(index).name)
            return UNKNOWN if value is None else make_point(value)
        return UNKNOWN

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Yield the record batches; see `FileDataset.read_batches`."""
        own_contents = replace(contents, schema=self._file_schema)
        fields = choose_fields(self._file_schema, selection.fields)
        own = extend_schema(self._file_schema, fields)
        values = self._partition_values
        stored = [n for n in selection.schema.names if n not in values and n in own.names]
        columns = tuple(own.get_field_index(name) for name in stored)
        part = select_fields(own, columns)
        row_filter = selection.filter
        if row_filter is not None:
            table = extend_schema(self._table_schema, selection.fields)
            places = [_find_same(own, field) for field in table]
            row_filter = row_filter.move_columns(places.__getitem__)
        in_file = replace(selection, schema=part, columns=columns, fields=fields, filter=row_filter)
        with (
            map_read_errors(file.path, _FILE_TYPE),
            closing(self._read_rows(file, own_contents, in_file)) as batches,
        ):
            for batch, kept in batches:
                arrays = [self._build_column(batch, stored, field) for field in selection.schema]
                if arrays:
                    batch = pa.RecordBatch.from_arrays(arrays, schema=selection.schema)
                if kept is not None:
                    rows = int(np.count_nonzero(kept))
                    if not rows:
                        continue
                    batch = batch.filter(pa.array(kept)) if arrays else batch.slice(0, rows)
                yield batch, None

    def _read_rows(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Generator[tuple[pa.RecordBatch, NDArray[np.bool_] | None]]:
        """Yield the batches of the file, and which of their rows are kept; None for all.

        Row groups that the filter excludes are skipped, so consecutive ones are read at a time:
        the vector has the numbers of the rows in the file.
        """
        read = super().read_batches
        if self._vector is None:
            with closing(read(file, contents, selection)) as batches:
                for batch, _ in batches:
                    yield batch, None
            return
        with open_parquet(file, contents.plan) as parquet:
            metadata = parquet.metadata
            counts = [metadata.row_group(index).num_rows for index in range(parquet.num_row_groups)]
            schema = extend_schema(contents.schema, selection.fields)
            groups = select_row_groups(
                parquet, contents.plan.columns, selection, schema, selection.fields
            )
        deleted = self._load_vector(self._vector, file, sum(counts))
        limit = None if selection.limit is None else selection.limit + len(deleted)
        for first, end in _find_runs(groups):
            span = BatchRanges(((first, end),))
            part = replace(selection, batches=span, filter=None, limit=limit)
            row = sum(counts[:first])
            with closing(read(file, contents, part)) as batches:
                for batch, _ in batches:
                    kept = ~deleted.mask(row, row + batch.num_rows)
                    row += batch.num_rows
                    yield batch, None if kept.all() else kept

    def _load_vector(self, vector: DeletionVector, file: SourceFile, file_rows: int) -> RowSet:
        return vector.load(self._vector_origin, str(file.path), file_rows)

    def _build_column(
        self, batch: pa.RecordBatch, stored: list[str], field: pa.Field[Any]
    ) -> pa.Array[Any]:
        if field.name in stored:
            column = batch.column(stored.index(field.name))
            return column if column.type == field.type else column.cast(field.type)
        value = self._partition_values.get(field.name)
        if value is None:
            return pa.nulls(batch.num_rows, field.type)
        return pa.repeat(value, batch.num_rows)


_ESCAPED_BYTES = re.compile(rb"(?:\\u00[0-9A-Fa-f]{2})+")


def _read_values(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    r"""Return the values of a partition column, of which binary ones may be escaped.

    The protocol has "a string of escaped binary values" ("Partition Value Serialization").
    deltalake writes ``\u00FF`` for each byte, and reads the text; Spark writes the bytes as UTF-8.
    """
    if column.type != pa.binary():
        return column
    values = [
        bytes.fromhex(value.decode().replace("\\u00", ""))
        if value is not None and _ESCAPED_BYTES.fullmatch(value)
        else value
        for value in column.to_pylist()
    ]
    return pa.chunked_array([values], pa.binary())


def _find_runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive numbers: the first number, and the one after the last."""
    begin = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield numbers[begin], numbers[index - 1] + 1
            begin = index


def _find_same(schema: pa.Schema, field: pa.Field[Any]) -> int:
    """Return the index of a field with the same name and type; -1 if there is none."""
    index = schema.get_field_index(field.name)
    return index if index >= 0 and schema.field(index).type == field.type else -1


class DeltaVersion(FixedDataset):
    """One version of a Delta table."""

    _kind = "delta table"

    def __init__(
        self, location: str, snapshot: DeltaSnapshot, files: Sequence[DeltaFileDataset]
    ) -> None:
        rows = sum(file.rows or 0 for file in files)
        nbytes = sum(file.nbytes or 0 for file in files)
        super().__init__(snapshot.schema, rows, nbytes, snapshot.version)
        self.snapshot = snapshot
        """The version in the log."""
        self.files = files
        """The data files."""
        self._location = location

    @property
    def shards(self) -> Sequence[Shard]:
        """One shard for each data file; a single one without rows if the table has no file."""
        return [Shard(file.rows, file.nbytes) for file in self.files] or [Shard(0, 0)]

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the version for one reader; see `ServedDataset.open`."""
        return self._select(request).open(request, encoding, self._location)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each row group; see `ServedDataset.measure_batches`."""
        return self._select(request).measure_batches(request, encoding, self._location)

    def _select(self, request: Request) -> ConcatenatedFiles:
        select_shards(request, self.shards)  # which checks the request of an empty table, too
        files = select_shards(request, self.files) if self.files else ()
        return ConcatenatedFiles.of(files, self.schema)


class DeltaDataset(VersionedDataset[DeltaVersion]):
    """A Delta table. Each new reader gets the version that is the newest then.

    Unless `follow_symlinks`, no symbolic link in a local folder may lead out of it. Raises
    `DatasetError` if the log or a data file cannot be read, or the table uses a feature that
    is not supported. Raises `UsageError` if there are no credentials for the store. Raises
    `MissingExtraError` if the extra ``delta``, or ``object-store`` for a URL, is not installed.
    """

    def __init__(self, location: str, *, follow_symlinks: bool = False) -> None:
        self._storage = ObjectStorage(location) if is_object_url(location) else None
        folder = Path(location)
        storage = self._storage or LocalStorage(folder, follow_symlinks=follow_symlinks)
        self._folder = storage.location
        self._confining = None if follow_symlinks or self._storage is not None else folder
        self._log = DeltaLog(location, storage, self._confining)
        self._logger = get_logger("delta")
        super().__init__(self._make_version(self._log.load_newest(), ()))
        self._polled_at = time.monotonic()

    @property
    def location(self) -> str:
        """The folder or the URL, as it was given. Readers never see it."""
        return self._log.location

    @property
    def version(self) -> str:
        """The newest version; the last known one if the log is not readable."""
        return self._find_newest(strict=False).version

    def resolve_version(self, request: Request) -> DeltaVersion:
        """Return the version that a request is for, or the newest.

        Raises `RemoteError` (FAILED_PRECONDITION) if the table does not have the version any more,
        and `DatasetError` if the log cannot be read.
        """
        newest = self._find_newest(strict=True)
        wanted = request.version
        if wanted is None or wanted in (newest.version, str(newest.snapshot.number)):
            return newest
        number = parse_version_number(wanted)
        if number is not None:
            if number > newest.snapshot.number and self._storage is not None:
                # Another process of the server may have found it since the last look at the log.
                self._polled_at = float("-inf")
                newest = self._find_newest(strict=True)
                if wanted in (newest.version, str(newest.snapshot.number)):
                    return newest
            older = None if request.current else self._find_old(number, newest)
            if older is not None and wanted in (older.version, wanted.partition("-")[0]):
                return older
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the table does not have the version {wanted}; the newest is {newest.version}",
            stream=request.dataset,
        )

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open a version for one reader; see `ServedDataset.open`."""
        return self.resolve_version(request).open(request, encoding)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each row group; see `ServedDataset.measure_batches`."""
        return self.resolve_version(request).measure_batches(request, encoding)

    def _find_newest(self, *, strict: bool) -> DeltaVersion:
        """Return the newest version. If not `strict`, an error is logged, not raised."""
        with self._lock:
            if self._storage is not None and time.monotonic() - self._polled_at < _POLL_SECONDS:
                return self._current
            try:
                snapshot = self._log.load_newest(self._current.snapshot)
                before = self._current
                if snapshot.table != before.snapshot.table:
                    self._old.clear()
                    self._current = self._make_version(snapshot, ())
                elif snapshot is not before.snapshot:
                    self._keep_old(before.snapshot.number, before)
                    self._current = self._make_version(snapshot, before.files)
            except DatasetError as error:
                if strict:
                    raise
                self._logger.warning("cannot look for versions", reason=error.message)
            self._polled_at = time.monotonic()
            return self._current

    def _find_old(self, number: int, newest: DeltaVersion) -> DeltaVersion | None:
        with self._lock:
            version = self._old.get(number)
            if version is None and number < newest.snapshot.number:
                snapshot = self._log.load(number)
                if snapshot is not None:
                    version = self._make_version(snapshot, newest.files)
                    self._keep_old(number, version)
            return version

    def _make_version(
        self, snapshot: DeltaSnapshot, known_files: Sequence[DeltaFileDataset]
    ) -> DeltaVersion:
        """Return a version. Known files are not inspected again."""
        known = {file.origin.name: file for file in known_files}

        def open_file(file: DeltaFile) -> DeltaFileDataset:
            dataset = known.get(file.name)
            if dataset is not None and dataset.fits(snapshot.schema, file.vector):
                return dataset
            name = None if file.vector is None else file.vector.find_file(self._folder)
            vector_origin = None if name is None else self._find_origin(name)
            origin = self._find_origin(file.name)
            return DeltaFileDataset(origin, snapshot.schema, file, vector_origin)

        with ThreadPoolExecutor(_REQUESTS if self._storage is not None else 1) as pool:
            files = list(pool.map(open_file, snapshot.files))
        return DeltaVersion(self.location, snapshot, files)

    def _find_origin(self, name: str) -> FileOrigin:
        if self._storage is None:
            return LocalOrigin(Path(self.location, name), name, self._confining)
        entry = self._storage.find(name)
        if entry is None:
            raise DatasetError(f"{self.location}/{name} does not exist; it may have been vacuumed")
        return ObjectOrigin(self._storage, entry)
