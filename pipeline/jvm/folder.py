"""Answers about a published folder that tasks map by themselves: no daemon serves it.

`planner.answer` uses them if the options name a folder, and no control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any

from ...client.rpc.info import DatasetInfo, Endpoint
from ...errors import UsageError
from ...publication.locks import VersionLock
from ...publication.manifest import Manifest
from ...publication.storage import is_object_url
from ...publication.version_store import VersionStore
from ..filters import has_no_value, push_predicates, push_runtime
from ..options import SparkOptions, local_path
from ..reader import refuse_stream_options, select_columns
from ..shards import partition_columns
from ..types import spark_schema, stored_schema
from . import MEMORY_LIMIT
from .aggregates import compute_aggregates, find_keys
from .pruning import (
    ShardStatistics,
    VersionStatistics,
    divide,
    read_order,
    simple_schema,
)
from .streaming import find_batch, find_latest, start_stream


def find_folder(options: SparkOptions) -> str | None:
    """Return the folder that the options name in place of a control plane; None if they do not.

    Raises `UsageError` if it is in an object store.
    """
    path = options.text("path")
    if path is None or options.text("uri") is not None:
        return None
    path = local_path(path)
    if is_object_url(path):
        raise UsageError(
            f"{path} can be read through a daemon only: serve it, and set the option 'uri'"
        )
    return path if path.startswith("/") else None


def answer_folder(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    """Answer a request of the reader in the JVM about a folder.

    Raises `SplitArrowError` if an option is wrong, or the folder has no such version.
    """
    return _OPERATIONS[values["operation"]](folder, values, options)


_held: dict[tuple[str, int], tuple[VersionLock, int]] = {}
"""The locks on the versions that the JVM reads, by folder and version, and how often it does.

