"""The row operations of a publishing job: which rows a dataset contains, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql import types as st

from ...errors import UsageError
from .job import PublishJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_HASH_BUCKETS = 1_000_000
"""The resolution of a split: shares are multiples of a millionth."""
_UNHASHABLE_TYPES = ("map<", "variant", "geometry", "geography")


def select_rows(spark: SparkSession, frame: DataFrame, job: PublishJob) -> DataFrame:
    """Return the rows and columns that the job's filter, select and casts describe.

    Raises
    ------
    UsageError
        If a cast names a column that does not exist.
    """
    if job.filter:
        frame = frame.where(job.filter)
    if job.select:
        frame = spark.sql(f"SELECT {job.select} FROM {{frame}}", frame=frame)
    for name, type_name in job.cast.items():
        (column,) = _columns(frame, [name])
        frame = frame.withColumn(name, column.cast(type_name))
    return frame


def split_rows(frame: DataFrame, job: PublishJob) -> Iterator[tuple[str, DataFrame]]:
    """Yield the name and the rows of each dataset: one per share, or a single one.

    A hash of the `split_by` columns decides on the share of a row, so equal rows never fall into
    different shares, and each run of the job splits in the same way.
    """
    if not job.split:
        yield job.name, frame
        return
    keys = _columns(frame, job.split_by) if job.split_by else _hashable_columns(frame)
    bucket = sf.pmod(sf.xxhash64(sf.lit("split"), *keys), sf.lit(_HASH_BUCKETS))
    for share, (begin, end) in _bucket_ranges(job.split).items():
        yield f"{job.name}-{share}", frame.where((bucket >= begin) & (bucket < end))


def _bucket_ranges(shares: Mapping[str, float]) -> dict[str, tuple[int, int]]:
    """Return the half-open range of hash buckets of each share."""
    ranges: dict[str, tuple[int, int]] = {}
    begin = 0.0
    for share, fraction in shares.items():
        end = begin + fraction
        ranges[share] = round(begin * _HASH_BUCKETS), round(end * _HASH_BUCKETS)
        begin = end
    return ranges


def order_rows(frame: DataFrame, job: PublishJob) -> DataFrame:
    """Return the rows sorted or shuffled, in as many partitions as the job asks for."""
    keys = _sort_keys(frame, job)
    if job.repartition is None:
        return frame.orderBy(*keys) if keys else frame
    if not keys:
        return frame.repartition(job.repartition)
    return frame.repartitionByRange(job.repartition, *keys).sortWithinPartitions(*keys)


def _sort_keys(frame: DataFrame, job: PublishJob) -> list[Column]:
    if job.sort:
        columns = _columns(frame, [name.removeprefix("-") for name in job.sort])
        return [
            column.desc() if name.startswith("-") else column.asc()
            for name, column in zip(job.sort, columns, strict=True)
        ]
    if job.shuffle_seed is not None:
        return [sf.xxhash64(sf.lit(job.shuffle_seed), *_hashable_columns(frame))]
    return []


def _columns(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"no column {name!r}; the columns are {', '.join(frame.columns)}")
    return [frame[f"`{name}`"] for name in names]


def _hashable_columns(frame: DataFrame) -> list[Column]:
    names = [field.name for field in frame.schema.fields if _is_hashable(field.dataType)]
    if not names:
        raise UsageError(
            "Spark cannot hash any of the columns; select other columns, or do not split or shuffle"
        )
    return _columns(frame, names)


def _is_hashable(data_type: st.DataType) -> bool:
    name = data_type.simpleString()
    return not any(unhashable in name for unhashable in _UNHASHABLE_TYPES)
