"""Retention: removing old versions and the shards that no other version names.

A version is removed in three steps:

1. Its manifest is moved to the folder of pruned manifests, under the exclusive lock. The version no
   longer exists, and no reader can start on it.
2. The shards that only pruned manifests name are deleted.
3. The pruned manifest is deleted.

After a crash, the pruned manifest is still there, and the next run continues with step 2.
"""

from __future__ import annotations

from collections.abc import Collection

from .layout import PRUNED, format_manifest_name
from .locks import VersionLocks
from .manifest_json import decode_manifest
from .manifest_store import ManifestStore


def prune_versions(
    manifests: ManifestStore, locks: VersionLocks, keep: int, protected: Collection[int]
) -> list[int]:
    """Remove old versions that no reader uses; see `VersionStore.prune`."""
    removed: list[int] = []
    storage = manifests.storage
    for version in manifests.list_versions()[:-keep]:
        if version in protected:
            continue
        name = format_manifest_name(version)
        with locks.try_lock_exclusively(name) as locked:
            if locked and storage.get_size(name) is not None:
                storage.move(name, f"{PRUNED}/{version:08d}.json")
                removed.append(version)
    _delete_unreferenced_shards(manifests)
    return removed


def _delete_unreferenced_shards(manifests: ManifestStore) -> None:
    """Delete the shards that only pruned manifests name, and then these manifests."""
    storage = manifests.storage
    pruned = storage.list_objects(PRUNED)
    if not pruned:
        return
    referenced: set[str] = set()
    for version in manifests.list_versions():
        manifest = manifests.load(version)
        referenced.update(shard.path for shard in (manifest.shards if manifest else ()))
    for entry in pruned:
        data = storage.read(entry.name)
        if data is not None:
            manifest = decode_manifest(data, f"{storage.location}/{entry.name}")
            storage.delete(s.path for s in manifest.shards if s.path not in referenced)
        storage.delete([entry.name])
