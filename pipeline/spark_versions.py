"""What the versions of PySpark from 3.5 on have, and what replaces it in those that lack it."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import types as st
from pyspark.sql.pandas import types as pandas_types

from ..errors import UsageError

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

try:
    from pyspark.sql.datasource import WriterCommitMessage
except ImportError:  # Spark 3.5
    WriterCommitMessage = object

VERSION = pyspark.__version__
"""The version of PySpark."""
HAS_PYTHON_SOURCES = WriterCommitMessage is not object
"""Whether Spark can have data sources in Python: from 4.0 on."""

TIME_ZONE = "UTC"
"""The time zone of the timestamps that Spark and Python exchange."""


class Absent:
    """Replaces a type that this version lacks. It has no instances."""


_types: Any = st
VariantType: Any = getattr(_types, "VariantType", Absent)
"""The type of VARIANT values: from 4.0 on."""
TimeType: Any = getattr(_types, "TimeType", Absent)
"""The type of times of day: from 4.1 on."""
GeometryType: Any = getattr(_types, "GeometryType", Absent)
"""The type of geometries: from 4.1 on."""
GeographyType: Any = getattr(_types, "GeographyType", Absent)
"""The type of geographies: from 4.1 on."""
CalendarIntervalType: Any = getattr(_types, "CalendarIntervalType", Absent)
"""The type of intervals of months, days and microseconds: from 4.0 on."""
DATE_AND_TIME_TYPES: tuple[Any, ...] = (
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
    TimeType,
)
"""The types of dates, times and timestamps."""


def _is_absent(arrow_type: Any) -> bool:
    del arrow_type
    return False


_pandas_types: Any = pandas_types
is_variant: Any = getattr(_pandas_types, "is_variant", _is_absent)
"""Return whether a struct of Arrow is Spark's form of VARIANT."""
is_geometry: Any = getattr(_pandas_types, "is_geometry", _is_absent)
"""Return whether a struct of Arrow is Spark's form of a geometry."""
is_geography: Any = getattr(_pandas_types, "is_geography", _is_absent)
"""Return whether a struct of Arrow is Spark's form of a geography."""

_to_arrow_type: Any = pandas_types.to_arrow_type
_ZONE_ARGUMENTS = (
    {"timezone": TIME_ZONE} if "timezone" in signature(_to_arrow_type).parameters else {}
)


def to_arrow_type(data_type: st.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type, with timestamps in `TIME_ZONE`.

    Raises `PySparkException` if it has none.
    """
    return _to_arrow_type(data_type, **_ZONE_ARGUMENTS)


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, without a JVM in this process."""
    return not hasattr(spark, "_jsparkSession")


def find_condition(error: PySparkException) -> str:
    """Return the name of the condition of an error, or an empty string."""
    raised: Any = error
    get = getattr(raised, "getCondition", None) or raised.getErrorClass
    return get() or ""


def collect_batches(frame: DataFrame) -> list[pa.RecordBatch]:
    """Return the rows of a frame on the driver. `DataFrame.toArrow` exists from 4.0 on."""
    rows: Any = frame
    return rows.toArrow().to_batches() if hasattr(rows, "toArrow") else rows._collect_as_arrow()


def require_python_sources(purpose: str) -> None:
    """Raise `UsageError` if Spark cannot have data sources in Python."""
    if not HAS_PYTHON_SOURCES:
        raise UsageError(f"Spark {VERSION} has no data sources in Python; {purpose}")
