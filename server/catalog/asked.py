"""What a request says about the dataset as a whole: which version, and which shard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ...errors import InvalidRequestError, remote_error
from ...protocol.request import Request

_T = TypeVar("_T")


def version_text(*identities: Iterable[int | str]) -> str:
    """Return an opaque version for what identifies the state of some files.

    Examples
    --------
    >>> version_text((1, 2), (3,)) == version_text((1, 2), (4,))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for identity in identities:
        digest.update(repr(tuple(identity)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_version(request: Request, version: str) -> None:
    """Refuse a request for another version.

    Raises
    ------
    RemoteError
        With the code FAILED_PRECONDITION.
    """
    if request.version not in (None, version):
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the dataset {request.dataset!r} has changed: its version is {version}, "
            f"not {request.version}",
            stream=request.dataset,
        )


def asked_shards(request: Request, shards: Sequence[_T]) -> Sequence[_T]:
    """Return the shards that a request asks for: all, or one.

    Raises
    ------
    InvalidRequestError
        If there is no such shard.
    """
    if request.shard is None:
        return shards
    if request.shard >= len(shards):
        raise InvalidRequestError(
            f"there is no shard {request.shard}; there are {len(shards)}", stream=request.dataset
        )
    return shards[request.shard : request.shard + 1]
