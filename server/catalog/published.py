"""Published datasets: versions that manifests describe, and shards that never change."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, SplitArrowError, remote_error
from ...formats.manifest import Manifest, ShardEntry
from ...protocol.request import Request
from ..logs import get_logger
from .asked import asked_shards, check_version
from .base import Encoding, Shard
from .object_cache import CacheSettings, ObjectCache
from .shard_source import HeldSource, ShardReader
from .versions import VersionStore

TOLD_SECONDS = 60.0
"""How long a version is kept that somebody was told of, and may begin to read."""
_MOST_OLD = 8


class PublishedVersion:
    """One version of a published dataset; see `Dataset`. It never changes.

    Parameters
    ----------
    manifest : Manifest
        What it consists of.
    store : VersionStore
        Where it lies.
    reader : ShardReader
        Reads its shards.
    """

    kind = "published dataset"
    """What it is made of."""

    def __init__(self, manifest: Manifest, store: VersionStore, reader: ShardReader) -> None:
        self.manifest = manifest
        """What it consists of."""
        digest = hashlib.blake2b(manifest.to_json(), digest_size=8).hexdigest()
        self.version = f"{manifest.version}-{digest}"
        """Its number, and what tells it from one of that number in another place."""
        self.rows = manifest.rows
        """How many rows it has."""
        self.nbytes = manifest.nbytes
        """How long its shards are, in bytes."""
        self._store = store
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """The schema of all its batches."""
        return self.manifest.schema

    @property
    def shards(self) -> Sequence[Shard]:
        """Its shards; if it has none, one without rows."""
        found = [Shard(shard.rows, shard.nbytes) for shard in self.manifest.shards]
        return found or [Shard(0, 0)]

    @property
    def about(self) -> Mapping[str, Any]:
        """What a FlightInfo tells of the whole: where else there may be parts of it."""
        manifest = self.manifest
        return {"snapshot": manifest.snapshot, "shards_total": manifest.shards_total}

    def about_shard(self, index: int) -> Mapping[str, Any]:
        """Return what an endpoint tells of a shard; nothing of the shard of an empty dataset."""
        if not self.manifest.shards:
            return self.about
        shard = self.manifest.shards[index]
        known = {"ordinal": shard.ordinal, "sha256": shard.sha256, "rows": shard.rows}
        return {**self.about, **known, "bytes": shard.nbytes}

    def open(self, request: Request, encoding: Encoding) -> HeldSource:
        """Begin to read it for one reader; see `Dataset`."""
        check_version(request, self.version)
        hold = self._store.hold(self.manifest.version)
        if hold is None:
            raise Removed(f"{self._store.location} has no version {self.manifest.version} any more")
        try:
            shards = self._asked(request)
            rest = replace(request, shard=None, version=None)
            source = self._reader.open(shards, self.schema, rest, encoding)
        except BaseException:
            hold.close()
            raise
        return HeldSource(source, [hold])

    def close(self) -> None:
        """Do nothing: between readers no file is open."""

    def _asked(self, request: Request) -> Sequence[ShardEntry]:
        shards = self.manifest.shards
        if not shards:
            asked_shards(request, self.shards)
        return asked_shards(request, shards) if shards else ()


class Removed(DatasetError):
    """The version was removed meanwhile."""


class PublishedDataset:
    """A published dataset; see `Dataset`. Each new reader gets the version that is current then.

    Parameters
    ----------
    location : str or path-like
        Its folder: a path or a URL.
    cache : ObjectCache, optional
        Where shards of an object store are kept; by default in the user's cache folder.

    Raises
    ------
    DatasetError
        If nothing is published there, or the newest manifest cannot be read.
    UsageError
        If the URL is of a kind that is not served.
    MissingExtraError
        If it is in an object store, and the extra ``object-store`` is not installed.
    """

    def __init__(self, location: str | os.PathLike[str], cache: ObjectCache | None = None) -> None:
        self._store = VersionStore(location)
        self._reader = ShardReader(self._store.storage, cache or CacheSettings().open())
        self._lock = threading.Lock()
        self._old: dict[int, PublishedVersion] = {}
        self._told: dict[int, float] = {}
        self._refused = 0
        self._log = get_logger("published")
        manifest = self._store.load()
        if manifest is None:
            raise DatasetError(f"{self.location}: no version of a dataset has been published here")
        self._current = self._version(manifest)

    @property
    def location(self) -> str:
        """Where it lies: an absolute path or a URL."""
        return self._store.location

    @property
    def store(self) -> VersionStore:
        """Its versions."""
        return self._store

    @property
    def kind(self) -> str:
        """What it is made of."""
        return self._current.kind

    @property
    def schema(self) -> pa.Schema:
        """The schema of the current version."""
        return self._current.schema

    @property
    def rows(self) -> int:
        """How many rows the current version has."""
        return self._current.rows

    @property
    def nbytes(self) -> int:
        """How long the shards of the current version are, in bytes."""
        return self._current.nbytes

    @property
    def version(self) -> str:
        """What tells the current version from others."""
        return self._newest().version

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards of the current version."""
        return self._current.shards

    def at(self, request: Request) -> PublishedVersion:
        """Return the version that a request asks for, or the current one.

        It is not removed for a while, so that who is told of it can begin to read it.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if there is no such version any more.
        """
        found = self._asked(request)
        with self._lock:
            self._told[found.manifest.version] = time.monotonic()
        return found

    def _asked(self, request: Request) -> PublishedVersion:
        current = self._newest()
        if request.version in (None, current.version):
            return current
        number = request.version.partition("-")[0]
        if number.isascii() and number.isdigit() and len(number) < 18:
            found = self._old_version(int(number))
            if found is not None and found.version == request.version:
                return found
        check_version(request, current.version)
        return current

    def open(self, request: Request, encoding: Encoding) -> HeldSource:
        """Begin to read it for one reader; see `Dataset`."""
        while True:
            version = self._asked(request)
            try:
                return version.open(request, encoding)
            except Removed:
                with self._lock:
                    self._old.pop(version.manifest.version, None)
                if request.version is not None:
                    raise remote_error(
                        "FAILED_PRECONDITION",
                        f"the version {request.version} of the dataset {request.dataset!r} "
                        "has been removed",
                        stream=request.dataset,
                    ) from None
                if not self.refresh():
                    raise

    def refresh(self) -> bool:
        """Look for a later version, and tell whether there is one; readers then get that.

        Raises
        ------
        DatasetError
            If the place cannot be read. If only the manifest cannot, that is logged, and the
            version before stays.
        """
        versions = self._store.versions()
        newest = versions[-1] if versions else 0
        with self._lock:
            current = self._current
        if newest in (current.manifest.version, self._refused):
            return False
        try:
            manifest = self._store.load(newest) if newest else None
        except SplitArrowError as error:
            self._refused = newest
            self._log.error("version not served", location=self.location, reason=str(error))
            return False
        if manifest is None:
            return False
        found = self._version(manifest)
        with self._lock:
            if self._current is not current:
                return True
            self._keep_old(current)
            self._current = found
        self._log.info("version served", location=self.location, version=newest, rows=found.rows)
        return True

    def prune(self, keep: int) -> list[int]:
        """Remove versions that are not among the newest; see `VersionStore.prune`.

        Those that somebody was told of in the last minute stay.
        """
        since = time.monotonic() - TOLD_SECONDS
        with self._lock:
            self._told = {told: last for told, last in self._told.items() if last > since}
            wanted = frozenset(self._told)
        removed = self._store.prune(keep, wanted)
        with self._lock:
            for version in removed:
                self._old.pop(version, None)
        if removed:
            self._log.info("versions removed", location=self.location, versions=removed)
        return removed

    def close(self) -> None:
        """Do nothing: between readers no file is open."""

    def _newest(self) -> PublishedVersion:
        """Return the current version; in a folder it is looked for, which costs little."""
        if self._store.storage.folder is not None:
            try:
                self.refresh()
            except DatasetError as error:
                self._log.warning("cannot look for versions", reason=error.message)
        return self._current

    def _old_version(self, number: int) -> PublishedVersion | None:
        with self._lock:
            found = self._old.get(number)
        if found is None:
            manifest = self._store.load(number)
            if manifest is None:
                return None
            found = self._version(manifest)
            with self._lock:
                self._keep_old(found)
        return found

    def _keep_old(self, version: PublishedVersion) -> None:
        self._old[version.manifest.version] = version
        while len(self._old) > _MOST_OLD:
            del self._old[next(iter(self._old))]

    def _version(self, manifest: Manifest) -> PublishedVersion:
        return PublishedVersion(manifest, self._store, self._reader)
