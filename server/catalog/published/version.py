"""One version of a published dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ....errors import DatasetError
from ....protocol.request import Request
from ....publication.manifest import Manifest, ShardEntry, encode_manifest, encode_ranges
from ....publication.version_store import VersionStore
from ..dataset import Encoding, Shard
from ..messages.generator_source import GeneratorSource
from ..query.request_checks import check_version, select_shards
from .shard_reader import ShardReader


class VersionRemovedError(DatasetError):
    """The version was pruned after its manifest was read."""


class PublishedVersion:
    """One version of a published dataset. It never changes. See `Dataset`.

    Parameters
    ----------
    manifest : Manifest
        The manifest of the version.
    store : VersionStore
        The versions of the dataset.
    reader : ShardReader
        Reads the shards of the dataset.
    """

    kind = "published dataset"
    """The type of the data; see `Dataset.kind`."""
    reads_fields = True
    """See `FileDataset.reads_fields`."""

    def __init__(self, manifest: Manifest, store: VersionStore, reader: ShardReader) -> None:
        self.manifest = manifest
        """The manifest of the version."""
        digest = hashlib.blake2b(encode_manifest(manifest), digest_size=8).hexdigest()
        self.version = f"{manifest.version}-{digest}"
        """The number of the version, and a hash that differs for a dataset published elsewhere."""
        self.rows = manifest.rows
        """The number of rows."""
        self.nbytes = manifest.nbytes
        """The size of the shards in bytes."""
        self._store = store
        self._reader = reader

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches."""
        return self.manifest.schema

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards; a single one without rows if the version has no shard."""
        shards = [Shard(shard.rows, shard.nbytes) for shard in self.manifest.shards]
        return shards or [Shard(0, 0)]

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The fields for the ``app_metadata`` of the FlightInfo.

        They let a client combine the shards of this publication that several servers have.
        """
        manifest = self.manifest
        return {"snapshot": manifest.snapshot, "shards_total": manifest.shards_total}

    def make_shard_app_metadata(self, index: int) -> Mapping[str, Any]:
        """Return the fields for the ``app_metadata`` of a shard's endpoint."""
        if not self.manifest.shards:
            return self.app_metadata
        shard = self.manifest.shards[index]
        return {
            **self.app_metadata,
            "ordinal": shard.ordinal,
            "sha256": shard.sha256,
            "rows": shard.rows,
            "bytes": shard.nbytes,
        }

    def list_ranges(self, columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the rows of each shard, and the ranges of columns, as the manifest has them."""
        shards = self.manifest.shards
        ranges = [
            {"rows": shard.rows, "columns": encode_ranges(shard, columns)} for shard in shards
        ]
        return [
            {"shard": index, **values}
            for index, values in enumerate(ranges or [{"rows": 0, "columns": {}}])
        ]

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the version for one reader; see `Dataset.open`.

        Raises
        ------
        VersionRemovedError
            If the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        with self._lock_version(shards) as resources:
            rest = replace(request, shard=None, version=None)
            source = self._reader.open(shards, self.schema, rest, encoding)
            source.call_on_close(resources.pop_all().close)
        return source

    def count_rows(self, request: Request, encoding: Encoding) -> list[int]:
        """Return the rows that each stored batch contributes; see `Dataset.count_rows`.

        Raises
        ------
        VersionRemovedError
            If the version was pruned.
        """
        check_version(request, self.version)
        shards = self._select_shards(request)
        with self._lock_version(shards):
            rest = replace(request, shard=None, version=None)
            return [
                rows
                for shard in shards
                for rows in self._reader.count_rows(shard, self.schema, rest, encoding)
            ]

    def close(self) -> None:
        """Do nothing: no file is open between readers."""

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
