"""Datasets that clients publish shard by shard: staging, committing, removing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import SplitArrowError, remote_error
from ...protocol.limits import Limits
from ...publication.shard_files import hash_file
from ..catalog.catalog import Catalog
from ..logs import get_logger
from .file_names import (
    FOLDER_SUFFIX,
    INCOMPLETE_PREFIX,
    decode_name,
    encode_name,
    make_incomplete_path,
)
from .publish_request import PublishRequest, ShardKey
from .published_folder import PublishedFolder
from .quota import Quota
from .upload import Upload


class PublicationStore:
    """The published datasets in the directory of uploads. Safe to use from several threads.

    The methods block. If the server dies, no step must be undone: staged shards stay for their
    job to continue, a version is committed completely or not at all, and a folder that is being
    removed has a name that the next server removes.

    Parameters
    ----------
    directory : Path
        The directory of uploads.
    catalog : Catalog
        Serves the datasets that have a version.
    quota : Quota
        Counts staged shards by their key, and committed ones by their dataset.
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
                    reason = str(error)
                    self._log.error(
                        "cannot serve published dataset", dataset=dataset, reason=reason
                    )

    def begin_upload(self, key: ShardKey, limits: Limits) -> Upload:
        """Return a new upload of a shard, which the caller must close.

        Raises
        ------
        InvalidRequestError
            If the name of the dataset is not valid for a folder.
        RemoteError
            With the code ALREADY_EXISTS, if the name belongs to another type of dataset.
        """
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

        Returns
        -------
        dict
            ``dataset``, ``version``, ``snapshot``, and the ``shards``, ``rows`` and ``bytes`` of
            the version on this server.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if a shard is missing, schemas differ, or the job
            is already published in another form.
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
                manifest = folder.commit(request)
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
        """Remove the staged shards of a job, unless it is published. Idempotent."""
        folder = self._open_folder(dataset)
        with self._lock:
            if job not in self._jobs.get(dataset, {}):
                for key in folder.measure_staged(job):
                    self._quota.release(key)
                folder.remove_staged(job)
                folder.discard(job)

    def drop(self, dataset: str) -> bool:
        """Remove a published dataset, and return whether it existed."""
        with self._lock:
            if dataset not in self._served:
                return False
            folder = self._open_folder(dataset)
            self._catalog.remove(dataset)
            self._served.discard(dataset)
            self._jobs.pop(dataset, None)
            self._quota.release(_name_committed_owner(dataset))
            for key in folder.measure_staged():
                self._quota.release(key)
            removed = make_incomplete_path(self._directory)
            folder.path.rename(removed)
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
        with self._lock:
            folder.record_shard(key, schema, entry)
            self._quota.transfer(upload, key)
        return entry.sha256

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
