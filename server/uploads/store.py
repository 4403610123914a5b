"""The directory of uploads: one file for each uploaded dataset, and the published datasets."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError, NotFoundError, SplitArrowError, remote_error
from ...protocol.limits import Limits
from ..catalog.catalog import Catalog, open_dataset
from ..logs import get_logger
from .file_names import INCOMPLETE_PREFIX, decode_name, encode_name, make_incomplete_path
from .publications import PublicationStore
from .quota import Quota
from .upload import Upload


class UploadStore:
    """The directory of uploads. Safe to use from several threads.

    One server at a time uses a directory; a lock on it ends with the process. The methods block.

    Parameters
    ----------
    directory : Path
        The directory. It is created if only its last part is missing.
    catalog : Catalog
        Serves the complete uploads.
    quota : Quota, optional
        Counts the bytes of uploads. By default, they are not limited.

    Raises
    ------
    ConfigError
        If the directory cannot be used, or another server uses it.
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
        """Return a new upload of a dataset, which the caller must close.

        Raises
        ------
        InvalidRequestError
            If the name of the dataset is not valid for a file.
        RemoteError
            With the code ALREADY_EXISTS, if the name belongs to another type of dataset.
        """
        encode_name(dataset)
        self._check_name(dataset)
        path = make_incomplete_path(self._directory)
        return Upload(dataset, path, self._quota, self._commit, limits)

    def drop(self, dataset: str) -> None:
        """Remove an uploaded or published dataset. Running streams continue.

        Raises
        ------
        NotFoundError
            If the dataset does not exist.
        RemoteError
            With the code FAILED_PRECONDITION, if it belongs to the configuration.
        """
        with self._lock:
            if self.publications.drop(dataset):
                os.fsync(self._descriptor)
                return
            if dataset not in self._uploaded:
                if dataset in self._catalog.names():
                    raise remote_error(
                        "FAILED_PRECONDITION",
                        f"cannot drop {dataset!r}: it belongs to the configuration",
                        stream=dataset,
                    )
                raise NotFoundError(f"no uploaded dataset {dataset!r}", stream=dataset)
            self._catalog.remove(dataset)
            (self._directory / encode_name(dataset)).unlink(missing_ok=True)
            os.fsync(self._descriptor)
            self._uploaded.discard(dataset)
            self._quota.release(dataset)
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
            upload.path.replace(path)
            os.fsync(self._descriptor)
            try:
                if dataset in self._uploaded:
                    self._catalog.replace(dataset, path)
                else:
                    self._catalog.add(dataset, path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            self._uploaded.add(dataset)
            nbytes = self._quota.transfer(upload, dataset)
        self._log.info("dataset uploaded", dataset=dataset, bytes=nbytes)
        return {}

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


def _lock_directory(directory: Path) -> int:
    """Create a directory if it is missing, and return a descriptor that keeps it locked."""
    try:
        directory.mkdir(exist_ok=True)
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
