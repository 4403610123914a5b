"""Delta tables: the newest version, and older ones as readers request them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from ....errors import DatasetError, remote_error
from ....protocol.request import Request
from ....publication.storage import ObjectStorage, is_object_url
from ...logs import get_logger
from ..dataset import Encoding, Shard
from ..files.concatenated import ConcatenatedFiles
from ..files.origins import FileOrigin, LocalOrigin, ObjectOrigin
from ..messages.generator_source import GeneratorSource
from ..query.request_checks import select_shards
from .data_file import DeltaFileDataset
from .log import DeltaFile, DeltaLog, DeltaSnapshot

_MAX_OLD_VERSIONS = 8
_REQUESTS = 16
"""The number of data files that are inspected at a time."""
_POLL_SECONDS = 1.0
"""The shortest time between two looks at the log in an object store, in seconds."""


class DeltaVersion:
    """One version of a Delta table. It never changes. See `Dataset`."""

    kind = "delta table"

    def __init__(
        self, location: str, snapshot: DeltaSnapshot, files: Sequence[DeltaFileDataset]
    ) -> None:
        self.snapshot = snapshot
        """The version in the log."""
        self.files = files
        """The data files."""
        self.version = snapshot.version
        self.schema = snapshot.schema
        self.rows: int | None = sum(file.rows or 0 for file in files)
        self.nbytes: int | None = sum(file.nbytes or 0 for file in files)
        self._location = location

    @property
    def shards(self) -> Sequence[Shard]:
        """One shard for each data file; a single one without rows if the table has no file."""
        return [Shard(file.rows, file.nbytes) for file in self.files] or [Shard(0, 0)]

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the version for one reader; see `Dataset.open`."""
        return self._select(request).open(request, encoding, self._location)

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each row group contributes; see `Dataset.count_rows`."""
        return self._select(request).count_rows(request, encoding, self._location)

    def close(self) -> None:
        """Do nothing: no file is open between readers."""

    def _select(self, request: Request) -> ConcatenatedFiles:
        select_shards(request, self.shards)  # which checks the request of an empty table, too
        files = select_shards(request, self.files) if self.files else ()
        return ConcatenatedFiles.of_schema(files, self.schema)


class DeltaDataset:
    """A Delta table. Each new reader gets the version that is the newest then. See `Dataset`.

    Parameters
    ----------
    location : str
        The folder of the table, or its URL in an object store.

    Raises
    ------
    DatasetError
        If the log or a data file cannot be read, or the table uses a feature that is not supported.
    UsageError
        If there are no credentials for the store.
    MissingExtraError
        If the extra ``delta``, or ``object-store`` for a URL, is not installed.
    """

    kind = "delta table"

    def __init__(self, location: str) -> None:
        self._storage = ObjectStorage(location) if is_object_url(location) else None
        self._log = DeltaLog(location)
        self._lock = threading.Lock()
        self._old: dict[int, DeltaVersion] = {}
        self._logger = get_logger("delta")
        self._current = self._make_version(self._log.load_newest(), {})
        self._polled_at = time.monotonic()

    @property
    def location(self) -> str:
        """The folder or the URL, as it was given. Readers never see it."""
        return self._log.location

    @property
    def schema(self) -> pa.Schema:
        """The schema of the newest version."""
        return self._current.schema

    @property
    def rows(self) -> int | None:
        """The number of rows of the newest version."""
        return self._current.rows

    @property
    def nbytes(self) -> int | None:
        """The size of the data files of the newest version in bytes."""
        return self._current.nbytes

    @property
    def version(self) -> str:
        """The newest version; the last known one if the log is not readable."""
        return self._find_newest(strict=False).version

    @property
    def shards(self) -> Sequence[Shard]:
        """The data files of the newest version."""
        return self._current.shards

    def resolve_version(self, request: Request) -> DeltaVersion:
        """Return the version that a request is for, or the newest.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the table does not have the version any more.
        DatasetError
            If the log cannot be read.
        """
        newest = self._find_newest(strict=True)
        wanted = request.version
        if wanted is None or wanted in (newest.version, str(newest.snapshot.number)):
            return newest
        number = wanted.partition("-")[0]
        if number.isascii() and number.isdigit() and len(number) < 18:
            if int(number) > newest.snapshot.number and self._storage is not None:
                # Another process of the server may have found it since the last look at the log.
                self._polled_at = float("-inf")
                newest = self._find_newest(strict=True)
                if wanted in (newest.version, str(newest.snapshot.number)):
                    return newest
            older = self._find_old(int(number), newest)
            if older is not None and wanted in (older.version, number):
                return older
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the table does not have the version {wanted}; the newest is {newest.version}",
            stream=request.dataset,
        )

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open a version for one reader; see `Dataset.open`."""
        return self.resolve_version(request).open(request, encoding)

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each row group contributes; see `Dataset.count_rows`."""
        return self.resolve_version(request).count_rows(request, encoding)

    def close(self) -> None:
        """Do nothing: no file is open between readers."""

    def _find_newest(self, *, strict: bool) -> DeltaVersion:
        """Return the newest version. If not `strict`, an error is logged, not raised."""
        with self._lock:
            if self._storage is not None and time.monotonic() - self._polled_at < _POLL_SECONDS:
                return self._current
            try:
                snapshot = self._log.load_newest(self._current.snapshot)
                if snapshot is not self._current.snapshot:
                    self._keep_old(self._current)
                    self._current = self._make_version(snapshot, self._known_files(self._current))
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
                    version = self._make_version(snapshot, self._known_files(newest))
                    self._keep_old(version)
            return version

    def _keep_old(self, version: DeltaVersion) -> None:
        self._old[version.snapshot.number] = version
        while len(self._old) > _MAX_OLD_VERSIONS:
            del self._old[next(iter(self._old))]

    def _known_files(self, version: DeltaVersion) -> Mapping[str, DeltaFileDataset]:
        return {file.origin.name: file for file in version.files}

    def _make_version(
        self, snapshot: DeltaSnapshot, known: Mapping[str, DeltaFileDataset]
    ) -> DeltaVersion:
        def open_file(file: DeltaFile) -> DeltaFileDataset:
            dataset = known.get(file.name)
            if dataset is not None and dataset.fits(snapshot.schema):
                return dataset
            return DeltaFileDataset(self._find_origin(file), snapshot.schema, file.partition_values)

        with ThreadPoolExecutor(_REQUESTS if self._storage is not None else 1) as pool:
            files = list(pool.map(open_file, snapshot.files))
        return DeltaVersion(self.location, snapshot, files)

    def _find_origin(self, file: DeltaFile) -> FileOrigin:
        if self._storage is None:
            return LocalOrigin(Path(self.location, file.name), file.name)
        entry = self._storage.find(file.name)
        if entry is None:
            raise DatasetError(
                f"{self.location}/{file.name} does not exist; it may have been vacuumed"
            )
        return ObjectOrigin(self._storage, entry)
