"""Manifests: the shards that make up one version of a published dataset.

These classes hold a manifest in memory. `manifest_json` writes it as JSON and reads it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ..errors import InvalidDataError
from .manifest_fields import (
    check_count,
    check_path,
    check_sha256,
    check_text,
    check_texts,
    check_unique,
    show,
)

MAX_BOUND_CHARACTERS = 64
"""The length of the longest text that may be a minimum or maximum, in characters."""
MAX_EXACT_INTEGER = (1 << 53) - 1
"""The largest integer that JSON readers keep exactly. Larger ones are written as text."""
UNSET = -1
"""The ordinal of a shard that gets its position in the list, and `Manifest.shards_total` of a
dataset that has no shards but those listed."""

RangeValue = int | float | str | None
"""A minimum or maximum, as JSON carries it. None if it is unknown."""


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """The range of the values of one column in one shard.

    `column_ranges` computes it. Integers and floats are numbers. Integers that JSON readers may
    round, dates, timestamps and decimals are text.

    Raises
    ------
    InvalidDataError
        If a field has an impossible value. The error names the field.
    """

    minimum: RangeValue
    """The smallest value. None if it is unknown."""
    maximum: RangeValue
    """The largest value. None if it is unknown."""
    nulls: int
    """The number of null values."""
    box: tuple[float, float, float, float] | None = None
    """xmin, ymin, xmax, ymax of a geospatial column. None if there is none, or it is unknown."""

    def __post_init__(self) -> None:
        """Check the fields, and turn integers that JSON readers may round into text."""
        object.__setattr__(self, "minimum", _check_bound(self.minimum, "minimum"))
        object.__setattr__(self, "maximum", _check_bound(self.maximum, "maximum"))
        check_count(self.nulls, "nulls")
        if self.box is not None:
            object.__setattr__(self, "box", _check_box(self.box))


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """The entry of one shard in a manifest. A shard is an Arrow IPC file.

    Raises
    ------
    InvalidDataError
        If a field has an impossible value. The error names the field.
    """

    path: str
    """The path of the file relative to the dataset. ``/`` separates its components."""
    rows: int
    """The number of rows."""
    nbytes: int
    """The length of the file in bytes."""
    sha256: str
    """The SHA-256 of the file in hexadecimal digits."""
    columns: Mapping[str, ColumnRange] = field(default_factory=dict[str, ColumnRange])
    """The ranges of the columns by column name."""
    ordinal: int = UNSET
    """The position in the whole dataset. `UNSET` means the position in `Manifest.shards`."""

    def __post_init__(self) -> None:
        """Check the fields."""
        check_path(self.path)
        check_count(self.rows, "rows")
        check_count(self.nbytes, "bytes")
        check_sha256(self.sha256)
        if self.ordinal != UNSET:
            check_count(self.ordinal, "ordinal")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a published dataset. It is valid once built.

    Raises
    ------
    InvalidDataError
        If a field has an impossible value. The error names the field.
    """

    version: int
    """The number of the version. The first is 1."""
    created: datetime
    """When the version was committed, in UTC."""
    job: str
    """The job that committed the version. A job commits at most one."""
    schema: pa.Schema
    """The schema of all shards."""
    shards: tuple[ShardEntry, ...] = ()
    """The shards on this server, sorted by ordinal."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further information from the publisher."""
    snapshot: str = ""
    """The identifier that all servers with shards of this publication share. Default: the job."""
    shards_total: int = UNSET
    """The number of shards on all servers. `UNSET` means the number of `shards`."""

    def __post_init__(self) -> None:
        """Check the fields, sort the shards, and fill in the defaults."""
        if check_count(self.version, "version") < 1:
            raise InvalidDataError("version is 0; the first version is 1")
        if self.created.utcoffset() != timedelta():
            raise InvalidDataError(f"created is {self.created.isoformat()}, which is not in UTC")
        if not check_text(self.job, "job"):
            raise InvalidDataError("job is empty")
        check_texts(self.properties, "properties")
        shards = _sort_shards(self.shards)
        object.__setattr__(self, "shards", shards)
        if not check_text(self.snapshot, "snapshot"):
            object.__setattr__(self, "snapshot", self.job)
        if self.shards_total == UNSET:
            object.__setattr__(self, "shards_total", len(shards))
        least = max(len(shards), shards[-1].ordinal + 1 if shards else 0)
        if check_count(self.shards_total, "shards_total") < least:
            raise InvalidDataError(
                f"shards_total is {self.shards_total}, but the largest ordinal is {least - 1}"
            )

    @property
    def rows(self) -> int:
        """The number of rows in the shards on this server."""
        return sum(shard.rows for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """The length of the shards on this server in bytes."""
        return sum(shard.nbytes for shard in self.shards)


def _sort_shards(shards: tuple[ShardEntry, ...]) -> tuple[ShardEntry, ...]:
    numbered = [
        replace(shard, ordinal=index) if shard.ordinal == UNSET else shard
        for index, shard in enumerate(shards)
    ]
    numbered.sort(key=lambda shard: shard.ordinal)
    check_unique((shard.ordinal for shard in numbered), "ordinal")
    check_unique((shard.path for shard in numbered), "path")
    return tuple(numbered)


def _check_bound(value: Any, name: str) -> RangeValue:
    if isinstance(value, bool) or not isinstance(value, int | float | str | None):
        raise InvalidDataError(f"{name} is {show(value)}; expected a number or a string")
    if isinstance(value, int):
        return value if abs(value) <= MAX_EXACT_INTEGER else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidDataError(f"{name} is {value}; expected a finite number")
    if isinstance(value, str) and len(check_text(value, name)) > MAX_BOUND_CHARACTERS:
        raise InvalidDataError(
            f"{name} has {len(value)} characters; at most {MAX_BOUND_CHARACTERS} are allowed"
        )
    return value


def _check_box(value: Any) -> tuple[float, float, float, float]:
    try:
        xmin, ymin, xmax, ymax = (_check_side(side) for side in value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidDataError(f"box is {show(value)}; expected four finite numbers") from None
    return xmin, ymin, xmax, ymax


def _check_side(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)
