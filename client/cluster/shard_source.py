"""Shards to publish: files, Arrow data, or functions that return either."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pyarrow as pa

from ...errors import DatasetError, UsageError
from ..rpc.shard_upload import open_shard

ShardSource = Any
"""The path of an Arrow IPC file, or a function that returns a path, Arrow data, or a context
manager of one of them."""


@contextmanager
def open_source(source: ShardSource) -> Generator[Any]:
    """Yield the path or the Arrow data of a shard while the context lasts."""
    found: Any = source() if callable(source) else source
    # Paths and pyarrow's readers are also context managers, but are used directly.
    if isinstance(found, (str, os.PathLike)) or hasattr(found, "__arrow_c_stream__"):
        yield found
    elif isinstance(found, AbstractContextManager):
        with cast("AbstractContextManager[Any]", found) as data:
            yield data
    else:
        yield found


def read_source_schema(source: ShardSource) -> pa.Schema:
    """Return the schema of a shard."""
    with open_source(source) as data, open_shard(data) as shard:
        return shard.schema


def hash_files(name: str, shards: Sequence[ShardSource]) -> str:
    """Return the name of a job that depends on the dataset and the contents of the files only.

    Raises
    ------
    UsageError
        If a shard is not a file.
    DatasetError
        If a file cannot be read.
    """
    digest = hashlib.sha256(name.encode())
    for shard in shards:
        if not isinstance(shard, (str, os.PathLike)):
            raise UsageError("only files have a default job for mode='append'; pass job=")
        path = os.fspath(cast("str | os.PathLike[str]", shard))
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise DatasetError(f"cannot read the shard {path}: {error.strerror}") from None
    return f"files-{digest.hexdigest()[:32]}"
