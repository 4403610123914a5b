"""The size of the record batches that Spark passes to Python.

Spark can limit a batch by bytes. It then computes the size of the batch again after each row,
which takes three quarters of the time to write narrow rows. `session` therefore limits batches by
rows alone, as Spark 3 did, and to few rows, because nothing is known about them. A job that can
sample its rows does better: it raises the row limit for narrow rows, and restores a byte limit
for wide ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import types as st

from .spark_session import BATCH_BYTES, BATCH_ROWS, DEFAULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE_ROWS = 100
_MAX_NARROW_BYTES = 4096
_LIMIT_FOR_NARROW_ROWS = (BATCH_ROWS, "4096")
_LIMIT_FOR_WIDE_ROWS = (BATCH_BYTES, str(32 << 20))


@contextmanager
def batch_limits(spark: SparkSession, frame: DataFrame) -> Generator[None]:
    """Choose the limit of the batches that Spark passes to Python while the context lasts.

    Limits that differ from those of `session` are the user's, and stay.

    `frame`: Unless all columns are narrow by type, the first rows are read as a sample.
    """
    if any(spark.conf.get(key, None) != DEFAULTS[key] for key in (BATCH_ROWS, BATCH_BYTES)):
        yield
        return
    narrow = _mean_row_bytes(frame) <= _MAX_NARROW_BYTES
    key, value = _LIMIT_FOR_NARROW_ROWS if narrow else _LIMIT_FOR_WIDE_ROWS
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, DEFAULTS[key])


def _mean_row_bytes(frame: DataFrame) -> float:
    """Return the mean size of a row in bytes, or infinity if the sample cannot be read."""
    if all(_has_narrow_type(field) for field in frame.schema.fields):
        return 0
    try:
        sample: Any = frame.limit(_SAMPLE_ROWS).toArrow()
    except (PySparkException, Py4JError):  # the job itself will raise the same error
        return float("inf")
    except pa.ArrowException:  # toArrow cannot convert a VARIANT that is null
        return float("inf")
    return sample.nbytes / max(1, sample.num_rows)


def _has_narrow_type(field: st.StructField) -> bool:
    narrow = st.NumericType | st.BooleanType | st.DatetimeType | st.NullType
    return isinstance(field.dataType, narrow)
