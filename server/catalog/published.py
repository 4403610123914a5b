"""Published datasets, as a server reads them. `splitarrow.publication` writes them.

A `PublishedDataset` serves the current version, and older versions to readers whose ticket
names one. A `PublishedVersion` never changes. Its reader holds a version lock, so the version
is not pruned while it is read. A `VersionWatcher` notices new versions and prunes old ones.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from ...errors import DatasetError, InvalidRequestError, SplitArrowError, remote_error
from ...protocol.request import Request
from ...publication.layout import VERSIONS
from ...publication.manifest import (
    Manifest,
    ManifestError,
    ShardEntry,
    encode_manifest,
    encode_ranges,
)
from ...publication.storage import Storage, StoredObject
from ...publication.version_store import VersionStore
from ..logs import get_logger
from .dataset import (
    Encoding,
    FixedDataset,
    GeneratorSource,
    Measures,
    ServedDataset,
    Shard,
    StoredFile,
    VersionedDataset,
    check_version,
    names_version,
    parse_version_number,
    select_shards,
)
from .eviction import ReaderId
from .object_cache import ObjectCache, open_object_cache
from .published_shards import OpenGroups, ShardReader

GRACE_SECONDS = 60.0
"""The time that a version is kept after a FlightInfo named it, so that readers can start."""
_FOLDERS_SECONDS = 1.0
_STEP_MS = 50
_DEBOUNCE_MS = 400
_T = TypeVar("_T")


class VersionRemovedError(DatasetError):
    """The version was pruned after its manifest was read."""


def name_version(manifest: Manifest) -> str:
    """Return what identifies a version: its number, and a hash that differs for other data."""
    digest = hashlib.blake2b(encode_manifest(manifest), digest_size=8).hexdigest()
    return f"{manifest.version}-{digest}"


class PublishedVersion(FixedDataset):
    """One version of a published dataset."""

    _kind = "published dataset"

    def __init__(self, manifest: Manifest, store: VersionStore, reader: ShardReader) -> None:
        self.manifest = manifest
        """The manifest of the version."""
        version = name_version(manifest)
        super().__init__(manifest.schema, manifest.rows, manifest.nbytes, version)
        self._store = store
        self._reader = reader
        shards = [Shard(shard.rows, shard.nbytes) for shard in manifest.shards]
        self._shards = shards or [Shard(0, 0)]

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards; a single one without rows if the version has no shard."""
        return self._shards

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The fields for the ``app_metadata`` of the FlightInfo.

        They let a client combine the shards of this publication that several servers have.
        """
        return {**self._snapshot, "shards_held": len(self.manifest.shards)}

    @property
    def _snapshot(self) -> Mapping[str, Any]:
        manifest = self.manifest
        return {"snapshot": manifest.snapshot, "shards_total": manifest.shards_total}

    def make_shard_app_metadata(self, index: int) -> Mapping[str, Any]:
        """Return the fields for the ``app_metadata`` of a shard's endpoint."""
        if not self.manifest.shards:
            return self._snapshot
        shard = self.manifest.shards[index]
        return {
            **self._snapshot,
            "ordinal": shard.ordinal,
            "sha256": shard.sha256,
            "rows": shard.rows,
            "bytes": shard.nbytes,
        }

    def list_ranges(self, columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the rows of each shard, and the ranges of columns, as the manifest has them."""
        return [
            {"shard": index, "rows": shard.rows, "columns": encode_ranges(shard, columns)}
            for index, shard in enumerate(self.manifest.shards)
        ] or [{"shard": 0, "rows": 0, "columns": {}}]

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the version for one reader; see `ServedDataset.open`.

        Raises `VersionRemovedError` if the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        with self._lock_version(shards) as resources:
            rest = replace(request, shard=None, version=None)
            source = self._reader.open(shards, self.schema, rest, encoding)
            source.call_on_close(resources.pop_all().close)
        return source

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`.

        Raises `VersionRemovedError` if the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        with self._lock_version(shards):
            rest = replace(request, shard=None, version=None)
            for shard in shards:
                yield from self._reader.measure_batches(shard, self.schema, rest, encoding)

    def open_file(self, request: Request, groups: OpenGroups) -> GeneratorSource:
        """Open the file of the shard of a request, whose messages `groups` yields.

        Raises `VersionRemovedError` if the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        if len(shards) != 1:
            raise InvalidRequestError(
                f"a file is that of one shard; the request is for {len(shards)}",
                stream=request.dataset,
            )
        with self._lock_version(shards) as resources:
            source = self._reader.open_file(shards[0], partial(groups, request=request))
            source.call_on_close(resources.pop_all().close)
        return source

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the file of the only shard of a request; see `ServedDataset.open_stored_file`.

        Raises `VersionRemovedError` if the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        if len(shards) != 1:
            return None
        with self._lock_version(shards) as resources:
            file = self._reader.open_stored_file(shards[0], resources)
            return StoredFile(file, "arrow file", self.version, resources.pop_all().close)

    def _lock_version(self, shards: Sequence[ShardEntry]) -> ExitStack:
        """Return resources that keep the version from being pruned.

        If the cache has all shards to read, they are read even while the object store is down.
        """
        lock = self._store.lock(self.manifest.version, check=not self._reader.has_cached(shards))
        if lock is None:
            raise VersionRemovedError(
                f"{self._store.location} does not have version {self.manifest.version} any more"
            )
        resources = ExitStack()
        resources.callback(lock.release)
        return resources

    def _select_shards(self, request: Request) -> Sequence[ShardEntry]:
        if not self.manifest.shards:
            select_shards(request, self.shards)
            return ()
        return select_shards(request, self.manifest.shards)


class PublishedDataset(VersionedDataset[PublishedVersion]):
    """A published dataset. Each new reader gets the version that is current then.

    The default of `cache` is one in the user's cache folder. Raises `DatasetError` if nothing is
    published at the location, the current manifest cannot be read, or, unless `follow_symlinks`, a
    symbolic link leads out of the folder. Raises `UsageError` if the
    URL has an unsupported scheme. Raises `MissingExtraError` if the URL names an object store, and
    the extra ``object-store`` is not installed.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | Storage,
        cache: ObjectCache | None = None,
        *,
        follow_symlinks: bool = False,
    ) -> None:
        self._store = VersionStore(location, follow_symlinks=follow_symlinks)
        self._reader = ShardReader(
            self._store.storage, cache or open_object_cache(), follow_symlinks=follow_symlinks
        )
        self._advertised: dict[int, float] = {}
        self._newest: StoredObject | None = None
        """The newest manifest when it was last loaded, or found to be malformed."""
        self._log = get_logger("published")
        manifest = self._store.load()
        if manifest is None:
            raise DatasetError(f"{self.location}: no version of a dataset has been published here")
        super().__init__(self._make_version(manifest))

    @property
    def location(self) -> str:
        """The location of the dataset: an absolute path or a URL."""
        return self._store.location

    @property
    def store(self) -> VersionStore:
        """The versions of the dataset."""
        return self._store

    @property
    def version(self) -> str:
        """The current version; see `ServedDataset.version`."""
        return self._find_current().version

    @property
    def current_number(self) -> int:
        """The number of the current version, as far as it is known now."""
        return self._current.manifest.version

    def resolve_version(self, request: Request) -> PublishedVersion:
        """Return the version that a request is for, or the current one.

        The version is not pruned for `GRACE_SECONDS`, so that a reader can start on it. Raises
        `RemoteError` (FAILED_PRECONDITION) if the version does not exist any more.
        """
        version = self._find_version(request)
        with self._lock:
            self._advertised[version.manifest.version] = time.monotonic()
        return version

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open a version for one reader; see `ServedDataset.open`."""
        return self._use_version(request, lambda version: version.open(request, encoding))

    def open_file(self, request: Request, groups: OpenGroups) -> GeneratorSource:
        """Open the file of a shard; see `PublishedVersion.open_file`."""
        return self._use_version(request, lambda version: version.open_file(request, groups))

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Yield a measure of each stored batch; see `ServedDataset.measure_batches`."""
        yield from self._use_version(
            request, lambda version: list(version.measure_batches(request, encoding))
        )

    def open_stored_file(self, request: Request) -> StoredFile | None:
        """Open the file of the only shard of a request; see `ServedDataset.open_stored_file`."""
        return self._use_version(request, lambda version: version.open_stored_file(request))

    def announce(
        self, request: Request, reader: ReaderId, ordinals: Sequence[int], position: int
    ) -> bool:
        """Note the order in which a reader opens shards of the version of a request.

        It begins at a position, and replaces the previous order of the reader; an empty one ends
        it. Returns whether a cache uses it. Raises `InvalidRequestError` if there is no such shard.
        """
        version = self.resolve_version(request)
        by_ordinal = {shard.ordinal: shard for shard in version.manifest.shards}
        try:
            shards = [by_ordinal[ordinal] for ordinal in ordinals]
        except KeyError as error:
            raise InvalidRequestError(
                f"the version {version.version} has no shard {error}", stream=request.dataset
            ) from None
        return self._reader.announce(reader, shards, position)

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

        Raises `DatasetError` if the storage cannot be read.
        """
        manifests = self._store.list_manifests()
        newest = max(manifests, default=0)
        with self._lock:
            current = self._current
        if not newest or manifests[newest] == self._newest:
            return False
        try:
            manifest = self._store.load(newest)
        except ManifestError as error:
            self._newest = manifests[newest]
            self._log.error("version not served", location=self.location, reason=str(error))
            return False
        if manifest is None:
            return False
        version = self._make_version(manifest)
        with self._lock:
            if self._current is not current:
                return True  # another thread was faster
            self._newest = manifests[newest]
            if version.version == current.version:
                return False
            self._keep_old(current.manifest.version, current)
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

    def _find_version(self, request: Request) -> PublishedVersion:
        """Return the version that a request is for, or the current one."""
        current = self._find_current()
        if request.version is None or names_version(request.version, current.version):
            return current
        number = parse_version_number(request.version)
        if number is not None and not request.current:
            version = self._find_old(number)
            if version is not None and names_version(request.version, version.version):
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
                self._keep_old(number, version)
        return version

    def _make_version(self, manifest: Manifest) -> PublishedVersion:
        return PublishedVersion(manifest, self._store, self._reader)


class VersionWatcher:
    """Keeps the published datasets of a catalog at their current versions.

    The kernel reports new manifests in local folders. Object stores are polled, every `seconds`
    seconds. Polling covers folders too, because some network file systems report no changes. Old
    versions are pruned at the same interval; a `keep` of None disables this.
    """

    def __init__(
        self, datasets: Callable[[], Iterable[ServedDataset]], seconds: float, keep: int | None
    ) -> None:
        self._datasets = datasets
        self._seconds = seconds
        self._keep = keep
        self._failures: dict[str, str] = {}
        self._log = get_logger("published")

    async def run(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll)
            tasks.start_soon(self._watch)

    async def _poll(self) -> None:
        while True:
            for dataset in self._list_published():
                await self._update(dataset)
            await anyio.sleep(self._seconds)

    async def _watch(self) -> None:
        """Update the datasets in local folders when the kernel reports a change."""
        while True:
            folders = await self._list_existing_folders()
            if not folders:
                await anyio.sleep(_FOLDERS_SECONDS)
                continue
            stop = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_on_other_folders, folders, stop)
                try:
                    await self._watch_folders(folders, stop)
                except OSError as error:
                    self._log.warning("cannot watch folders", reason=str(error))
                    await anyio.sleep(self._seconds)
                tasks.cancel_scope.cancel()

    async def _watch_folders(self, folders: frozenset[Path], stop: anyio.Event) -> None:
        from watchfiles import awatch

        changes = awatch(
            *folders, stop_event=stop, recursive=False, debounce=_DEBOUNCE_MS, step=_STEP_MS
        )
        async for changed in changes:
            touched = {Path(path).parent for _, path in changed}
            for dataset in self._list_published():
                if _manifest_folder(dataset) in touched:
                    await self._update(dataset)

    async def _stop_on_other_folders(self, folders: frozenset[Path], stop: anyio.Event) -> None:
        """Set `stop` when the set of folders to watch changes, or on cancellation."""
        try:
            while True:
                await anyio.sleep(_FOLDERS_SECONDS)
                if await self._list_existing_folders() != folders:
                    return
        finally:
            stop.set()

    async def _update(self, dataset: PublishedDataset) -> None:
        await self._run_logged(dataset, "look for versions of", dataset.refresh)
        keep = self._keep
        if keep is not None:
            await self._run_logged(dataset, "prune versions of", lambda: dataset.prune(keep))

    async def _run_logged(
        self, dataset: PublishedDataset, action: str, call: Callable[[], object]
    ) -> None:
        """Run a call on a worker thread. Log an error once, until the call succeeds."""
        key = f"{action} {dataset.location}"
        try:
            await to_thread.run_sync(call)
            self._failures.pop(key, None)
        except SplitArrowError as error:
            if self._failures.get(key) != error.message:
                self._failures[key] = error.message
                self._log.warning(f"cannot {key}", reason=error.message)

    def _list_published(self) -> list[PublishedDataset]:
        return [dataset for dataset in self._datasets() if isinstance(dataset, PublishedDataset)]

    async def _list_existing_folders(self) -> frozenset[Path]:
        folders = {
            folder for folder in map(_manifest_folder, self._list_published()) if folder is not None
        }
        if not folders:
            return frozenset()
        return await to_thread.run_sync(lambda: frozenset(f for f in folders if f.is_dir()))


def _manifest_folder(dataset: PublishedDataset) -> Path | None:
    """Return the folder of a dataset's manifests; None if it is in an object store."""
    folder = dataset.store.storage.folder
    return None if folder is None else folder / VERSIONS
