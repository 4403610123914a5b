"""A configured Spark session: Java, the interpreter of the Python workers, the data source."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from ...errors import ConfigError, MissingExtraError
from .java import configure_java
from .jvm_reader import choose_reader
from .launch import start_session
from .settings import DEFAULTS, FILTER_PUSHDOWN
from .workers import check_workers, use_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORKER_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"


def require_pyspark() -> None:
    """Check that PySpark and pandas are installed. PySpark needs pandas for Arrow data.

    Raises
    ------
    MissingExtraError
        If one of them is not installed.
    """
    for package in ("pyspark", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(
                f"the Spark pipeline needs {package}: pip install 'splitarrow[spark]'"
            ) from None


def prepare_environment(master: str | None = None) -> None:
    """Set the environment variables that Spark reads at startup. Variables already set stay.

    Parameters
    ----------
    master : str, optional
        The master of the session. Workers on this machine run the interpreter of this process.
        The workers of a cluster run the interpreter that ``PYSPARK_PYTHON`` names.

    Raises
    ------
    MissingExtraError
        If PySpark or Java is not installed.
    """
    require_pyspark()
    if _GATEWAY_PORT in os.environ:
        return  # spark-submit has already started Java
    configure_java()
    os.environ.setdefault(_DRIVER_PYTHON, sys.executable)
    if master is None or master.startswith("local"):
        os.environ.setdefault(_WORKER_PYTHON, sys.executable)


def session(
    name: str = "splitarrow",
    *,
    master: str | None = None,
    settings: Mapping[str, Any] | None = None,
    log: IO[bytes] | None = None,
    jvm_reader: bool | None = None,
) -> SparkSession:
    """Return a Spark session in which the data source ``splitarrow`` is registered.

    Parameters
    ----------
    name : str
        The name of the Spark application.
    master : str, optional
        The Spark master, such as ``local[4]`` or ``spark://host:7077``. The default is the master
        of ``spark-submit`` or of Spark's configuration, or else all cores of this machine.
    settings : mapping, optional
        Further Spark settings, by name.
    log : binary file, optional
        The file that receives the output of Java, Spark and the workers on this machine. By
        default they share the standard output and error of this process.
    jvm_reader : bool, optional
        Whether the reader in the JVM reads; see `register`.

    Returns
    -------
    pyspark.sql.SparkSession
        The running session, if there is one, or else a new one. The caller stops it.

    Raises
    ------
    MissingExtraError
        If PySpark or Java is not installed.
    ConfigError
        If Spark does not start, or for the reasons of `register`.
    """
    prepare_environment(master or os.environ.get("MASTER"))
    from pyspark.sql import SparkSession

    exists = SparkSession.getActiveSession() is not None
    builder: Any = SparkSession.builder
    builder = builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**DEFAULTS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = start_session(builder, log)
    try:
        register(spark, jvm_reader=jvm_reader)
    except ConfigError:
        if not exists:
            spark.stop()
        raise
    return spark


def register(spark: SparkSession, *, jvm_reader: bool | None = None) -> None:
    """Register the data source with a running session, and load its reader in the JVM.

    PySpark finds the data source by itself if splitarrow is on the driver's import path, but then
    runs ``python3`` on the executors, whatever ``spark.pyspark.python`` says. After this function,
    Python workers run the interpreter that this setting names. On a cluster, a small job checks
    once that they have the packages; it takes one task per core and waits for the first executor.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    jvm_reader : bool, optional
        Whether the reader in the JVM reads. By default it does if the session can load it; if
        not, the data source in Python reads, and a line on standard error gives the reason, once.
        True makes that an error. False selects the data source in Python.

    Raises
    ------
    ConfigError
        If the interpreter on an executor lacks a package, or has another version of splitarrow. If
        `jvm_reader` is true and the session cannot load that reader.
    """
    from ..datasource import SplitArrowDataSource

    if hasattr(spark, "_jsparkSession"):  # with Spark Connect, the server chooses the interpreter
        use_worker_python(spark)
        check_workers(spark)
    spark.dataSource.register(SplitArrowDataSource)
    spark.conf.set(FILTER_PUSHDOWN, "true")
    choose_reader(spark, jvm_reader)
