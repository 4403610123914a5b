"""A configured Spark session: its settings, its launch, the Python workers, the data source.

The launch is repeated after a transient failure. A permanent one becomes an error of one line.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

from ..errors import ConfigError, MissingExtraError, install_hint
from .java import configure_java
from .jvm.reader import choose_reader, hide_sources
from .workers import check_workers, use_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FILTER_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Whether Spark offers filters to data sources that are written in Python."""
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The maximum number of rows in a record batch that Spark passes to Python."""
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
"""The approximate maximum size of such a record batch, in bytes."""
UNLIMITED_BYTES = "2147483647"
"""The value of `BATCH_BYTES` that disables the limit."""

DEFAULTS = {
    FILTER_PUSHDOWN: "true",
    # With a byte limit, Spark computes the size of the batch again after each row: three quarters
    # of the time to write narrow rows. A small row limit bounds the memory as well: two concurrent
    # tasks can process rows of half a megabyte in the smallest Java heap.
    BATCH_ROWS: "512",
    BATCH_BYTES: UNLIMITED_BYTES,
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.ui.showConsoleProgress": "false",
}
"""Setting names and values."""


_ATTEMPTS = 3
_STDOUT, _STDERR = 1, 2
_TAIL_BYTES = 4096


def start_session(builder: Any, log: IO[bytes] | None = None) -> SparkSession:
    """Return the session of a builder, and start Java first if none is running.

    `log` receives their output. Raises `ConfigError` with the cause if one of them does not start.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    from .spark_versions import find_condition

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _redirect_output(log):
                return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if find_condition(error) != "JAVA_GATEWAY_EXITED":
                raise
            _release_pipe(error)
            # PySpark forks to start Java. The fork fails if another thread is in a gRPC call.
            if attempt == _ATTEMPTS:
                cause = _last_line(log)
                raise ConfigError(f"Java does not start{cause and f': {cause}'}") from None
        except Py4JError as error:
            raise ConfigError(f"Spark does not start: {_java_message(error)}") from None
    raise AssertionError("unreachable")


def _release_pipe(error: Exception) -> None:
    """Free the frames of an error, one of which holds the pipe to Java that PySpark leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        error.with_traceback(None)


@contextmanager
def _redirect_output(log: IO[bytes] | None) -> Generator[None]:
    """Redirect the output of processes that start within the context to a file."""
    if log is None:
        yield
        return
    _flush()
    saved: dict[int, int] = {}
    for descriptor in (_STDOUT, _STDERR):
        with suppress(OSError):  # the parent process closed it before this process began
            saved[descriptor] = os.dup(descriptor)
    for descriptor in saved:
        os.dup2(log.fileno(), descriptor)
    try:
        yield
    finally:
        _flush()
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()


def _last_line(log: IO[bytes] | None) -> str:
    """Return the last non-empty line of the log, or an empty string."""
    if log is None:
        return ""
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _java_message(error: Exception) -> str:
    """Return the first line of a Java exception, without its stack trace."""
    raised = getattr(error, "java_exception", None)
    text = str(raised if raised is not None else error).strip()
    if "stopped SparkContext" in text:
        return "the context stopped at once; check that the master is reachable"
    return (text.splitlines() or ["Java gave no reason"])[0]


_WORKER_PYTHON = "PYSPARK_PYTHON"
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
_OLDEST_VERSION = (3, 5)
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"


def require_pyspark() -> None:
    """Check that PySpark and pandas are installed. PySpark needs pandas for Arrow data.

    Raises `MissingExtraError` if one of them is not installed, and `ConfigError` if the version of
    PySpark is too old, for splitarrow or for this Python.
    """
    for package in ("pyspark", "pandas"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingExtraError(
                f"the Spark pipeline needs {package}: {install_hint('spark')}"
            ) from None
    version: str = importlib.import_module("pyspark").__version__
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_VERSION:
        raise ConfigError(f"PySpark is {version}; splitarrow needs 3.5 or newer")
    if version.startswith("3.5.") and find_spec("distutils") is None:
        raise ConfigError(f"PySpark {version} needs Python 3.11, or the package setuptools")


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

    From version 4.1 on, PySpark finds the data source by itself if splitarrow is on the driver's
    import path, but then runs ``python3`` on the executors, whatever ``spark.pyspark.python`` says.
    After this function, Python workers run the interpreter that this setting names. On a cluster, a
    small job checks once that they have the packages; it takes one task per core and waits for the
    first executor.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session.
    jvm_reader : bool, optional
        Whether the reader in the JVM reads. By default it does if the session can load it; if
        not, the data source in Python reads, and a line on standard error gives the reason, once.
        True makes that an error. False selects the data source in Python, which Spark 3.5 does
        not have.

    Raises
    ------
    ConfigError
        If the interpreter on an executor lacks a package, or has another version of splitarrow. If
        `jvm_reader` is true and the session cannot load that reader.
    UsageError
        If only the data source in Python could read, and Spark is 3.5.
    """
    if hasattr(spark, "_jsparkSession"):  # with Spark Connect, the server chooses the interpreter
        use_worker_python(spark)
        check_workers(spark)
    if hasattr(spark, "dataSource"):  # from Spark 4.0 on
        from .datasource import SplitArrowDataSource

        spark.conf.set(FILTER_PUSHDOWN, "true")
        with hide_sources(spark):
            spark.dataSource.register(SplitArrowDataSource)
    choose_reader(spark, jvm_reader)
