"""The directory of uploads: one file for each uploaded dataset, and the published datasets."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ExhaustedError, NotFoundError, SplitArrowError, remote_error
from ...protocol.limits import Limits
from ...publication.manifest import Manifest
from ...publication.shard_files import hash_file
from ..catalog.catalog import Catalog, open_dataset
from ..logs import get_logger
from .folder import FOLDER_SUFFIX, UploadFolder
from .publication import PublishedFolder, PublishRequest, ShardKey
from .quota import Quota
from .upload import Upload, map_errors

_DROP = "drop the dataset"
_MAX_LISTED_FILES = 5

ReplacementCheck = Callable[[str | None], None]
"""Raises an error if an upload must not replace a dataset, of which it gets the version: an empty
text if it cannot be read, and None if there is no such dataset."""


def allow_replacement(version: str | None) -> None:
    """Let an upload replace any other."""
    del version


@dataclass(frozen=True, slots=True)
class DatasetTarget:
    """The dataset that an upload becomes, and what it may replace."""

    dataset: str
    check: ReplacementCheck = allow_replacement
    """Decides whether it may replace the dataset of this name."""
    attempt: str = ""
    """A random text that a client repeats if it got no response. The upload may replace what it
    has stored itself. If it is empty, the upload is not repeated."""


class PublicationStore:
    """The published datasets in the directory of uploads. Safe to use from several threads.

    The methods block. If the server dies, no step must be undone: staged shards stay for their
    job to continue, a version is committed completely or not at all, and a folder that is being
    removed has a name that the next server removes.
    """

    def __init__(self, folder: UploadFolder, catalog: Catalog, quota: Quota) -> None:
        self._folder = folder
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
        for path in sorted(self._folder.path.iterdir()):
            if not path.is_dir() or path.is_symlink():
                continue
            if self._folder.is_incomplete(path.name):
                shutil.rmtree(path, ignore_errors=True)
                continue
            dataset = self._folder.parse_name(path.name, FOLDER_SUFFIX)
            if dataset is not None:
                try:
                    self._restore(PublishedFolder(dataset, path))
                except (SplitArrowError, OSError) as error:
                    event = "cannot serve published dataset"
                    self._log.error(event, dataset=dataset, reason=str(error))

    def begin_upload(self, key: ShardKey, limits: Limits) -> Upload:
        """Return a new upload of a shard, which the caller must close."""
        self._open_folder(key.dataset)
        self._check_name(key.dataset)

        def commit(upload: Upload) -> Mapping[str, Any]:
            sha256 = self._stage(key, upload)
            return {"job": key.job, "ordinal": key.ordinal, "sha256": sha256}

        path = self._folder.make_incomplete_path()
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
            removed = self._folder.make_incomplete_path()
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
                    self._folder.sync()
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
        return PublishedFolder(dataset, self._folder.make_path(dataset, FOLDER_SUFFIX))


def _name_committed_owner(dataset: str) -> tuple[str, str]:
    return "published", dataset


class UploadStore:
    """The uploads in a folder. Safe to use from several threads. The methods block.

    Raises as `UploadFolder` does.
    """

    def __init__(self, directory: Path, catalog: Catalog, quota: Quota | None = None) -> None:
        self._folder = UploadFolder(directory)
        self._catalog = catalog
        self._quota = quota or Quota()
        self._lock = threading.RLock()
        self._uploaded: dict[str, str] = {}
        """The attempt that stored each dataset; empty if it is unknown."""
        self.publications = PublicationStore(self._folder, catalog, self._quota)
        """The datasets that are published shard by shard."""
        self._log = get_logger("store")
        try:
            self.publications.restore()
            self._restore()
        except BaseException:
            self.close()
            raise

    def begin_upload(self, target: DatasetTarget, limits: Limits) -> Upload:
        """Return a new upload of a dataset, which the caller must close.

        The check is made now, and again when the upload is complete.
        """
        self._check_replacement(target)
        path = self._folder.make_incomplete_path()
        return Upload(target.dataset, path, self._quota, partial(self._commit, target), limits)

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
            path = self._folder.make_path(dataset)
            with _removing(self._catalog, dataset, path):
                path.unlink(missing_ok=True)
            del self._uploaded[dataset]
            self._quota.release(dataset)
            with map_errors(dataset, _DROP):
                self._folder.sync()
        self._log.info("dataset dropped", dataset=dataset)

    def close(self) -> None:
        """Unlock the folder. Its files stay. Idempotent."""
        self._folder.close()

    def _commit(self, target: DatasetTarget, upload: Upload) -> Mapping[str, Any]:
        """Rename a complete file and serve it. Streams of a file that it replaces continue."""
        dataset = target.dataset
        path = self._folder.make_path(dataset)
        open_dataset(upload.path).close()  # raises if the catalog could not serve it
        with self._lock:
            self._check_replacement(target)
            with self._replacing(path):
                upload.path.replace(path)
                self._folder.sync()
                if dataset in self._uploaded:
                    self._catalog.replace(dataset, path)
                else:
                    self._catalog.add(dataset, path)
            self._uploaded[dataset] = target.attempt
            nbytes = self._quota.transfer(upload, dataset)
        self._log.info("dataset uploaded", dataset=dataset, bytes=nbytes)
        return {}

    @contextmanager
    def _replacing(self, path: Path) -> Generator[None]:
        """Bring the file back that has a path now, or none, if the block raises."""
        previous = self._folder.make_incomplete_path()
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
        with os.scandir(self._folder.path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        foreign: list[str] = []
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            if self._folder.is_incomplete(entry.name):
                os.unlink(entry.path)
                continue
            dataset = self._folder.parse_name(entry.name)
            if dataset is not None:
                try:
                    self._catalog.add(dataset, entry.path)
                    self._uploaded[dataset] = ""
                    self._quota.record(dataset, entry.stat().st_size)
                except (SplitArrowError, OSError) as error:
                    self._log.error("cannot serve upload", dataset=dataset, reason=str(error))
            elif not entry.name.startswith("."):
                foreign.append(entry.name)
        if foreign:
            names = foreign[:_MAX_LISTED_FILES]
            self._log.warning("files are not uploads", files=names, count=len(foreign))

    def _check_replacement(self, target: DatasetTarget) -> None:
        dataset, version = target.dataset, None
        path = self._folder.make_path(dataset)
        with suppress(NotFoundError):
            version = self._catalog.lookup(dataset).version
        if version is not None and dataset not in self._uploaded:
            raise remote_error(
                "ALREADY_EXISTS",
                f"cannot upload {dataset!r}: a dataset that was not uploaded has this name",
                stream=dataset,
            )
        if not (target.attempt and target.attempt == self._uploaded.get(dataset)):
            unreadable = version is None and path.exists()
            target.check("" if unreadable else version)


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
