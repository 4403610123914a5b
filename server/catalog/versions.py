"""The versions of a published dataset: staging shards, and committing them as a manifest.

::

    DATASET/_splitarrow/versions/00000001.json    the manifest of version 1
    DATASET/_splitarrow/staging/JOB/…             what a running job has written; invisible
    DATASET/data/JOB/…                            shards; they never change
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Collection, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from ...errors import DatasetError, UsageError
from ...formats.manifest import Manifest, ShardEntry
from .holds import Hold, Holds
from .places import (
    DATA,
    STAGING,
    VERSIONS,
    check_length,
    check_name,
    manifest_name,
    shard_name,
    version_of,
)
from .pruning import prune
from .selection import difference
from .shard_files import describe_shard_file, write_shard_file
from .storage import TEMPORARY, Storage, storage_for

_MOVERS = 16


class VersionStore:
    """The versions of one published dataset. Safe to use from several threads and processes.

    Parameters
    ----------
    location : str or path-like
        Where the dataset is, or will be: a path, or a URL of the scheme ``file``, ``s3``, ``gs``
        or ``az``.

    Raises
    ------
    UsageError
        If the location is a URL of another kind.
    MissingExtraError
        If it is in an object store, and the extra ``object-store`` is not installed.

    Notes
    -----
    Every method raises `DatasetError` where the dataset cannot be read or written.

    Examples
    --------
    >>> import tempfile
    >>> table = pa.table({"delay": [60, 75]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = VersionStore(folder)
    ...     shard = store.write_shard("job-1", "0.arrow", table.schema, table.to_batches())
    ...     manifest = store.commit("job-1", table.schema, [shard], append=False)
    ...     store.versions(), manifest.rows
    ([1], 2)
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.storage: Storage = storage_for(location)
        """Where it lies."""
        self._holds = Holds(self.storage)

    @property
    def location(self) -> str:
        """Where the dataset is: an absolute path or a URL."""
        return self.storage.location

    def versions(self) -> list[int]:
        """Return the numbers of the versions that there are, in order."""
        found = (version_of(stored.name) for stored in self.storage.names(VERSIONS))
        return sorted(version for version in found if version is not None)

    def load(self, version: int | None = None) -> Manifest | None:
        """Return a manifest.

        Parameters
        ----------
        version : int, optional
            Which; None: the current version, which is the highest.

        Returns
        -------
        Manifest or None
            None if there is no such version, or none at all.

        Raises
        ------
        DatasetError
            If it cannot be read, or is malformed.
        """
        if version is not None:
            return self._read(version)
        while versions := self.versions():
            found = self._read(versions[-1])
            if found is not None:
                return found
        return None

    def staging(self, job: str) -> str:
        """Return where the tasks of a job may write: a path or a URL.

        Raises
        ------
        UsageError
            If `job` is no name for a job.
        """
        return f"{self.location}/{STAGING}/{check_name(job, 'job')}"

    def write_shard(
        self,
        job: str,
        name: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        ordinal: int = -1,
        options: pa.ipc.IpcWriteOptions | None = None,
    ) -> ShardEntry:
        """Write a shard where nobody sees it yet, and return what to give to `commit`.

        Parameters
        ----------
        job : str
            Which job it belongs to: letters, digits, ``_``, ``.`` and ``-``.
        name : str
            What its file is called, as in ``00000.arrow``; a hash is added.
        schema : pyarrow.Schema
            The schema of the batches.
        batches : iterable of pyarrow.RecordBatch
            What is in it.
        ordinal : int, optional
            Its position among the shards of the job; by default, that in the list of `commit`.
        options : pyarrow.ipc.IpcWriteOptions, optional
            How they are written.
        """
        check_name(name, "shard")
        with self._scratch(job) as path:
            entry = write_shard_file(path, schema, batches, options)
            return self._staged(job, name, path, entry, ordinal)

    def stage_file(
        self, job: str, name: str, path: Path, *, ordinal: int = -1
    ) -> tuple[pa.Schema, ShardEntry]:
        """Bring an Arrow IPC file where nobody sees it yet; it is moved if it can be.

        Parameters
        ----------
        job, name, ordinal
            As for `write_shard`.
        path : Path
            The file. It is read whole, and has to be valid.

        Returns
        -------
        schema : pyarrow.Schema
            The file's.
        shard : ShardEntry
            What to give to `commit`.
        """
        check_name(name, "shard")
        schema, entry = describe_shard_file(path)
        return schema, self._staged(job, name, path, entry, ordinal)

    def commit(
        self,
        job: str,
        schema: pa.Schema,
        shards: Iterable[ShardEntry],
        *,
        append: bool,
        properties: Mapping[str, str] | None = None,
        snapshot: str = "",
        shards_total: int | None = None,
    ) -> Manifest:
        """Publish the shards of a job as the next version; of two calls for one job, one does.

        Parameters
        ----------
        job : str
            The job. If there is a version that it made, that is returned.
        schema : pyarrow.Schema
            The schema of all shards.
        shards : iterable of ShardEntry
            What `write_shard` and `stage_file` returned; or shards that lie in the dataset.
        append : bool
            Whether the new version has the shards of the current one, too, in front. Ordinals
            and `shards_total` count the job's shards; they are moved up here.
        properties : mapping of str to str, optional
            Whatever else there is to say.
        snapshot : str
            What identifies the publication, where several servers get shards of it.
        shards_total : int, optional
            How many shards the job has over all servers; by default as many as there are here.

        Raises
        ------
        DatasetError
            If a shard is not there as it was staged, or another schema is appended.
        InvalidDataError
            If a shard or another argument is impossible.
        """
        check_name(job, "job")
        total = -1 if shards_total is None else shards_total
        created = datetime.now(UTC)
        new = Manifest(1, created, job, schema, tuple(shards), properties or {}, snapshot, total)
        seen, made = self._made_by(job, 0)
        if made is None:
            self._publish(job, new.shards)
        while made is None:
            seen, made = self._made_by(job, seen)
            base = self._read(seen) if seen and made is None else None
            if made is None and (base is not None or not seen):
                following = _following(base, new, append=append)
                if self.storage.create(manifest_name(following.version), following.to_json()):
                    made = following
        self._delete_below(f"{STAGING}/{job}")
        return made

    def publish_shard(self, job: str, shard: ShardEntry) -> None:
        """Move a staged shard to its place in the dataset, as `commit` does with each.

        Raises
        ------
        DatasetError
            If it is neither staged nor there.
        """
        staged = f"{STAGING}/{job}/{shard.path.rpartition('/')[2]}"
        if self._has(shard):
            return  # its name has its hash
        try:
            if self.storage.nbytes(staged) == shard.nbytes:
                self.storage.move(staged, shard.path)
                return
        except DatasetError:
            if not self._has(shard):
                raise
        if not self._has(shard):  # another call for the same job may have moved it
            raise DatasetError(
                f"{self.location}: the shard {shard.path} of the job {job} was not staged"
            )

    @contextmanager
    def open_shard(self, shard: ShardEntry) -> Generator[BufferedReader]:
        """Open the file of a shard for reading; one in an object store is downloaded.

        Raises
        ------
        DatasetError
            If it is missing, or has another length than the manifest says.
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
                check_length(shard, os.fstat(file.fileno()).st_size, self.location)
                yield file

    def discard(self, job: str) -> None:
        """Remove what a job has staged, and what it has moved if it made no version."""
        check_name(job, "job")
        if self._made_by(job, 0)[1] is None:
            self._delete_below(f"{DATA}/{job}")
        self._delete_below(f"{STAGING}/{job}")

    def hold(self, version: int) -> Hold | None:
        """Keep a version from being pruned until the hold is closed; None if there is none."""
        return self._holds.take(manifest_name(version))

    def prune(self, keep: int, wanted: Collection[int] = ()) -> list[int]:
        """Remove versions that are not among the newest, and shards that no other version names.

        Versions that are held stay, on the same machine also those that other processes hold.

        Parameters
        ----------
        keep : int
            How many versions stay at least; 1 or more.
        wanted : collection of int
            Versions that stay besides.

        Returns
        -------
        list of int
            The versions that were removed.
        """
        if keep < 1:
            raise UsageError(f"at least one version has to be kept, not {keep}")
        return prune(self, self._holds, keep, wanted)

    def _read(self, version: int) -> Manifest | None:
        name = manifest_name(version)
        data = self.storage.read(name)
        if data is None:
            return None
        label = f"{self.location}/{name}"
        manifest = Manifest.from_json(data, label)
        if manifest.version != version:
            raise DatasetError(f"{label} is no manifest: version is {manifest.version}")
        return manifest

    def _made_by(self, job: str, after: int) -> tuple[int, Manifest | None]:
        """Return the highest version, and that behind `after` which a job made, if it did."""
        highest = after
        for version in self.versions():
            if version > after:
                highest = version
                data = self.storage.read(manifest_name(version))
                if data is not None and job.encode() in data:
                    manifest = self._read(version)
                    if manifest is not None and manifest.job == job:
                        return version, manifest
        return highest, None

    def _has(self, shard: ShardEntry) -> bool:
        return self.storage.nbytes(shard.path) == shard.nbytes

    def _publish(self, job: str, shards: Iterable[ShardEntry]) -> None:
        found = list(shards)
        with ThreadPoolExecutor(_MOVERS) as movers:
            for _ in movers.map(lambda shard: self.publish_shard(job, shard), found):
                pass
        self.storage.flush(shard.path.rpartition("/")[0] for shard in found)

    @contextmanager
    def _scratch(self, job: str) -> Generator[Path]:
        """Yield the name of a file that does not exist yet and may be moved into staging."""
        check_name(job, "job")
        if self.storage.folder is None:
            with tempfile.TemporaryDirectory() as scratch:
                yield Path(scratch, "shard")
            return
        folder = self.storage.folder / STAGING / job
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"{folder}: {error.strerror}") from None
        path = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _staged(
        self, job: str, name: str, path: Path, entry: ShardEntry, ordinal: int
    ) -> ShardEntry:
        name = shard_name(name, entry.sha256)
        self.storage.put(f"{STAGING}/{check_name(job, 'job')}/{name}", path)
        return replace(entry, path=f"{DATA}/{job}/{name}", ordinal=ordinal)

    def _delete_below(self, folder: str) -> None:
        self.storage.delete([stored.name for stored in self.storage.names(folder)])


def _following(base: Manifest | None, new: Manifest, *, append: bool) -> Manifest:
    """Return the manifest to put behind `base`."""
    if base is None:
        return new
    if not append:
        return replace(new, version=base.version + 1)
    why = difference(base.schema, new.schema)
    if why is not None:
        raise DatasetError(f"what is appended differs from version {base.version}: {why}")
    moved = [replace(one, ordinal=one.ordinal + base.shards_total) for one in new.shards]
    return replace(
        new,
        version=base.version + 1,
        schema=base.schema,
        shards=(*base.shards, *moved),
        shards_total=base.shards_total + new.shards_total,
    )
