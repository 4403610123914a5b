"""Streaming reads: each row of each new version of a published dataset, once.

An offset counts the shards that the query has read, and identifies them by a digest. A version
that appends begins with the same shards, so the query reads only those that follow. A version
that overwrites has other shards, and the query reads all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from ...client.rpc.info import DatasetInfo
from ...errors import UsageError, remote_error
from ..options import Options
from ..portable import Portable
from ..types import arrow_schema, check_readable
from .read_task import plan_read, read_batches, shard_ordinals
from .reader import ReadPartition
from .remote_dataset import RemoteDataset

Offset = dict[str, Any]
"""The keys ``shards`` (count), ``digest`` (of these shards, hex) and ``version``.

Checkpoints contain offsets as JSON.
"""
_INITIAL_OFFSET: Offset = {"shards": 0, "digest": "", "version": ""}


class DatasetStreamReader(Portable, ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds new versions on the driver, and reads their new shards in the tasks.

    Parameters
    ----------
    options : Options
        The options of ``spark.readStream``.
    schema : pyspark.sql.types.StructType
        The columns to read.

    Raises
    ------
    UsageError
        If the options contain a limit, a filter or a version, or one has a wrong value.
    """

    def __init__(self, options: Options, schema: st.StructType) -> None:
        check_readable(schema)
        for name in ("limit", "filter", "version"):
            if options.text(name):
                raise UsageError(f"a streaming read does not support the option {name!r}")
        self._dataset = RemoteDataset.from_options(options)
        self._schema = arrow_schema(schema)
        self._shards_per_task = options.count("shards_per_partition") or 1
        self._final_offset: Offset | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the current version as the last one that this query reads."""
        self._final_offset = end_offset(self._dataset.info())

    def initialOffset(self) -> Offset:
        """Return the offset before the first row."""
        return _INITIAL_OFFSET

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Return the offset after the last row of the current version."""
        del start, limit  # a micro-batch reads everything that is new
        return self._final_offset or end_offset(self._dataset.info())

    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Return partitions for the shards between two offsets.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the dataset was overwritten and the daemon no
            longer has the version of `end`.
        """
        if start["digest"] == end["digest"] and start["shards"] == end["shards"]:
            return []
        info = self._dataset.info()
        if not has_prefix(info, end):
            info = self._dataset.info(end["version"])
        if not has_prefix(info, end):
            raise remote_error(
                "FAILED_PRECONDITION",
                f"dataset {info.name!r} was overwritten before the query read its version "
                f"{end['version']}; start the query again with a new checkpoint",
                stream=info.name,
            )
        shards = shard_ordinals(info)[: end["shards"]]
        if has_prefix(info, start):
            shards = shards[start["shards"] :]
        return [
            ReadPartition(task) for task in plan_read(info, shards, self._shards_per_task, None)
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        return read_batches(self._dataset, partition.value, None, self._schema)


def end_offset(info: DatasetInfo) -> Offset:
    """Return the offset after the last row of a version."""
    shards = len(info.endpoints)
    return {"shards": shards, "digest": _shards_digest(info, shards), "version": info.version}


def has_prefix(info: DatasetInfo, offset: Offset) -> bool:
    """Return whether a version begins with the shards that an offset covers."""
    shards: int = offset["shards"]
    if not shards:
        return True
    return shards <= len(info.endpoints) and _shards_digest(info, shards) == offset["digest"]


def _shards_digest(info: DatasetInfo, shards: int) -> str:
    """Return a digest of the first `shards` shards of a version, or an empty string for 0.

    Raises
    ------
    UsageError
        If the daemon does not report the checksums of the shards: the dataset is not published.
    """
    if not shards:
        return ""
    digest = hashlib.sha256()
    for endpoint in info.endpoints[:shards]:
        if not endpoint.sha256:
            raise UsageError(
                f"dataset {info.name!r} is not a published dataset; a streaming read needs versions"
            )
        digest.update(endpoint.sha256.encode())
    return digest.hexdigest()
