"""The files of a published dataset that Spark's tasks may map instead of asking a daemon for them.

Only the reader itself says where they are: no daemon tells anybody a path. The driver looks each
shard up in the manifest of the version that it reads, and checks that it is the file that the
daemon serves. Shards never change, so this holds for as long as the file exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...client.rpc.info import Endpoint
from ...errors import DatasetError, UsageError
from ...publication.layout import format_shard_name
from ...publication.manifest import ShardEntry
from ...publication.storage.locations import is_object_url
from ...publication.version_store import VersionStore

_VERSION = re.compile(r"(\d{1,18})-[0-9a-f]+")


class LocalShards:
    """The shards that one folder has of the versions to read.

    Parameters
    ----------
    location : str
        The folder of the published dataset.
    versions : iterable of str
        The versions to read, as the daemons name them.

    Raises
    ------
    UsageError
        If the location is no folder, or has none of the versions.
    """

    def __init__(self, location: str, versions: Iterable[str]) -> None:
        if is_object_url(location):
            raise UsageError(f"the option folder is {location}; only a local folder can be mapped")
        store = VersionStore(location)
        self._folder = Path(store.location)
        self._shards: Mapping[str, ShardEntry] = _read_manifests(store, set(versions))

    def find(self, endpoint: Endpoint) -> dict[str, Any] | None:
        """Return the path and the size of a shard's file; None if the folder does not have it.

        The size and the SHA-256 of the manifest must be those that the daemon reports, and the
        name of the file contains the beginning of that SHA-256.
        """
        shard = self._shards.get(endpoint.sha256)
        if shard is None or shard.nbytes != endpoint.nbytes:
            return None
        if format_shard_name("", shard.sha256) not in shard.path.rpartition("/")[2]:
            return None
        return {"path": str(self._folder / shard.path), "bytes": shard.nbytes}


def _read_manifests(store: VersionStore, versions: set[str]) -> dict[str, ShardEntry]:
    """Return the shards of versions by their SHA-256."""
    numbers = {int(match[1]) for match in map(_VERSION.fullmatch, versions) if match}
    try:
        manifests = [store.load(number) for number in sorted(numbers)]
    except DatasetError as error:
        raise UsageError(f"the option folder: {error.message}") from None
    found = [manifest for manifest in manifests if manifest is not None]
    if not found:
        raise UsageError(
            f"the option folder is {store.location!r}, which is not the folder of this dataset: "
            f"it has no version {', '.join(sorted(versions)) or 'at all'}"
        )
    return {shard.sha256: shard for manifest in found for shard in manifest.shards}
