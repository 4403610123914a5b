"""Publishing a version from a folder, or a list of Arrow IPC files, to a cluster of daemons.

This module needs neither PySpark nor Java.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..client.cluster.publication import ClusterPublishResult, ShardProgress, publish_shards
from ..client.tokens import Token, TokenFile
from ..errors import DatasetError
from ..protocol.uri import DataUri
from ..publication.manifest import Manifest, ShardEntry
from ..publication.shard_files import hash_file
from ..publication.version_store import VersionStore
from ..transport.tls_options import TlsOptions


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
    token: Token | None = None,
    token_file: TokenFile = None,
    tls: TlsOptions | None = None,
    parallel: int = 4,
    progress: ShardProgress | None = None,
) -> ClusterPublishResult:
    """Publish a version of a published dataset, or a list of shards, to a cluster of daemons.

    Parameters
    ----------
    location : path-like, str or sequence of path-like
        A published dataset: a path, or the URL of an object store. Or the Arrow IPC files that
        become the shards, in order.
    name : str
        The name of the dataset at the daemons.
    uris : str, or sequence of str
        The control planes of the daemons.
    replicas : int
        The number of daemons that store each shard.
    version : int, optional
        The version to publish. The default is the current version.
    job : str, optional
        The identifier of the publication. The default for a published dataset is the job that
        wrote the version; so a version is published only once, however often this function runs.
        For a list see `splitarrow.pipeline.publish_shards`.
    snapshot : str, optional
        The snapshot that the daemons share. The default for a published dataset is the snapshot
        of the version.
    mode : {"overwrite", "append"}
        Whether the shards replace those of the current version, or follow them.
    properties : mapping of str to str, optional
        Properties to store in the manifests. The default for a published dataset is the
        properties of the version.
    token, token_file
        The token that authenticates the caller at every daemon; see `splitarrow.connect`.
    tls : TlsOptions, optional
        The TLS settings; None takes them from the environment.
    parallel : int
        The number of concurrent uploads.
    progress : callable, optional
        Called with the result of each upload.

    Returns
    -------
    ClusterPublishResult
        The published version of every daemon.

    Raises
    ------
    DatasetError
        If the version does not exist, a shard differs from its manifest, or a commit failed.
    SplitArrowError
        Any other error of `splitarrow.pipeline.publish_shards`.
    """
    options: dict[str, Any] = {
        "replicas": replicas,
        "mode": mode,
        "token": token,
        "token_file": token_file,
        "tls": tls,
        "parallel": parallel,
        "progress": progress,
    }
    if not isinstance(location, (str, os.PathLike)):
        files = [os.fspath(path) for path in location]
        return publish_shards(
            name, files, uris, job=job, snapshot=snapshot, properties=properties, **options
        )
    store = VersionStore(location)
    manifest = _load_complete(store, version)
    result = publish_shards(
        name,
        [partial(_verified_file, store, shard) for shard in manifest.shards],
        uris,
        job=job or manifest.job,
        snapshot=snapshot or (manifest.snapshot if job is None else None),
        schema=manifest.schema,
        properties=manifest.properties if properties is None else properties,
        **options,
    )
    if result.rows != manifest.rows:
        raise DatasetError(
            f"{store.location} has {manifest.rows} rows, but the daemons received {result.rows}",
            stream=name,
        )
    return result


def _load_complete(store: VersionStore, version: int | None) -> Manifest:
    """Return the manifest of a version, and check that all of its shards are in the store."""
    manifest = store.load(version)
    if manifest is None:
        missing = "no version" if version is None else f"no version {version}"
        raise DatasetError(f"{store.location} has {missing}; publish one first")
    if len(manifest.shards) != manifest.shards_total:
        raise DatasetError(
            f"{store.location} has {len(manifest.shards)} of {manifest.shards_total} shards; "
            "other servers store the rest, so it cannot be published from here"
        )
    return manifest


@contextmanager
def _verified_file(store: VersionStore, shard: ShardEntry) -> Generator[str]:
    """Yield the path of a shard file after checking its checksum."""
    with store.open_shard(shard) as file:
        if hash_file(Path(file.name)) != shard.sha256:
            raise DatasetError(
                f"{store.location}/{shard.path} does not match the checksum in its manifest"
            )
        yield file.name
