"""Errors of Spark as errors of splitarrow, each with a message of one line."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from ..errors import DatasetError, UsageError
from .spark_versions import find_condition

_PYTHON_ERROR = re.compile(r"^(?:splitarrow\.)?[\w.]*(?:Error|Exception): (.+)$", re.MULTILINE)
_FAILED_TASK = re.compile(r"\((\S+) executor \S+\): (?:[\w.]+: )?(.*)")
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@contextmanager
def translate_errors(source: str) -> Generator[None]:
    """Raise the errors of Spark within the context as errors of splitarrow.

    Their messages begin with `source`. Raises `UsageError` if Spark cannot analyze the query, since
    a column or an expression is wrong, and `DatasetError` if any other operation fails.
    """
    try:
        yield
    except AnalysisException as error:
        in_data_source = "PYTHON_DATA_SOURCE" in find_condition(error)
        error_type = DatasetError if in_data_source else UsageError
        raise error_type(f"{source}: {summarize(error)}") from None
    except (PySparkException, Py4JJavaError) as error:
        raise DatasetError(f"{source}: {summarize(error)}") from None


def summarize(error: Exception) -> str:
    """Return the cause of a Spark error in one line.

    If Python code raised in a worker, the line is the message of the last exception there.
    """
    text = str(error)
    if messages := _PYTHON_ERROR.findall(text):
        return messages[-1].partition(" SQLSTATE")[0].strip()
    if isinstance(error, Py4JJavaError):  # Spark 3.5 translates no error of a task
        text = str(error.java_exception.getMessage())
        if task := _FAILED_TASK.search(text):
            text = task[2]
    lines = text.strip().splitlines() or [type(error).__name__]
    return lines[0].partition(" SQLSTATE")[0]


def summarize_java(error: Py4JJavaError) -> str:
    """Return the cause of a failed job in one line, with the host of the task."""
    text = str(error.java_exception.getMessage())
    messages = _PYTHON_ERROR.findall(text) if "Traceback" in text else []
    host = _FAILED_TASK.search(text)
    cause = messages[-1] if messages else (host[2] if host else text).partition("\n")[0]
    return f"on host {host[1]}: {cause}" if host else cause


def disable_query_logging() -> None:
    """Stop PySpark from logging the query errors that it also raises."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # Spark 3.5 logs no errors
        return

    for name in _QUERY_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
