"""Streaming reads: the rows of each new version of a dataset, once.

An offset says how many shards of the dataset have been read, and which. A version that appends
has those in front of the new ones; one that overwrites has others, and is read whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from ..client.described import DatasetInfo
from ..errors import UsageError, remote_error
from .options import Options
from .reading import batches
from .source import PortionPartition, ordinals, origin_of, portions
from .types import arrow_schema, check_readable

_START: dict[str, Any] = {"shards": 0, "digest": "", "version": ""}


class VersionStream(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds new versions, and reads what is new in them.

    Parameters
    ----------
    options : Options
        What the user said.
    schema : pyspark.sql.types.StructType
        The columns to read.
    """

    def __init__(self, options: Options, schema: st.StructType) -> None:
        check_readable(schema)
        if options.text("limit") or options.text("filter") or options.text("version"):
            raise UsageError("a stream has no limit, filter or version")
        self._origin = origin_of(options)
        self._target = arrow_schema(schema)
        self._per_partition = options.count("shards_per_partition", 1) or 1
        self._last: dict[str, Any] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """Settle which version is the last to be read."""
        self._last = offset_of(self._origin.info())

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset in front of all rows."""
        return _START

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return the offset behind all rows that there are now."""
        del start, limit  # all that is new is read at once
        return self._last or offset_of(self._origin.info())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        """Return what is between two offsets, in portions.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION, if the version of `end` is gone, and was
            overwritten.
        """
        if start["digest"] == end["digest"] and start["shards"] == end["shards"]:
            return []
        info = self._origin.info()
        if not begins_with(info, end):
            info = self._origin.info(end["version"])
        if not begins_with(info, end):
            raise remote_error(
                "FAILED_PRECONDITION",
                f"the dataset {info.name!r} was overwritten before its version {end['version']} "
                "was read; start the query anew, with a new checkpoint",
                stream=info.name,
            )
        shards = ordinals(info)[: end["shards"]]
        if begins_with(info, start):
            shards = shards[start["shards"] :]
        return [
            PortionPartition(portion)
            for portion in portions(info, shards, self._per_partition, None)
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion."""
        return batches(self._origin, partition.value, None, self._target)


def offset_of(info: DatasetInfo) -> dict[str, Any]:
    """Return the offset behind all rows of a version."""
    shards = len(info.endpoints)
    return {"shards": shards, "digest": _digest(info, shards), "version": info.version}


def begins_with(info: DatasetInfo, offset: dict[str, Any]) -> bool:
    """Tell whether the first shards of a version are those in front of an offset."""
    shards: int = offset["shards"]
    if not shards:
        return True
    return shards <= len(info.endpoints) and _digest(info, shards) == offset["digest"]


def _digest(info: DatasetInfo, shards: int) -> str:
    """Return what identifies the first shards of a version; nothing for none.

    Raises
    ------
    UsageError
        If the daemon does not say which shards they are: it was not published.
    """
    if not shards:
        return ""
    digest = hashlib.sha256()
    for endpoint in info.endpoints[:shards]:
        if not endpoint.sha256:
            raise UsageError(f"{info.name!r} is no published dataset: it has no versions to follow")
        digest.update(endpoint.sha256.encode())
    return digest.hexdigest()
