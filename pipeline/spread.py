"""A published folder, or some files, onto several daemons."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..client.spreading import ShardProgress, Spread, spread
from ..errors import DatasetError
from ..formats.manifest import Manifest, ShardEntry
from ..protocol.uri import DataUri
from ..server.catalog.shard_files import file_sha256
from ..server.catalog.versions import VersionStore
from ..transport.certificates import TlsOptions


def publish_folder(
    location: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    name: str,
    uris: str | DataUri | Sequence[str | DataUri],
    *,
    replicas: int = 1,
    version: int | None = None,
    job: str | None = None,
    snapshot: str | None = None,
    mode: str = "overwrite",
    properties: Mapping[str, str] | None = None,
    token: str | None = None,
    tls: TlsOptions | None = None,
    parallel: int = 4,
    progress: ShardProgress | None = None,
) -> Spread:
    """Publish a folder that was published, or a list of shards, to several daemons.

    Parameters
    ----------
    location : path-like, str or sequence of path-like
        A published folder: a path, or a URL of an object store. Or the Arrow IPC files that are
        the shards, in order.
    name : str
        What the dataset is called at the daemons.
    uris : str, or sequence of str
        The control planes of the daemons.
    replicas : int
        How many daemons get each shard.
    version : int, optional
        Which version of the folder; by default the current one.
    job : str, optional
        What this publication is called; of a folder, by default, the job that made the version,
        so that a version is published once, however often that is asked for. For a list see
        `splitarrow.client.spreading.spread`.
    snapshot : str, optional
        What readers know it by; of a folder, by default, the snapshot of the version.
    mode : {"overwrite", "append"}
        Whether the dataset is to have these shards only, or those from before as well.
    properties : mapping of str to str, optional
        What to keep in the manifests; of a folder, by default, what the version says.
    token : str, optional
        What tells every daemon who calls.
    tls : TlsOptions, optional
        What to trust and to show.
    parallel : int
        How many shards are sent at a time.
    progress : callable, optional
        Is told of each copy of a shard that is stored.

    Returns
    -------
    Spread
        What each daemon has.

    Raises
    ------
    DatasetError
        If there is no such version, a shard is not as its manifest says, or a commit failed.
    SplitArrowError
        As `splitarrow.client.spreading.spread` does.
    """
    options: dict[str, Any] = {
        "replicas": replicas,
        "mode": mode,
        "token": token,
        "tls": tls,
        "parallel": parallel,
        "progress": progress,
    }
    if not isinstance(location, (str, os.PathLike)):
        files = [os.fspath(path) for path in location]
        return spread(
            name, files, uris, job=job, snapshot=snapshot, properties=properties, **options
        )
    store = VersionStore(location)
    manifest = store.load(version)
    if manifest is None:
        which = "no version" if version is None else f"no version {version}"
        raise DatasetError(f"{store.location} has {which} that could be published")
    done = spread(
        name,
        [partial(_checked, store, shard) for shard in _complete(manifest, store.location)],
        uris,
        job=job or manifest.job,
        snapshot=snapshot or (manifest.snapshot if job is None else None),
        schema=manifest.schema,
        properties=manifest.properties if properties is None else properties,
        **options,
    )
    if done.rows != manifest.rows:
        raise DatasetError(
            f"{store.location} has {manifest.rows} rows, but {done.rows} were published",
            stream=name,
        )
    return done


def _complete(manifest: Manifest, location: str) -> tuple[ShardEntry, ...]:
    if len(manifest.shards) != manifest.shards_total:
        raise DatasetError(
            f"{location} has {len(manifest.shards)} of {manifest.shards_total} shards: the others "
            "are at other servers"
        )
    return manifest.shards


@contextmanager
def _checked(store: VersionStore, shard: ShardEntry) -> Generator[str]:
    """Yield the path of a shard's file, once it is what the manifest says."""
    with store.open_shard(shard) as file:
        if file_sha256(Path(file.name)) != shard.sha256:
            raise DatasetError(f"{store.location}/{shard.path} has changed: its checksum differs")
        yield file.name
