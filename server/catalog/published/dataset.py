"""Published datasets: the current version and older ones, as readers request them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from ....errors import DatasetError, SplitArrowError, remote_error
from ....protocol.request import Request
from ....publication.manifest import Manifest
from ....publication.version_store import VersionStore
from ...logs import get_logger
from ..dataset import Encoding, Shard
from ..messages.generator_source import GeneratorSource
from ..query.request_checks import check_version
from .object_cache import ObjectCache, open_object_cache
from .shard_reader import ShardReader
from .version import PublishedVersion, VersionRemovedError

GRACE_SECONDS = 60.0
"""The time that a version is kept after a FlightInfo named it, so that readers can start."""
_MAX_OLD_VERSIONS = 8
_T = TypeVar("_T")


class PublishedDataset:
    """A published dataset. Each new reader gets the version that is current then. See `Dataset`.

    Parameters
    ----------
    location : str or path-like
        The location of the dataset: a path or a URL.
    cache : ObjectCache, optional
        The cache for shards from object stores. Default: one in the user's cache folder.

    Raises
    ------
    DatasetError
        If nothing is published at the location, or the current manifest cannot be read.
    UsageError
        If the URL has an unsupported scheme.
    MissingExtraError
        If the URL names an object store, and the extra ``object-store`` is not installed.
    """

    def __init__(self, location: str | os.PathLike[str], cache: ObjectCache | None = None) -> None:
        self._store = VersionStore(location)
        self._reader = ShardReader(self._store.storage, cache or open_object_cache())
        self._lock = threading.Lock()
        self._old: dict[int, PublishedVersion] = {}
        self._advertised: dict[int, float] = {}
        self._malformed_version = 0
        self._log = get_logger("published")
        manifest = self._store.load()
        if manifest is None:
            raise DatasetError(f"{self.location}: no version of a dataset has been published here")
        self._current = self._make_version(manifest)

    @property
    def location(self) -> str:
        """The location of the dataset: an absolute path or a URL."""
        return self._store.location

    @property
    def store(self) -> VersionStore:
        """The versions of the dataset."""
        return self._store

    @property
    def kind(self) -> str:
        """The type of the data; see `Dataset.kind`."""
        return self._current.kind

    @property
    def schema(self) -> pa.Schema:
        """The schema of the current version."""
        return self._current.schema

    @property
    def rows(self) -> int:
        """The number of rows in the current version."""
        return self._current.rows

    @property
    def nbytes(self) -> int:
        """The size of the shards of the current version in bytes."""
        return self._current.nbytes

    @property
    def version(self) -> str:
        """The current version; see `PublishedVersion.version`."""
        return self._find_current().version

    @property
    def current_number(self) -> int:
        """The number of the current version, as far as it is known now."""
        return self._current.manifest.version

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards of the current version."""
        return self._current.shards

    def resolve_version(self, request: Request) -> PublishedVersion:
        """Return the version that a request is for, or the current one.

        The version is not pruned for `GRACE_SECONDS`, so that a reader can start on it.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the version does not exist any more.
        """
        version = self._find_version(request)
        with self._lock:
            self._advertised[version.manifest.version] = time.monotonic()
        return version

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open a version for one reader; see `Dataset.open`."""
        return self._use_version(request, lambda version: version.open(request, encoding))

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each stored batch contributes; see `Dataset.count_rows`."""
        return self._use_version(request, lambda version: version.count_rows(request, encoding))

    def _use_version(self, request: Request, use: Callable[[PublishedVersion], _T]) -> _T:
        """Return the result for the version of a request, or for a newer one if it was pruned."""
        while True:
            version = self._find_version(request)
            try:
                return use(version)
            except VersionRemovedError:
                with self._lock:
                    self._old.pop(version.manifest.version, None)
                if request.version is not None:
                    raise remote_error(
                        "FAILED_PRECONDITION",
                        f"the version {request.version} of the dataset {request.dataset!r} "
                        "has been removed; request a new ticket",
                        stream=request.dataset,
                    ) from None
                if not self.refresh():
                    raise

    def refresh(self) -> bool:
        """Look for a newer version, which new readers then get.

        A malformed manifest is logged once, and the current version stays.

        Returns
        -------
        bool
            Whether there is a newer version.

        Raises
        ------
        DatasetError
            If the storage cannot be read.
        """
        versions = self._store.list_versions()
        newest = versions[-1] if versions else 0
        with self._lock:
            current = self._current
        if newest in (current.manifest.version, self._malformed_version):
            return False
        try:
            manifest = self._store.load(newest) if newest else None
        except SplitArrowError as error:
            self._malformed_version = newest
            self._log.error("version not served", location=self.location, reason=str(error))
            return False
        if manifest is None:
            return False
        version = self._make_version(manifest)
        with self._lock:
            if self._current is not current:
                return True  # another thread was faster
            self._keep_old(current)
            self._current = version
        self._log.info("version served", location=self.location, version=newest, rows=version.rows)
        return True

    def prune(self, keep: int) -> list[int]:
        """Remove old versions; see `VersionStore.prune`.

        Versions that `resolve_version` returned in the last `GRACE_SECONDS` stay.
        """
        since = time.monotonic() - GRACE_SECONDS
        with self._lock:
            self._advertised = {
                version: last for version, last in self._advertised.items() if last > since
            }
            protected = frozenset(self._advertised)
        removed = self._store.prune(keep, protected)
        with self._lock:
            for version in removed:
                self._old.pop(version, None)
        if removed:
            self._log.info("versions removed", location=self.location, versions=removed)
        return removed

    def close(self) -> None:
        """Do nothing: no file is open between readers."""

    def _find_version(self, request: Request) -> PublishedVersion:
        """Return the version that a request is for, or the current one."""
        current = self._find_current()
        if request.version in (None, current.version):
            return current
        number = request.version.partition("-")[0]
        if number.isascii() and number.isdigit() and len(number) < 18:
            version = self._find_old(int(number))
            if version is not None and version.version == request.version:
                return version
        check_version(request, current.version)
        return current

    def _find_current(self) -> PublishedVersion:
        """Return the current version. In a local folder, look for a newer one first."""
        if self._store.storage.folder is not None:
            try:
                self.refresh()
            except DatasetError as error:
                self._log.warning("cannot look for versions", reason=error.message)
        return self._current

    def _find_old(self, number: int) -> PublishedVersion | None:
        with self._lock:
            version = self._old.get(number)
        if version is None:
            manifest = self._store.load(number)
            if manifest is None:
                return None
            version = self._make_version(manifest)
            with self._lock:
                self._keep_old(version)
        return version

    def _keep_old(self, version: PublishedVersion) -> None:
        self._old[version.manifest.version] = version
        while len(self._old) > _MAX_OLD_VERSIONS:
            del self._old[next(iter(self._old))]

    def _make_version(self, manifest: Manifest) -> PublishedVersion:
        return PublishedVersion(manifest, self._store, self._reader)