They end with this process, which ends with the JVM.
"""


def _hold(store: VersionStore, version: int) -> bool:
    """Keep a version from being removed until `_release`; return whether it exists."""
    key = (store.location, version)
    lock, count = _held.get(key, (None, 0))
    lock = lock or store.lock(version)
    if lock is None:
        return False
    _held[key] = (lock, count + 1)
    return True


def _release(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    """Let a version be removed once nothing else reads it."""
    del options
    key = (VersionStore(folder).location, int(values["version"]))
    lock, count = _held.pop(key)
    if count > 1:
        _held[key] = (lock, count - 1)
    else:
        lock.release()
    return {}


def _load(folder: str, version: str | None) -> tuple[VersionStore, Manifest]:
    if version is not None and not version.isdigit():
        raise UsageError(f"option 'version' is {version!r}; a folder has versions by their number")
    store = VersionStore(folder)
    manifest = store.load(None if version is None else int(version))
    if manifest is None:
        missing = "no version" if version is None else f"no version {version}"
        raise UsageError(f"{folder} has {missing} of a dataset that was published")
    return store, manifest


def _describe(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    if options.text("filter") is not None:
        raise UsageError("the option 'filter' needs a daemon; name it in the option 'uri'")
    limit = options.count("limit", minimum=0)
    options.count("shards_per_partition")
    store, manifest = _load(folder, options.text("version"))
    number = str(manifest.version)
    info = DatasetInfo(
        folder, manifest.rows, manifest.nbytes, manifest.schema, "published dataset", number
    )
    names = options.names("columns")
    columns = select_columns(info, names)
    if names and set(names) - set(manifest.schema.names):
        raise UsageError("fields of structs need a daemon; name it in the option 'uri'")
    answer = {
        "dataset": folder,
        "problem": None,
        "locked": True,
        "schema": spark_schema(columns).jsonValue(),
        "stored_schema": stored_schema(columns).jsonValue(),
        "version": number,
        "rows": manifest.rows if limit is None else min(limit, manifest.rows),
        "bytes": manifest.nbytes,
        "pushdown": options.flag("pushdown", True) and limit is None,
        "memory_limit": options.nbytes("memory_limit", MEMORY_LIMIT),
        "partition_by": partition_columns(manifest.schema),
    }
    if not _hold(store, manifest.version):  # it was removed meanwhile
        return _describe(folder, values, options)
    return answer


def _push(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    """Return a filter that selects shards. Spark evaluates the predicates."""
    del options
    predicates = values["predicates"]
    _, manifest = _load(folder, values["version"])
    text = push_predicates(predicates, manifest.schema)[1]
    return {"accepted": [False] * len(predicates), "filter": text}


def _make_statistics(manifest: Manifest) -> VersionStatistics:
    shards = [ShardStatistics(shard.rows, shard.columns) for shard in manifest.shards]
    target = simple_schema(spark_schema(manifest.schema))
    return VersionStatistics(manifest.schema, target, lambda columns: shards)


def _aggregate(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    del options
    statistics = _make_statistics(_load(folder, values["version"])[1])
    return {"rows": compute_aggregates(statistics, values["aggregates"], values["groups"])}


def _select(manifest: Manifest, values: Mapping[str, Any]) -> list[int]:
    """Return the positions of the shards that may have rows of a query."""
    filter = push_runtime(values.get("runtime", ()), values.get("filter") or None, manifest.schema)
    chosen = _make_statistics(manifest).select(filter, read_order(values))
    return list(range(len(manifest.shards))) if chosen is None else chosen


def _estimate(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    del options
    _, manifest = _load(folder, values["version"])
    chosen = [manifest.shards[index] for index in _select(manifest, values)]
    return {
        "rows": sum(shard.rows for shard in chosen),
        "bytes": sum(shard.nbytes for shard in chosen),
    }


def _plan(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    refuse_stream_options(options)
    return _plan_shards(folder, values["version"], None, values, options)


def _plan_shards(
    folder: str,
    version: str | None,
    selected: Set[int] | None,
    values: Mapping[str, Any],
    options: SparkOptions,
) -> dict[str, Any]:
    if has_no_value(values.get("runtime", ())):
        return {"partitions": []}
    store, manifest = _load(folder, version)
    base = Path(store.location)
    shards = [
        {
            "ordinal": shard.ordinal,
            "rows": shard.rows,
            "replicas": list[Any](),
            "file": {"path": str(base / shard.path), "bytes": shard.nbytes},
        }
        for shard in manifest.shards
    ]
    limit = options.count("limit", minimum=0)
    chosen = [
        index
        for index in _select(manifest, values)
        if selected is None or manifest.shards[index].ordinal in selected
    ]
    sizes = [shard.nbytes for shard in manifest.shards]
    shards_per_task = options.count("shards_per_partition")
    keys = None
    if values.get("keyed") and limit is None:
        keys = find_keys(_make_statistics(manifest))
    tasks = [chosen] if limit is not None else divide(chosen, sizes, shards_per_task, values, keys)
    return {
        "partitions": [[shards[index] for index in task] for task in tasks],
        "limit": -1 if limit is None else limit,
        "keys": None if keys is None else [keys[task[0]] for task in tasks],
    }


def _describe_shards(folder: str, version: str | None) -> DatasetInfo:
    """Describe a version as a daemon does, as far as streams need it."""
    _, manifest = _load(folder, version and version.partition("-")[0])
    shards = tuple(
        Endpoint(b"", (), ordinal=each.ordinal, nbytes=each.nbytes, sha256=each.sha256)
        for each in manifest.shards
    )
    return DatasetInfo(
        folder,
        manifest.rows,
        manifest.nbytes,
        manifest.schema,
        "published dataset",
        str(manifest.version),
        shards,
        shards_total=len(shards),
    )


def _stream_start(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    del values
    return start_stream(partial(_describe_shards, folder), options)


def _stream_latest(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    return find_latest(partial(_describe_shards, folder), values, options)


def _stream_plan(folder: str, values: Mapping[str, Any], options: SparkOptions) -> dict[str, Any]:
    info, ordinals = find_batch(partial(_describe_shards, folder), values)
    return _plan_shards(folder, info.version, ordinals, values, options)


_OPERATIONS: dict[str, Callable[[str, Mapping[str, Any], SparkOptions], dict[str, Any]]] = {
    "describe": _describe,
    "release": _release,
    "push": _push,
    "aggregate": _aggregate,
    "estimate": _estimate,
    "plan": _plan,
    "stream_start": _stream_start,
    "stream_latest": _stream_latest,
    "stream_plan": _stream_plan,
}
