"""The versions of a published dataset: staging shards, committing, reading and pruning versions.

A shard goes through three states::

    _splitarrow/staging/JOB/.tmp-…      incomplete: the file is being written
    _splitarrow/staging/JOB/NAME-HASH   staged: the file is complete
    data/JOB/NAME-HASH                  promoted: the file has the path in its manifest entry

A commit promotes the shards of a job and creates the manifest of the next version. A job that fails
leaves files in any of these states, and no reader sees them. If the job runs again, it stages the
same names and promotes them. `VersionStore.discard` removes them. Each step can be repeated, and
several processes may take it at the same time, because a shard's name contains the hash of its
contents.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from ..errors import DatasetError, UsageError
from ..formats.arrow.schema import describe_difference
from .atomic_files import create_folder, new_temporary_name
from .layout import (
    PRUNED,
    VERSIONS,
    check_name,
    format_data_folder,
    format_manifest_name,
    format_shard_name,
    format_staging_folder,
    parse_manifest_name,
)
from .locks import VersionLock, VersionLocks
from .manifest import (
    UNSET,
    Manifest,
    ManifestError,
    ShardEntry,
    check_properties,
    decode_manifest,
    encode_manifest,
)
from .shard_files import check_shard_length, inspect_shard_file, write_shard_file
from .storage import Storage, StoredObject, open_storage

_PROMOTION_THREADS = 16


class VersionStore:
    """The versions of one published dataset. Safe to use from several threads and processes.

    Parameters
    ----------
    location : str, path-like or Storage
        The location of the dataset, which need not exist yet: a path, a URL with the scheme
        ``file``, ``s3``, ``gs`` or ``az``, or a storage.
    follow_symlinks : bool
        Whether symbolic links may lead out of a local folder.

    Raises
    ------
    UsageError
        If the URL is incomplete or has another scheme.
    MissingExtraError
        If the URL names an object store, and the extra ``object-store`` is not installed.

    Notes
    -----
    Every method raises `DatasetError` if the storage cannot be read or written.

    Examples
    --------
    >>> import tempfile
    >>> table = pa.table({"delay": [60, 75]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = VersionStore(folder)
    ...     shard = store.write_shard("job-1", "0.arrow", table.schema, table.to_batches())
    ...     manifest = store.commit("job-1", table.schema, [shard], append=False)
    ...     store.list_versions(), manifest.rows
    ([1], 2)
    """

    def __init__(
        self, location: str | os.PathLike[str] | Storage, *, follow_symlinks: bool = True
    ) -> None:
        self.storage: Storage = (
            open_storage(location, follow_symlinks=follow_symlinks)
            if isinstance(location, (str, os.PathLike))
            else location
        )
        """The storage of the dataset."""
        self._locks = VersionLocks(self.storage)

    @property
    def location(self) -> str:
        """The location of the dataset: an absolute path or a URL."""
        return self.storage.location

    def list_versions(self) -> list[int]:
        """Return the numbers of the existing versions in ascending order."""
        return sorted(self.list_manifests())

    def list_manifests(self) -> dict[int, StoredObject]:
        """Return the manifest file of each existing version, by its number.

        The file differs if the dataset was removed and published anew.
        """
        entries = self.storage.list_objects(VERSIONS)
        found = {parse_manifest_name(entry.name): entry for entry in entries}
        return {version: entry for version, entry in found.items() if version is not None}

    def load(self, version: int | None = None) -> Manifest | None:
        """Return the manifest of a version.

        Parameters
        ----------
        version : int, optional
            The number of the version. None means the current version, which is the highest.

        Returns
        -------
        Manifest or None
            None if the version does not exist.

        Raises
        ------
        DatasetError
            If the manifest is malformed.
        """
        if version is not None:
            return self._load(version)
        while versions := self.list_versions():
            manifest = self._load(versions[-1])
            if manifest is not None:  # not pruned since the versions were listed
                return manifest
        return None

    def find_job(self, job: str) -> Manifest | None:
        """Return the manifest of the version that a job committed; None if it committed none."""
        return self._find_job(job)[1]

    def staging_location(self, job: str) -> str:
        """Return the folder that the tasks of a job may write to: a path or a URL.

        Raises
        ------
        UsageError
            If `job` is not a valid name.
        """
        return f"{self.location}/{format_staging_folder(check_name(job, 'job'))}"

    def create_staging(self, job: str) -> None:
        """Create the staging folder of a job; in an object store, do nothing.

        Raises
        ------
        DatasetError
            If the folder cannot be created.
        UsageError
            If `job` is not a valid name.
        """
        check_name(job, "job")
        folder = self.storage.folder
        if folder is not None:
            path = folder / format_staging_folder(job)
            try:
                create_folder(path)
            except OSError as error:
                raise DatasetError(f"{path}: {error.strerror}") from None

    def discard_empty_staging(self, job: str) -> None:
        """Remove the staging folder of a job if it is empty."""
        check_name(job, "job")
        if self.storage.folder is not None:
            with suppress(OSError):  # it is not empty
                (self.storage.folder / format_staging_folder(job)).rmdir()

    def write_shard(
        self,
        job: str,
        name: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        ordinal: int = UNSET,
        options: pa.ipc.IpcWriteOptions | None = None,
    ) -> ShardEntry:
        """Write a shard to the staging folder, where no reader sees it.

        Parameters
        ----------
        job : str
            The job. Its name consists of letters, digits, ``_``, ``.`` and ``-``.
        name : str
            The file name, such as ``00000.arrow``. A hash of the contents is added to it.
        schema : pyarrow.Schema
            The schema of the batches.
        batches : iterable of pyarrow.RecordBatch
            The contents.
        ordinal : int, optional
            The position among the shards of the job. Default: the position in the list that
            `commit` gets.
        options : pyarrow.ipc.IpcWriteOptions, optional
            The compression and other options of the file.

        Returns
        -------
        ShardEntry
            The argument for `commit`.

        Raises
        ------
        UsageError
            If `job` or `name` is not a valid name.
        """
        check_name(name, "shard")
        self.create_staging(job)
        with self._temporary_file(job) as path:
            entry = write_shard_file(path, schema, batches, options)
            return self._stage(job, name, path, replace(entry, ordinal=ordinal))

    def stage_file(
        self, job: str, name: str, path: Path, *, ordinal: int = UNSET
    ) -> tuple[pa.Schema, ShardEntry]:
        """Put an Arrow IPC file into the staging folder.

        Parameters
        ----------
        job, name, ordinal
            As for `write_shard`.
        path : Path
            The file. It is validated in full, and moved rather than copied where possible.

        Returns
        -------
        schema : pyarrow.Schema
            The schema of the file.
        shard : ShardEntry
            The argument for `commit`.

        Raises
        ------
        DatasetError
            If the file is not a valid Arrow IPC file.
        UsageError
            If `job` or `name` is not a valid name.
        """
        check_name(name, "shard")
        check_name(job, "job")
        schema, entry = inspect_shard_file(path)
        return schema, self._stage(job, name, path, replace(entry, ordinal=ordinal))

    def promote_shard(self, job: str, shard: ShardEntry) -> None:
        """Move a staged shard to its final path, as `commit` does with each shard.

        Raises
        ------
        DatasetError
            If the shard is neither staged nor promoted.
        """
        staged = f"{format_staging_folder(job)}/{shard.path.rpartition('/')[2]}"
        if self._is_promoted(shard):
            return
        try:
            found = self.storage.find(staged)
            if found is not None and found.nbytes == shard.nbytes:
                self.storage.move(staged, shard.path)
                return
        except DatasetError:
            if not self._is_promoted(shard):
                raise
        if not self._is_promoted(shard):  # another process may have promoted it meanwhile
            raise DatasetError(
                f"{self.location}: the shard {shard.path} of the job {job} was not staged"
            )

    def commit(
        self,
        job: str,
        schema: pa.Schema,
        shards: Iterable[ShardEntry],
        *,
        append: bool,
        replaces: Callable[[ShardEntry], bool] | None = None,
        base: int | None = None,
        properties: Mapping[str, str] | None = None,
        snapshot: str = "",
        shards_total: int | None = None,
    ) -> Manifest:
        """Publish the shards of a job as the next version.

        A job commits at most one version. Another call for the same job, in this process or
        another one, returns that version.

        Parameters
        ----------
        job : str
            The job.
        schema : pyarrow.Schema
            The schema of all shards.
        shards : iterable of ShardEntry
            The results of `write_shard` and `stage_file`, or entries of existing shards.
        append : bool
            Whether the new version also has the shards of the current one, before its own. The
            ordinals and `shards_total` of the job are then shifted accordingly.
        replaces : callable, optional
            With `append`, tells whether the new version leaves out a shard of the current one,
            which must be complete.
        base : int, optional
            The version that must still be the current one.
        properties : mapping of str to str, optional
            Further information to store in the manifest.
        snapshot : str
            The identifier that all servers with shards of this publication share. Default: the
            job.
        shards_total : int, optional
            The number of the job's shards on all servers. Default: the number of `shards`.

        Raises
        ------
        DatasetError
            If a shard is not staged, an appended schema differs from the current one, or `base` is
            not the current version.
        InvalidDataError
            If a shard or another argument has an impossible value, or the properties are larger
            than 64 KiB.
        UsageError
            If `job` is not a valid name.
        """
        check_name(job, "job")
        properties = check_properties(properties or {})
        total = UNSET if shards_total is None else shards_total
        created = datetime.now(UTC)
        new = Manifest(1, created, job, schema, tuple(shards), properties, snapshot, total)
        highest, committed = self._find_job(job)
        if committed is None:
            self._promote_shards(job, new.shards)
        while committed is None:
            highest, committed = self._find_job(job, after=highest)
            if committed is None and base not in (None, highest):
                raise DatasetError(
                    f"{self.location}: version {highest} was published after version {base} was "
                    "read; write again"
                )
            if committed is None:
                committed = self._create_version(highest, new, append, replaces)
        self._delete_folder(format_staging_folder(job))
        return committed

    def discard(self, job: str) -> None:
        """Remove the staged shards of a job, and its other shards unless a version has them."""
        check_name(job, "job")
        if not self._is_used(format_data_folder(job)):
            self._delete_folder(format_data_folder(job))
        self._delete_folder(format_staging_folder(job))

    @contextmanager
    def open_shard(self, shard: ShardEntry) -> Generator[BufferedReader]:
        """Open the file of a shard for reading. One in an object store is downloaded first.

        Raises
        ------
        DatasetError
            If the file is missing, or does not have the length in its manifest.
        """
        with tempfile.TemporaryDirectory() as scratch:
            if self.storage.folder is not None:
                path = self.storage.folder / shard.path
            else:
                path = Path(scratch, "shard")
                self.storage.fetch(shard.path, path)
            try:
                file = path.open("rb")
            except OSError as error:
                raise DatasetError(f"{self.location}/{shard.path}: {error.strerror}") from None
            with file:
                check_shard_length(shard, os.fstat(file.fileno()).st_size, self.location)
                yield file

    def lock(self, version: int, *, check: bool = True) -> VersionLock | None:
        """Keep a version from being pruned until the lock is released.

        Parameters
        ----------
        version : int
            The number of the version.
        check : bool
            Whether to ask an object store if the version exists. A reader that has all of its
            shards needs no answer.

        Returns
        -------
        VersionLock or None
            None if the version does not exist.
        """
        return self._locks.acquire(format_manifest_name(version), check=check)

    def prune(self, keep: int, protected: Collection[int] = ()) -> list[int]:
        """Remove old versions, and the shards that no remaining version names.

        Locked versions stay. In a folder, the locks of all processes on this machine count. In an
        object store, those of this process count.

        Parameters
        ----------
        keep : int
            The number of newest versions that stay; at least 1.
        protected : collection of int
            Further versions that stay.

        Returns
        -------
        list of int
            The versions that were removed.

        Raises
        ------
        UsageError
            If `keep` is less than 1.
        """
        if keep < 1:
            raise UsageError(f"keep is {keep}; at least one version must be kept")
        removed: list[int] = []
        for version in self.list_versions()[:-keep]:
            if version in protected:
                continue
            name = format_manifest_name(version)
            with self._locks.try_lock_exclusively(name) as locked:
                if locked and self.storage.find(name) is not None:
                    self.storage.move(name, f"{PRUNED}/{version:08d}.json")
                    removed.append(version)
        self._delete_unreferenced_shards()
        return removed

    def _load(self, version: int) -> Manifest | None:
        name = format_manifest_name(version)
        data = self.storage.read(name)
        if data is None:
            return None
        label = f"{self.location}/{name}"
        manifest = decode_manifest(data, label)
        if manifest.version != version:
            raise ManifestError(
                f"{label} is not a valid manifest: version is {manifest.version}; "
                f"expected {version}"
            )
        return manifest

    def _find_job(self, job: str, after: int = 0) -> tuple[int, Manifest | None]:
        """Return the version that a job committed; otherwise the highest version, and None.

        Versions up to `after` are not read.
        """
        versions = [version for version in self.list_versions() if version > after]
        for version in reversed(versions):
            data = self.storage.read(format_manifest_name(version))
            if data is not None and job.encode() in data:
                manifest = self._load(version)
                if manifest is not None and manifest.job == job:
                    return version, manifest
        return max(versions, default=after), None

    def _is_used(self, folder: str) -> bool:
        """Return whether a version, of its own job or by appending, has shards in a folder."""
        manifests = filter(None, map(self._load, self.list_versions()))
        return any(
            shard.path.startswith(f"{folder}/")
            for manifest in manifests
            for shard in manifest.shards
        )

    def _create_version(
        self,
        highest: int,
        new: Manifest,
        append: bool,
        replaces: Callable[[ShardEntry], bool] | None,
    ) -> Manifest | None:
        """Create the version after `highest`; return None if another writer was faster."""
        base = self._load(highest) if highest else None
        if highest and base is None:
            return None  # pruned meanwhile, so a higher version exists
        if base is not None and replaces is not None:
            base = _leave_out(base, replaces)
        manifest = _build_on(base, new, append=append)
        name = format_manifest_name(manifest.version)
        return manifest if self.storage.create(name, encode_manifest(manifest)) else None

    def _promote_shards(self, job: str, shards: Collection[ShardEntry]) -> None:
        """Promote all shards of a job, and make their names durable."""
        with ThreadPoolExecutor(_PROMOTION_THREADS) as threads:
            for _ in threads.map(lambda shard: self.promote_shard(job, shard), shards):
                pass
        self.storage.flush(shard.path.rpartition("/")[0] for shard in shards)

    def _is_promoted(self, shard: ShardEntry) -> bool:
        # The name contains the hash of the contents, so the length proves a complete file.
        found = self.storage.find(shard.path)
        return found is not None and found.nbytes == shard.nbytes

    @contextmanager
    def _temporary_file(self, job: str) -> Generator[Path]:
        """Yield the path of a new local file, on the file system of the dataset if possible."""
        if self.storage.folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                yield Path(scratch, "shard")
            return
        path = self.storage.folder / format_staging_folder(job) / new_temporary_name()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _stage(self, job: str, name: str, path: Path, entry: ShardEntry) -> ShardEntry:
        file_name = format_shard_name(name, entry.sha256)
        self.storage.put(f"{format_staging_folder(job)}/{file_name}", path)
        return replace(entry, path=f"{format_data_folder(job)}/{file_name}")

    def _delete_folder(self, folder: str) -> None:
        if self.storage.folder is None:
            self.storage.delete([entry.name for entry in self.storage.list_objects(folder)])
            return
        # A task that still runs cannot create files in a folder that has another name.
        path = self.storage.folder / folder
        removed = path.with_name(new_temporary_name())
        try:
            path.rename(removed)
            shutil.rmtree(removed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise DatasetError(f"{path}: {error.strerror}") from None

    def _delete_unreferenced_shards(self) -> None:
        """Delete the shards that only pruned manifests name, and then these manifests."""
        pruned = self.storage.list_objects(PRUNED)
        if not pruned:
            return
        # A power failure must not bring a manifest back without its shards.
        self.storage.flush([VERSIONS, PRUNED])
        referenced: set[str] = set()
        for version in self.list_versions():
            manifest = self._load(version)
            referenced.update(shard.path for shard in (manifest.shards if manifest else ()))
        for entry in pruned:
            data = self.storage.read(entry.name)
            if data is not None:
                manifest = decode_manifest(data, f"{self.location}/{entry.name}")
                self.storage.delete(s.path for s in manifest.shards if s.path not in referenced)
            self.storage.delete([entry.name])


def _leave_out(base: Manifest, replaces: Callable[[ShardEntry], bool]) -> Manifest:
    """Return a manifest without some shards, the others numbered anew."""
    if len(base.shards) != base.shards_total:
        raise DatasetError(
            f"version {base.version} has {len(base.shards)} of {base.shards_total} shards; other "
            "servers store the rest, so none can be replaced here"
        )
    kept = [shard for shard in base.shards if not replaces(shard)]
    shards = tuple(replace(shard, ordinal=ordinal) for ordinal, shard in enumerate(kept))
    return replace(base, shards=shards, shards_total=len(shards))


def _build_on(base: Manifest | None, new: Manifest, *, append: bool) -> Manifest:
    """Return the manifest of the version after `base`."""
    if base is None:
        return new
    if not append:
        return replace(new, version=base.version + 1)
    difference = describe_difference(base.schema, new.schema)
    if difference is not None:
        raise DatasetError(
            f"cannot append: the schema differs from that of version {base.version}: {difference}"
        )
    shifted = [replace(shard, ordinal=shard.ordinal + base.shards_total) for shard in new.shards]
    return replace(
        new,
        version=base.version + 1,
        schema=base.schema,
        shards=(*base.shards, *shifted),
        shards_total=base.shards_total + new.shards_total,
    )
