"""How many rows Spark hands to Python at a time.

Spark can limit the bytes of a record batch. It then asks for the size of the batch after each row,
which takes three quarters of the time that writing narrow rows takes. So batches are bounded by
their rows, as they were up to Spark 3: by few if nothing is known of them, by more if they are
found to be narrow; and by their bytes if they are found to be wide.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from .session import BATCH_BYTES, BATCH_ROWS, DEFAULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE_ROWS = 100
_WIDE_BYTES = 4096
_NARROW = (BATCH_ROWS, "4096")
_WIDE = (BATCH_BYTES, str(32 << 20))


@contextmanager
def batches_for(spark: SparkSession, frame: DataFrame) -> Generator[None]:
    """Bound the batches that are handed to Python within as rows like these ask for it.

    Settings that are not those of `session` were made by the user, and stay.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    frame : pyspark.sql.DataFrame
        Its first rows are looked at.
    """
    if any(spark.conf.get(key, None) != DEFAULTS[key] for key in (BATCH_ROWS, BATCH_BYTES)):
        yield
        return
    key, value = _NARROW if _row_bytes(frame) <= _WIDE_BYTES else _WIDE
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, DEFAULTS[key])


def _row_bytes(frame: DataFrame) -> float:
    """Return how many bytes a row has in the mean; infinity if that cannot be told."""
    if all(_is_narrow(found.dataType) for found in frame.schema.fields):
        return 0
    try:
        sample: Any = frame.limit(_SAMPLE_ROWS).toArrow()
    except (PySparkException, Py4JError):  # what is wrong shows again where it is read
        return float("inf")
    return sample.nbytes / max(1, sample.num_rows)


def _is_narrow(kind: Any) -> bool:
    from pyspark.sql import types as st

    return isinstance(kind, st.NumericType | st.BooleanType | st.DatetimeType | st.NullType)
