"""A Spark session that works as it comes: Java, the workers' interpreter, the data source."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from ..errors import MissingExtraError
from .java import provide_java
from .starting import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""The setting without which Spark keeps filters to itself."""
_WORKER = "PYSPARK_PYTHON"
_GATEWAY = "PYSPARK_GATEWAY_PORT"
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The setting of how many rows Spark hands to Python at a time."""
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""The setting of how many bytes, about; 2147483647 is no limit."""
DEFAULTS = {
    PUSHDOWN: "true",
    # With a limit of bytes, Spark sums up the batch after each row. Few rows are a limit, too:
    # two tasks at a time can have rows of half a megabyte in the smallest Java.
    BATCH_ROWS: "512",
    BATCH_BYTES: "2147483647",
    # Sockets that do not go through TCP, between Spark and Python.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
}
"""What `session` sets, unless other settings are given."""


def require_pyspark() -> None:
    """Check that PySpark is there.

    Raises
    ------
    MissingExtraError
        If it is not, or what it needs for Arrow data is not.
    """
    for package in ("pyspark", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(
                f"the Spark pipeline needs {package}: pip install 'splitarrow[spark]'"
            ) from None


def prepare(master: str | None = None) -> None:
    """Set what Spark reads from the environment as it starts; what is set already stays.

    Parameters
    ----------
    master : str, optional
        The master that will be used. Workers on this machine run the interpreter of this
        process; those of a cluster have their own, which ``PYSPARK_PYTHON`` names.

    Raises
    ------
    MissingExtraError
        If PySpark or Java is missing.
    """
    require_pyspark()
    if _GATEWAY in os.environ:
        return  # spark-submit has started Java already
    provide_java()
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master is None or master.startswith("local"):
        os.environ.setdefault(_WORKER, sys.executable)


def session(
    name: str = "splitarrow",
    *,
    master: str | None = None,
    settings: Mapping[str, Any] | None = None,
    log: IO[bytes] | None = None,
) -> SparkSession:
    """Return a Spark session that knows the data source ``splitarrow``.

    Parameters
    ----------
    name : str
        What the application is called.
    master : str, optional
        Where it runs, as in ``local[4]`` or ``spark://host:7077``; by default what
        ``spark-submit`` or the configuration of Spark says, else all cores of this machine.
    settings : mapping, optional
        Further settings of Spark, by name.
    log : binary file, optional
        Where Java, Spark and the workers of this machine print; by default where this process
        does.

    Returns
    -------
    pyspark.sql.SparkSession
        The one that runs already, if there is one. Whoever calls stops it.

    Raises
    ------
    MissingExtraError
        If PySpark or Java is missing.
    ConfigError
        If Spark does not start.
    """
    prepare(master or os.environ.get("MASTER"))
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**DEFAULTS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = started(builder, log)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the data source known to a session, and let Spark push filters down to it.

    PySpark finds the source by itself where splitarrow is installed on the driver's path; this
    also serves where it is not.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A session that runs.
    """
    from .datasource import SplitArrowDataSource

    spark.dataSource.register(SplitArrowDataSource)
    spark.conf.set(PUSHDOWN, "true")
