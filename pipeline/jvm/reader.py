"""The reader of Spark that is written in Java: its jar, and loading it into a running session."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from . import JAR, SOURCE_CLASS, SPARK_VERSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_PYTHON = "spark.splitarrow.driver.python"
"""The interpreter with which the reader in the JVM plans on the driver."""
EXECUTOR_PYTHON = "spark.splitarrow.executor.python"
"""The interpreter with which it renews tickets on the executors."""


READER = "spark.splitarrow.reader"
"""The reader of queries whose option ``reader`` is not set: ``auto``, ``jvm`` or ``python``."""
_notices: set[str] = set()


def choose_reader(spark: SparkSession, jvm_reader: bool | None) -> None:
    """Choose what reads in a session: see `splitarrow.pipeline.register`.

    Raises `ConfigError` if `jvm_reader` is true and the session cannot load the reader in the JVM.
    """
    from ..spark_versions import require_python_sources

    if jvm_reader is False:
        require_python_sources("jvm_reader must not be False")
        spark.conf.set(READER, "python")
        return
    try:
        load_reader(spark)
    except ConfigError as error:
        if jvm_reader:
            raise
        require_python_sources(error.message)
        _notify(f"{error.message}; Python reads instead, by rows")
        return
    if jvm_reader:
        spark.conf.set(READER, "auto")


def _notify(line: str) -> None:
    """Write a line to standard error, once."""
    if line not in _notices:
        _notices.add(line)
        sys.stderr.write(f"splitarrow: {line}\n")


def load_reader(spark: SparkSession) -> None:
    """Load the reader in the JVM into a session, unless it is loaded already.

    The class loader of the thread that runs PySpark's calls is the one in which Spark looks for
    data sources. Executors get the jar with their tasks.

    Raises `ConfigError` if the session cannot load the reader. The message gives the reason.
    """
    from py4j.protocol import Py4JError

    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        raise _cannot_load("a Spark Connect session has no JVM of its own")
    if ".".join(spark.version.split(".")[:2]) not in SPARK_VERSIONS:
        versions = f"{SPARK_VERSIONS[0]} to {SPARK_VERSIONS[-1]}"
        raise _cannot_load(f"it needs Spark {versions}, not {spark.version}")
    if not JAR.is_file():
        raise _cannot_load(f"{JAR} is missing; run make jar")
    context: Any = spark.sparkContext
    spark.conf.set(DRIVER_PYTHON, sys.executable)
    spark.conf.set(EXECUTOR_PYTHON, context.pythonExec)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if _is_loaded(loader):
        return
    try:
        loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())
        context._jsc.sc().addJar(str(JAR))
    except Py4JError as error:
        raise _cannot_load(str(error).partition("\n")[0]) from None
    if not _is_loaded(loader):
        raise _cannot_load("Spark does not find its classes")


@contextmanager
def hide_sources(spark: SparkSession) -> Generator[None]:
    """Hide the data sources of the jar and of other sessions, so that Spark registers in this one.

    Spark refuses a name that the thread's class loader or its active session has. The state of the
    session must exist, because Spark must not make the session's class loader in the context.
    """
    session: Any = spark
    jvm = getattr(session, "_jvm", None)
    if jvm is None:
        yield
        return
    thread = jvm.java.lang.Thread.currentThread()
    loader = thread.getContextClassLoader()
    sessions = jvm.org.apache.spark.sql.SparkSession
    active = sessions.getActiveSession()
    thread.setContextClassLoader(session._jsparkSession.getClass().getClassLoader())
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        thread.setContextClassLoader(loader)
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def _cannot_load(reason: str) -> ConfigError:
    return ConfigError(f"this Spark session cannot load the reader in the JVM: {reason}")


def _is_loaded(loader: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        loader.loadClass(SOURCE_CLASS)
    except Py4JJavaError:
        return False
    return True
