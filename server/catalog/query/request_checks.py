"""Checks of the version and the shard in a request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ....errors import InvalidRequestError, remote_error
from ....protocol.request import Request

_T = TypeVar("_T")


def hash_version(*identities: Iterable[int | str]) -> str:
    """Return an opaque version text for the state of some files.

    Parameters
    ----------
    *identities : iterable of int or str
        The values that identify the state of each file, such as its inode and modification time.

    Examples
    --------
    >>> hash_version((1, 2), (3,)) == hash_version((1, 2), (4,))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for identity in identities:
        digest.update(repr(tuple(identity)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_version(request: Request, version: str) -> None:
    """Check that a request is for a version, or for any version.

    Raises
    ------
    RemoteError
        With the code FAILED_PRECONDITION, if it is for another version.
    """
    if request.version not in (None, version):
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {request.dataset!r} has changed, or never had the version "
            f"{request.version}: its version is {version}; request a new ticket",
            stream=request.dataset,
        )


def check_batches(request: Request, count: int) -> None:
    """Check that the data has the record batches that a request is for.

    Raises
    ------
    InvalidRequestError
        If it does not.
    """
    if request.batches is not None and request.batches[1] > count:
        first, end = request.batches
        raise InvalidRequestError(
            f"there are no record batches {first}:{end}; there are {count}, counted from 0",
            stream=request.dataset,
        )


def select_shards(request: Request, shards: Sequence[_T]) -> Sequence[_T]:
    """Return the shards that a request is for: one of them, or all.

    Raises
    ------
    InvalidRequestError
        If the shard does not exist.
    """
    if request.shard is None:
        return shards
    if request.shard >= len(shards):
        raise InvalidRequestError(
            f"there is no shard {request.shard}; the dataset has {len(shards)}",
            stream=request.dataset,
        )
    return shards[request.shard : request.shard + 1]
