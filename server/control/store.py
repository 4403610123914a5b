"""Where uploads are kept: one file for each dataset, in a directory of their own."""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from pathlib import Path
from urllib.parse import unquote

from ...errors import (
    ConfigError,
    ExhaustedError,
    InvalidRequestError,
    NotFoundError,
    SplitArrowError,
    remote_error,
)
from ...protocol.limits import Limits
from ..catalog.catalog import open_dataset
from ..logs import get_logger
from .naming import SUFFIX, TEMPORARY, file_name
from .ports import CatalogPort
from .publications import Publications
from .quota import Quota
from .upload import Upload


class UploadStore:
    """The directory of uploads. Its methods block; they may be called from several threads.

    Parameters
    ----------
    directory : Path
        It must exist, and belong to this server alone.
    catalog : CatalogPort
        Where complete uploads appear.
    quota : Quota, optional
        How many bytes uploads may take; any number by default.

    Raises
    ------
    ConfigError
        If the directory cannot be used, or another server uses it.
    """

    def __init__(
        self,
        directory: Path,
        catalog: CatalogPort,
        quota: Quota | None = None,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._quota = quota or Quota()
        self._lock = threading.RLock()
        self._stored: set[str] = set()
        self.publications = Publications(directory, catalog, self._quota)
        """The datasets that are published shard by shard."""
        self._log = get_logger("store")
        self._handle = _own(directory)
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def begin(self, name: str, limits: Limits) -> Upload:
        """Return a new upload; the caller finishes or aborts it.

        Raises
        ------
        InvalidRequestError
            If the name cannot be that of an upload.
        RemoteError
            With the code ALREADY_EXISTS if a dataset of the configuration has the name.
        """
        file_name(name)
        self._check_free(name)
        path = self._directory / f"{TEMPORARY}{secrets.token_hex(16)}"
        return Upload(self, name, path, limits)

    def reserve(self, upload: Upload, nbytes: int) -> None:
        """Note that an upload takes this many bytes.

        Raises
        ------
        ExhaustedError
            If that is more than there may be.
        """
        try:
            self._quota.reserve(upload, nbytes, upload.name)
        except ExhaustedError:
            self.publications.recount()
            self._quota.reserve(upload, nbytes, upload.name)

    def commit(self, upload: Upload) -> None:
        """Make a finished file the dataset of its name. Readers of the one before keep that.

        Raises
        ------
        SplitArrowError
            If the file cannot be served, or the name was taken meanwhile.
        """
        name = upload.name
        target = self._directory / file_name(name)
        open_dataset(upload.path).close()
        with self._lock:
            self._check_free(name)
            upload.path.replace(target)
            os.fsync(self._handle)
            try:
                if name in self._stored:
                    self._catalog.replace(name, target)
                else:
                    self._catalog.add(name, target)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            self._stored.add(name)
            nbytes = self._quota.settle(upload, name)
        self._log.info("dataset uploaded", dataset=name, bytes=nbytes)

    def forget(self, upload: Upload) -> None:
        """Forget an upload that is over."""
        self._quota.release(upload)

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published. Streams of it that run go on.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        RemoteError
            With the code FAILED_PRECONDITION if it was not uploaded.
        """
        with self._lock:
            if self.publications.drop(name):
                os.fsync(self._handle)
                return
            if name not in self._stored:
                if name in self._catalog.names():
                    raise remote_error(
                        "FAILED_PRECONDITION",
                        f"the dataset {name!r} belongs to the configuration; it was not uploaded",
                        stream=name,
                    )
                raise NotFoundError(f"no dataset {name!r} was uploaded", stream=name)
            self._catalog.remove(name)
            (self._directory / file_name(name)).unlink(missing_ok=True)
            os.fsync(self._handle)
            self._stored.discard(name)
            self._quota.release(name)
        self._log.info("dataset dropped", dataset=name)

    def close(self) -> None:
        """Let another server have the directory. What was uploaded stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _check_free(self, name: str) -> None:
        if name not in self._stored and name in self._catalog.names():
            raise remote_error(
                "ALREADY_EXISTS",
                f"the dataset {name!r} belongs to the configuration; it cannot be replaced",
                stream=name,
            )

    def _find(self) -> None:
        """Serve what was uploaded before; remove what was left half done."""
        self.publications.find()
        with os.scandir(self._directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if not entry.is_file(follow_symlinks=False):
                continue
            if entry.name.startswith(TEMPORARY):
                os.unlink(entry.path)
                continue
            name = unquote(entry.name.removesuffix(SUFFIX), errors="replace")
            try:
                if file_name(name) != entry.name:
                    continue
                self._catalog.add(name, entry.path)
                self._stored.add(name)
                self._quota.keep(name, entry.stat().st_size)
            except InvalidRequestError:
                continue
            except (SplitArrowError, OSError) as error:
                self._log.error("upload not served", dataset=name, reason=str(error))


def _own(directory: Path) -> int:
    """Return a handle of a directory, locked so that no other server uses it."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"writable: cannot use {directory}: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError
    except OSError as error:
        os.close(handle)
        why = "it may not be written to"
        if isinstance(error, BlockingIOError):
            why = "another server uses it"
        raise ConfigError(f"writable: cannot use {directory}: {why}") from None
    return handle
