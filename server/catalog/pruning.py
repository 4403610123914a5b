"""Removing old versions of a published dataset, and the shards that only they name.

A manifest is first moved away, so that its version is none any more, and removed when its shards
have been: what is broken off in between is finished the next time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ...formats.manifest import Manifest
from .holds import Holds
from .places import PRUNED, manifest_name
from .storage import Storage


class Versions(Protocol):
    """What is pruned."""

    storage: Storage

    def versions(self) -> list[int]:
        """Return the numbers of the versions that there are, in order."""
        ...

    def load(self, version: int) -> Manifest | None:
        """Return a manifest; None if there is no such version."""
        ...


def prune(store: Versions, holds: Holds, keep: int, wanted: Collection[int]) -> list[int]:
    """Remove all versions but the newest and those that are held; see `VersionStore.prune`."""
    removed: list[int] = []
    storage = store.storage
    for version in store.versions()[:-keep]:
        if version in wanted:
            continue
        name = manifest_name(version)
        with holds.exclusive(name) as is_free:
            if is_free and storage.nbytes(name) is not None:
                storage.move(name, f"{PRUNED}/{version:08d}.json")
                removed.append(version)
    _sweep(store)
    return removed


def _sweep(store: Versions) -> None:
    """Remove the shards of the manifests that were moved away, then those."""
    storage = store.storage
    pruned = storage.names(PRUNED)
    if not pruned:
        return
    kept: set[str] = set()
    for version in store.versions():
        manifest = store.load(version)
        kept.update(shard.path for shard in (manifest.shards if manifest else ()))
    for stored in pruned:
        data = storage.read(stored.name)
        if data is not None:
            manifest = Manifest.from_json(data, f"{storage.location}/{stored.name}")
            storage.delete(shard.path for shard in manifest.shards if shard.path not in kept)
        storage.delete([stored.name])
