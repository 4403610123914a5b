"""Committing a job: promoting its shards and creating the manifest of the next version.

The order of the steps makes a commit crash-safe:

1. Every shard is promoted and its name made durable. No reader sees them yet.
2. The manifest is created under the next free version number. This step alone makes the version
   visible, and it happens completely or not at all.
3. The staging folder of the job is removed.

After a crash in step 1 or 2, the job can commit again or be discarded. After a crash in step 3, the
version exists, and committing the job again finds it and finishes step 3.

Concurrent writers need no lock. If another writer creates the same version first, the commit reads
the versions that it has not seen yet. If the same job made one of them, it is the result. Otherwise
the commit tries the next number.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import DatasetError
from ..formats.arrow.schema_difference import describe_difference
from .manifest import Manifest
from .manifest_store import ManifestStore
from .staging import StagingArea


def commit_version(
    manifests: ManifestStore, staging: StagingArea, new: Manifest, *, append: bool
) -> Manifest:
    """Commit a job; see `VersionStore.commit`.

    Parameters
    ----------
    manifests : ManifestStore
        The versions of the dataset.
    staging : StagingArea
        The staged shards of the job.
    new : Manifest
        The manifest for an empty dataset: version 1 with the shards of the job.
    append : bool
        Whether the new version also has the shards of the current one, before its own.
    """
    highest, committed = manifests.find_job(new.job)
    if committed is None:
        staging.promote_shards(new.job, new.shards)
    while committed is None:
        highest, committed = manifests.find_job(new.job, after=highest)
        if committed is None:
            committed = _try_create(manifests, highest, new, append=append)
    staging.discard_staged(new.job)
    return committed


def _try_create(
    manifests: ManifestStore, highest: int, new: Manifest, *, append: bool
) -> Manifest | None:
    """Create the version after `highest`; return None if another writer was faster."""
    base = manifests.load(highest) if highest else None
    if highest and base is None:
        return None  # pruned meanwhile, so a higher version exists
    manifest = _build_on(base, new, append=append)
    return manifest if manifests.create(manifest) else None


def _build_on(base: Manifest | None, new: Manifest, *, append: bool) -> Manifest:
    """Return the manifest of the version after `base`."""
    if base is None:
        return new
    if not append:
        return replace(new, version=base.version + 1)
    difference = describe_difference(base.schema, new.schema)
    if difference is not None:
        raise DatasetError(
            f"cannot append: the schema differs from that of version {base.version}: {difference}"
        )
    shifted = [replace(shard, ordinal=shard.ordinal + base.shards_total) for shard in new.shards]
    return replace(
        new,
        version=base.version + 1,
        schema=base.schema,
        shards=(*base.shards, *shifted),
        shards_total=base.shards_total + new.shards_total,
    )
