"""The directory of uploads: one file for each uploaded dataset, and the published datasets."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ...errors import (
    ConfigError,
    ExhaustedError,
    InvalidRequestError,
    NotFoundError,
    SplitArrowError,
    remote_error,
)
from ...protocol.limits import Limits
from ...publication.atomic_files import sync_folder
from ...publication.manifest import Manifest
from ...publication.shard_files import hash_file
from ..catalog.catalog import Catalog, open_dataset
from ..logs import get_logger
from .publication import PublishedFolder, PublishRequest, ShardKey
from .quota import Quota
from .upload import Upload, map_errors

FILE_SUFFIX = ".arrow"
"""The suffix of the file of an uploaded dataset."""
FOLDER_SUFFIX = ".published"
"""The suffix of the folder of a published dataset."""
INCOMPLETE_PREFIX = ".upload-"
"""The prefix of incomplete files and of folders that are being removed."""
_MAX_BYTES = 255
_DROP = "drop the dataset"
_FORBIDDEN = "/\\%"


def encode_name(dataset: str, suffix: str = FILE_SUFFIX) -> str:
    """Return the name of the file or folder of a dataset.

    Raises `InvalidRequestError` if the dataset's name could be mistaken for a path, or is too long
    for a file.

    Examples
    --------
    >>> encode_name("scores 2024")
    'scores%202024.arrow'
    """
    hidden = dataset.startswith(".") or not dataset.isprintable() or not dataset.strip()
    if hidden or any(character in dataset for character in _FORBIDDEN):
        raise InvalidRequestError(
            f"{dataset[:80]!r} is not a valid name for an upload: it must not be blank, begin with "
            "a dot, or contain / \\ % or control characters"
        )
    name = quote(dataset, safe="") + suffix
    if len(name) > _MAX_BYTES:
        raise InvalidRequestError(
            f"the name {dataset[:80]!r}… is too long for an upload: its file name has {len(name)} "
            f"characters, and the limit is {_MAX_BYTES}"
        )
    return name


def decode_name(name: str, suffix: str = FILE_SUFFIX) -> str | None:
    """Return the dataset that a file or folder belongs to; None if `encode_name` cannot make it."""
    dataset = unquote(name.removesuffix(suffix), errors="replace")
    try:
        return dataset if encode_name(dataset, suffix) == name else None
    except InvalidRequestError:
        return None


def make_incomplete_path(directory: Path) -> Path:
    """Return a new path for an incomplete file, or for a folder that is being removed."""
    return directory / f"{INCOMPLETE_PREFIX}{secrets.token_hex(16)}"


class PublicationStore:
    """The published datasets in the directory of uploads. Safe to use from several threads.

    The methods block. If the server dies, no step must be undone: staged shards stay for their
    job to continue, a version is committed completely or not at all, and a folder that is being
    removed has a name that the next server removes.
    """

    def __init__(self, directory: Path, catalog: Catalog, quota: Quota) -> None:
        self._directory = directory
        self._catalog = catalog
        self._quota = quota
        self._lock = threading.RLock()
        self._served: set[str] = set()
        """The datasets that are in the catalog."""
        self._jobs: dict[str, dict[str, int]] = {}
        """The version that each job has committed, by dataset and job."""
        self._log = get_logger("publications")

    def restore(self) -> None:
        """Serve the datasets that are already published, and count the staged shards.

        A dataset that cannot be read is logged and left out.
        """
        for path in sorted(self._directory.iterdir()):
            if not path.is_dir() or path.is_symlink():
                continue
            if path.name.startswith(INCOMPLETE_PREFIX):
                shutil.rmtree(path, ignore_errors=True)
                continue
            dataset = decode_name(path.name, FOLDER_SUFFIX)
            if dataset is not None:
                try:
                    self._restore(PublishedFolder(dataset, path))
                except (SplitArrowError, OSError) as error:
                    event = "cannot serve published dataset"
                    self._log.error(event, dataset=dataset, reason=str(error))

    def begin_upload(self, key: ShardKey, limits: Limits) -> Upload:
        """Return a new upload of a shard, which the caller must close."""
        encode_name(key.dataset, FOLDER_SUFFIX)
        self._check_name(key.dataset)

        def commit(upload: Upload) -> Mapping[str, Any]:
            sha256 = self._stage(key, upload)
            return {"job": key.job, "ordinal": key.ordinal, "sha256": sha256}

        path = make_incomplete_path(self._directory)
        return Upload(key.dataset, path, self._quota, commit, limits, as_file=True)

    def publish(self, request: PublishRequest) -> dict[str, Any]:
        """Commit the staged shards of a job as a version, and serve it.

        A repeated request returns the version that the job has committed.
        """
        dataset, job = request.dataset, request.job
        folder = self._open_folder(dataset)
        with self._lock:
            self._check_name(dataset)
            staged = folder.measure_staged(job)
            version = self._jobs.get(dataset, {}).get(job)
            if version is not None:
                manifest = folder.load_committed(request, version)
            else:
                manifest = self._commit(folder, request)
                self._jobs.setdefault(dataset, {})[job] = manifest.version
            if dataset not in self._served:
                self._catalog.add(dataset, folder.path)
                self._served.add(dataset)
            folder.remove_staged(job)
            for key in staged:
                self._quota.release(key)
            self._record_committed(folder)
        self._log.info("dataset published", dataset=dataset, version=manifest.version)
        return {
            "dataset": dataset,
            "version": manifest.version,
            "snapshot": manifest.snapshot,
            "shards": len(manifest.shards),
            "rows": manifest.rows,
            "bytes": manifest.nbytes,
        }

    def discard(self, dataset: str, job: str) -> None:
        """Remove the staged shards of a job. Those that are published stay. Idempotent."""
        folder = self._open_folder(dataset)
        with self._lock:
            for key in folder.measure_staged(job):
                self._quota.release(key)
            folder.discard(job)

    def drop(self, dataset: str) -> bool:
        """Remove a published dataset, and return whether it existed."""
        with self._lock:
            if dataset not in self._served:
                return False
            folder = self._open_folder(dataset)
            staged = folder.measure_staged()
            removed = make_incomplete_path(self._directory)
            with _removing(self._catalog, dataset, folder.path):
                folder.path.rename(removed)
            self._served.discard(dataset)
            self._jobs.pop(dataset, None)
            self._quota.release(_name_committed_owner(dataset))
            for key in staged:
                self._quota.release(key)
            try:
                with map_errors(dataset, _DROP):
                    # A power failure must not bring the dataset back without its shards.
                    sync_folder(self._directory)
            finally:
                shutil.rmtree(removed, ignore_errors=True)
        self._log.info("dataset dropped", dataset=dataset)
        return True

    def _restore(self, folder: PublishedFolder) -> None:
        for key, nbytes in folder.measure_staged().items():
            self._quota.record(key, nbytes)
        jobs = folder.list_jobs()
        if jobs:
            self._record_committed(folder)
            self._jobs[folder.dataset] = jobs
            self._catalog.add(folder.dataset, folder.path)
            self._served.add(folder.dataset)

    def _stage(self, key: ShardKey, upload: Upload) -> str:
        """Stage the file of an upload, and return its SHA-256.

        A file for a job that is already published must equal one of its shards, and is removed.
        """
        folder = self._open_folder(key.dataset)
        with self._lock:
            version = self._jobs.get(key.dataset, {}).get(key.job)
            if version is not None:
                sha256 = hash_file(upload.path)
                folder.find_committed_shard(key, version, sha256)
                upload.path.unlink()
                return sha256
        schema, entry = folder.stage_shard(key, upload.path)
        record = folder.encode_record(key, schema, entry)
        with self._lock:
            try:
                nbytes = entry.nbytes + len(record)
                self._quota.reserve(upload, nbytes, key.dataset, is_upload=False)
            except ExhaustedError:
                folder.unstage_shard(key, entry)
                raise
            folder.record_shard(key, entry, record)
            self._quota.transfer(upload, key)
        return entry.sha256

    def _commit(self, folder: PublishedFolder, request: PublishRequest) -> Manifest:
        """Commit a version while the quota has room for its manifest."""
        owner = "commit", request.dataset, request.job
        self._quota.reserve(owner, folder.measure_commit(request), request.dataset, is_upload=False)
        try:
            return folder.commit(request)
        finally:
            self._quota.release(owner)

    def _record_committed(self, folder: PublishedFolder) -> None:
        # Pruning old versions makes a dataset smaller.
        self._quota.record_measured(_name_committed_owner(folder.dataset), folder.measure_committed)

    def _check_name(self, dataset: str) -> None:
        if dataset not in self._served and dataset in self._catalog.names():
            raise remote_error(
                "ALREADY_EXISTS",
                f"cannot publish {dataset!r}: a dataset that was not published has this name",
                stream=dataset,
            )

    def _open_folder(self, dataset: str) -> PublishedFolder:
        return PublishedFolder(dataset, self._directory / encode_name(dataset, FOLDER_SUFFIX))


def _name_committed_owner(dataset: str) -> tuple[str, str]:
    return "published", dataset


class UploadStore:
    """The directory of uploads. Safe to use from several threads.

    One server at a time uses a directory; a lock on it ends with the process. The directory is
    created if only its last part is missing. The methods block.

    Raises `ConfigError` if the directory cannot be used, or another server uses it.
    """

    def __init__(self, directory: Path, catalog: Catalog, quota: Quota | None = None) -> None:
        self._directory = directory
        self._catalog = catalog
        self._quota = quota or Quota()
        self._lock = threading.RLock()
        self._uploaded: set[str] = set()
        self.publications = PublicationStore(directory, catalog, self._quota)
        """The datasets that are published shard by shard."""
        self._log = get_logger("store")
        self._descriptor = _lock_directory(directory)
        try:
            self.publications.restore()
            self._restore()
        except BaseException:
            self.close()
            raise

    def begin_upload(self, dataset: str, limits: Limits) -> Upload:
        """Return a new upload of a dataset, which the caller must close."""
        encode_name(dataset)
        self._check_name(dataset)
        path = make_incomplete_path(self._directory)
        return Upload(dataset, path, self._quota, self._commit, limits)

    def drop(self, dataset: str) -> None:
        """Remove an uploaded or published dataset. Running streams continue."""
        with self._lock:
            if self.publications.drop(dataset):
                return
            if dataset not in self._uploaded:
                if dataset in self._catalog.names():
                    raise remote_error(
                        "FAILED_PRECONDITION",
                        f"cannot drop {dataset!r}: it belongs to the configuration",
                        stream=dataset,
                    )
                raise NotFoundError(f"no uploaded dataset {dataset!r}", stream=dataset)
            path = self._directory / encode_name(dataset)
            with _removing(self._catalog, dataset, path):
                path.unlink(missing_ok=True)
            self._uploaded.discard(dataset)
            self._quota.release(dataset)
            with map_errors(dataset, _DROP):
                os.fsync(self._descriptor)
        self._log.info("dataset dropped", dataset=dataset)

    def close(self) -> None:
        """Unlock the directory. Its files stay. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _commit(self, upload: Upload) -> Mapping[str, Any]:
        """Rename a complete file and serve it. Streams of a file that it replaces continue."""
        dataset = upload.dataset
        path = self._directory / encode_name(dataset)
        open_dataset(upload.path).close()  # raises if the catalog could not serve it
        with self._lock:
            self._check_name(dataset)
            with self._replacing(path):
                upload.path.replace(path)
                os.fsync(self._descriptor)
                if dataset in self._uploaded:
                    self._catalog.replace(dataset, path)
                else:
                    self._catalog.add(dataset, path)
            self._uploaded.add(dataset)
            nbytes = self._quota.transfer(upload, dataset)
        self._log.info("dataset uploaded", dataset=dataset, bytes=nbytes)
        return {}

    @contextmanager
    def _replacing(self, path: Path) -> Generator[None]:
        """Bring the file back that has a path now, or none, if the block raises."""
        previous = make_incomplete_path(self._directory)
        with suppress(FileNotFoundError):
            os.link(path, previous, follow_symlinks=False)
        try:
            yield
        except BaseException:
            try:
                previous.rename(path)
            except FileNotFoundError:
                path.unlink(missing_ok=True)
            raise
        finally:
            with suppress(OSError):  # the next start removes it
                previous.unlink(missing_ok=True)

    def _restore(self) -> None:
        """Serve the files of earlier uploads, and remove incomplete ones."""
        with os.scandir(self._directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            if entry.name.startswith(INCOMPLETE_PREFIX):
                os.unlink(entry.path)
                continue
            dataset = decode_name(entry.name)
            if dataset is not None:
                try:
                    self._catalog.add(dataset, entry.path)
                    self._uploaded.add(dataset)
                    self._quota.record(dataset, entry.stat().st_size)
                except (SplitArrowError, OSError) as error:
                    self._log.error("cannot serve upload", dataset=dataset, reason=str(error))

    def _check_name(self, dataset: str) -> None:
        if dataset not in self._uploaded and dataset in self._catalog.names():
            raise remote_error(
                "ALREADY_EXISTS",
                f"cannot upload {dataset!r}: a dataset that was not uploaded has this name",
                stream=dataset,
            )


@contextmanager
def _removing(catalog: Catalog, dataset: str, path: Path) -> Generator[None]:
    """Take a dataset out of a catalog, and put it back if its files cannot be removed."""
    catalog.remove(dataset)
    try:
        with map_errors(dataset, _DROP):
            yield
    except SplitArrowError:
        catalog.add(dataset, path)
        raise


def _lock_directory(directory: Path) -> int:
    """Create a directory if it is missing, and return a descriptor that keeps it locked."""
    try:
        if not directory.is_dir():
            directory.mkdir()
            sync_folder(directory.parent)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"writable: cannot use {directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError
    except OSError as error:
        os.close(descriptor)
        reason = "it is not writable"
        if isinstance(error, BlockingIOError):
            reason = "another server uses it"
        raise ConfigError(f"writable: cannot use {directory}: {reason}") from None
    return descriptor
