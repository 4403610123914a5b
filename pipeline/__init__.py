"""PySpark: a sink, a source and a job that publishes datasets. Needs the extra ``spark``.

::

    from splitarrow import pipeline

    spark = pipeline.session()
    df.write.format("splitarrow").option("path", "/data/trips").mode("append").save()
    spark.read.format("splitarrow").option("uri", "grpc://host").option("dataset", "trips").load()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .java import Java, find_java
from .session import prepare, register, require_pyspark, session

if TYPE_CHECKING:
    from .dictionaries import dictionary_columns
    from .filters import filter_option

__all__ = [
    "Java",
    "dictionary_columns",
    "filter_option",
    "find_java",
    "prepare",
    "register",
    "session",
]

_PLACES = {
    "dictionary_columns": ".dictionaries",
    "filter_option": ".filters",
}


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is asked for."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_pyspark()
    return getattr(import_module(place, __name__), name)
