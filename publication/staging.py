"""Staging: writing the shards of a job before they are part of a version.

A shard goes through three states::

    _splitarrow/staging/JOB/.tmp-…      incomplete: the file is being written
    _splitarrow/staging/JOB/NAME-HASH   staged: the file is complete
    data/JOB/NAME-HASH                  promoted: the file has the path in its manifest entry

A job that fails leaves files in any of these states, and no reader sees them. If the job runs
again, it stages the same names and promotes them. `StagingArea.discard` removes them. Each step
can be repeated, and several processes may take it at the same time, because a shard's name
contains the hash of its contents.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ..errors import DatasetError
from .atomic_files import new_temporary_name
from .layout import check_name, format_data_folder, format_shard_name, format_staging_folder
from .manifest import ShardEntry
from .shard_files import inspect_shard_file, write_shard_file
from .storage import Storage

_PROMOTION_THREADS = 16


class StagingArea:
    """The uncommitted shards of one dataset. Safe to use from several threads and processes.

    Every method raises `DatasetError` if the storage cannot be read or written, and `UsageError`
    if a job or a shard has an invalid name.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def location(self, job: str) -> str:
        """Return the staging folder of a job: a path or a URL."""
        return f"{self._storage.location}/{format_staging_folder(check_name(job, 'job'))}"

    def create_folder(self, job: str) -> Path | None:
        """Create the staging folder of a job, and return it; None in an object store."""
        if self._storage.folder is None:
            check_name(job, "job")
            return None
        folder = self._storage.folder / format_staging_folder(check_name(job, "job"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"{folder}: {error.strerror}") from None
        return folder

    def discard_empty_folder(self, job: str) -> None:
        """Remove the staging folder of a job if it is empty."""
        if self._storage.folder is not None:
            with suppress(OSError):  # it is not empty
                (self._storage.folder / format_staging_folder(check_name(job, "job"))).rmdir()

    def write_shard(
        self,
        job: str,
        name: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        ordinal: int,
        options: pa.ipc.IpcWriteOptions | None,
    ) -> ShardEntry:
        """Write and stage a shard; see `VersionStore.write_shard`."""
        check_name(name, "shard")
        with self._create_temporary_file(job) as path:
            entry = write_shard_file(path, schema, batches, options)
            return self._stage(job, name, path, entry, ordinal)

    def stage_file(
        self, job: str, name: str, path: Path, ordinal: int
    ) -> tuple[pa.Schema, ShardEntry]:
        """Stage an existing file; see `VersionStore.stage_file`."""
        check_name(name, "shard")
        schema, entry = inspect_shard_file(path)
        return schema, self._stage(job, name, path, entry, ordinal)

    def promote_shard(self, job: str, shard: ShardEntry) -> None:
        """Move a staged shard to the path in its entry.

        Raises `DatasetError` if the shard is neither staged nor promoted.
        """
        staged = f"{format_staging_folder(job)}/{shard.path.rpartition('/')[2]}"
        if self._is_promoted(shard):
            return
        try:
            if self._storage.get_size(staged) == shard.nbytes:
                self._storage.move(staged, shard.path)
                return
        except DatasetError:
            if not self._is_promoted(shard):
                raise
        if not self._is_promoted(shard):  # another process may have promoted it meanwhile
            raise DatasetError(
                f"{self._storage.location}: the shard {shard.path} of the job {job} was not staged"
            )

    def promote_shards(self, job: str, shards: Iterable[ShardEntry]) -> None:
        """Promote all shards of a job, and make their names durable."""
        entries = list(shards)
        with ThreadPoolExecutor(_PROMOTION_THREADS) as threads:
            for _ in threads.map(lambda shard: self.promote_shard(job, shard), entries):
                pass
        self._storage.flush(shard.path.rpartition("/")[0] for shard in entries)

    def discard_staged(self, job: str) -> None:
        """Remove the staged shards of a job."""
        self._delete_folder(format_staging_folder(job))

    def discard_promoted(self, job: str) -> None:
        """Remove the promoted shards of a job. No version may refer to them."""
        self._delete_folder(format_data_folder(job))

    def _is_promoted(self, shard: ShardEntry) -> bool:
        # The name contains the hash of the contents, so the length proves a complete file.
        return self._storage.get_size(shard.path) == shard.nbytes

    @contextmanager
    def _create_temporary_file(self, job: str) -> Generator[Path]:
        """Yield the path of a new local file, on the file system of the dataset if possible."""
        folder = self.create_folder(job)
        if folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                yield Path(scratch, "shard")
            return
        path = folder / new_temporary_name()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _stage(
        self, job: str, name: str, path: Path, entry: ShardEntry, ordinal: int
    ) -> ShardEntry:
        file_name = format_shard_name(name, entry.sha256)
        self._storage.put(f"{format_staging_folder(check_name(job, 'job'))}/{file_name}", path)
        return replace(entry, path=f"{format_data_folder(job)}/{file_name}", ordinal=ordinal)

    def _delete_folder(self, folder: str) -> None:
        if self._storage.folder is None:
            self._storage.delete([entry.name for entry in self._storage.list_objects(folder)])
            return
        # A task that still runs cannot create files in a folder that has another name.
        path = self._storage.folder / folder
        removed = path.with_name(new_temporary_name())
        try:
            path.rename(removed)
            shutil.rmtree(removed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from None
