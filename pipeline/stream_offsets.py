"""Offsets of streaming queries: how many shards of a dataset a query has read.

An offset covers the first shards of a version. It continues in each version that begins with the
same shards, and a version that does not is new in all of its shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from ..client.rpc.info import DatasetInfo, Endpoint
from ..errors import RemoteError, UsageError, remote_error
from .reader import shard_ordinals

Offset = dict[str, Any]
"""The keys ``shards`` (count), ``digest`` (of these shards, hex) and ``version``.

The key ``partial`` is true if the version has more shards. Checkpoints contain offsets as JSON.
"""
INITIAL_OFFSET: Offset = {"shards": 0, "digest": "", "version": ""}
"""The offset before the first row."""

Describe = Callable[[str | None], DatasetInfo]
"""A function that describes a version of a dataset, or the current one for None."""


def end_offset(info: DatasetInfo, shards: int | None = None) -> Offset:
    """Return the offset after some shards of a version, by default after the last."""
    total = len(_published_shards(info))
    count = total if shards is None else shards
    offset: Offset = {
        "shards": count,
        "digest": _shards_digest(info, count),
        "version": info.version,
    }
    return offset if count == total else {**offset, "partial": True}


def has_prefix(info: DatasetInfo, offset: Offset) -> bool:
    """Return whether a version begins with the shards that an offset covers."""
    shards: int = offset["shards"]
    if not shards:
        return True
    return (
        shards <= len(_published_shards(info)) and _shards_digest(info, shards) == offset["digest"]
    )


def _published_shards(info: DatasetInfo) -> Sequence[Endpoint]:
    """Return the shards of a version. A daemon describes a version without any as one endpoint."""
    return () if info.shards_total == 0 else info.endpoints


def _shards_digest(info: DatasetInfo, shards: int) -> str:
    """Return a digest of the first `shards` shards of a version, or an empty string for 0."""
    if not shards:
        return ""
    digest = hashlib.sha256()
    for endpoint in _published_shards(info)[:shards]:
        if not endpoint.sha256:
            raise UsageError(
                f"dataset {info.name!r} is not a published dataset; a streaming read needs versions"
            )
        digest.update(endpoint.sha256.encode())
    return digest.hexdigest()


def next_offset(
    describe: Describe,
    start: Offset,
    last: Offset | None,
    max_shards: int | None,
    max_bytes: int | None,
) -> Offset:
    """Return the end of the next micro-batch; `start` itself if there is nothing new.

    It has at most `max_shards` new shards and `max_bytes` bytes, but at least one shard. No offset
    is after `last`. A version that has been read in part is read to its end before a version that
    replaces it.

    Raises `RemoteError` with the code FAILED_PRECONDITION if the server no longer has a version
    that must be read.
    """
    info = describe(None)
    if not has_prefix(info, start) and start.get("partial"):
        info, last = _find_version(describe, info, start), None
    elif last is not None:
        info = _find_version(describe, info, last)
    begin = start["shards"] if has_prefix(info, start) else 0
    end = len(_published_shards(info)) if last is None else last["shards"]
    if begin >= end and begin == start["shards"]:
        return start
    if max_shards is not None:
        end = min(end, begin + max_shards)
    if max_bytes is not None:
        sizes = [shard.nbytes for shard in _published_shards(info)[begin:end]]
        end = begin + _count_fitting(sizes, max_bytes)
    if last is not None and end == last["shards"]:
        return last
    return end_offset(info, end)


def _count_fitting(sizes: list[int | None], max_bytes: int) -> int:
    """Return how many of the first sizes have this sum, at least one. An unknown size fits alone.

    Examples
    --------
    >>> _count_fitting([4, 4, 4], 9), _count_fitting([4, 4], 1), _count_fitting([None, 4], 9)
    (2, 1, 1)
    """
    total = count = 0
    for size in sizes:
        total += max_bytes if size is None else size
        if count and total > max_bytes:
            break
        count += 1
    return count


def find_new_shards(
    describe: Describe, start: Offset, end: Offset
) -> tuple[DatasetInfo, list[int]]:
    """Return the version that contains the shards between two offsets, and their ordinals.

    Raises `RemoteError` with the code FAILED_PRECONDITION if the dataset was overwritten and the
    server no longer has the version of `end`.
    """
    info = _find_version(describe, describe(None), end)
    shards = shard_ordinals(info)[: end["shards"]]
    return info, shards[start["shards"] :] if has_prefix(info, start) else shards


def _find_version(describe: Describe, current: DatasetInfo, offset: Offset) -> DatasetInfo:
    """Return a version that begins with the shards of an offset: the current one, or its own."""
    if has_prefix(current, offset):
        return current
    try:
        info = describe(offset["version"])
    except RemoteError as error:
        if error.code != "FAILED_PRECONDITION":
            raise
        info = current
    if has_prefix(info, offset):
        return info
    raise remote_error(
        "FAILED_PRECONDITION",
        f"dataset {current.name!r} was overwritten before the query read its version "
        f"{offset['version']}; start the query again with a new checkpoint",
        stream=current.name,
    )
