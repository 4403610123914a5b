"""Starting Spark: again where that failed by chance, and with a clear word where it fails for good.

What Java, Spark and the workers print can go to a file: they have it as their standard output
and error for as long as they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTS = 3
_OUTPUTS = (1, 2)
_TAIL_BYTES = 4096


def started(builder: Any, log: IO[bytes] | None = None) -> SparkSession:
    """Return the session of a builder; the Java it needs is started if none runs.

    Parameters
    ----------
    builder : pyspark.sql.SparkSession.Builder
        What is to be started.
    log : binary file, optional
        Where what is started prints; by default where this process does.

    Raises
    ------
    ConfigError
        If Java does not start, or Spark does not start in it. It says what they said.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    for left in reversed(range(_STARTS)):
        try:
            with _output_to(log):
                return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            # The fork that starts Java can meet a gRPC call of another thread, and then fails.
            if not left:
                raise ConfigError(f"Java does not start{_said(log)}") from None
        except Py4JError as error:
            raise ConfigError(f"Spark does not start: {_first(error)}") from None
    raise AssertionError


def silence_queries() -> None:
    """Keep PySpark from logging the errors of queries that it also raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def _output_to(log: IO[bytes] | None) -> Generator[None]:
    """Let processes that are started within write what they print to a file."""
    if log is None:
        yield
        return
    _flush()
    kept: dict[int, int] = {}
    for output in _OUTPUTS:
        with suppress(OSError):  # it was closed before the program began
            kept[output] = os.dup(output)
    for output in kept:
        os.dup2(log.fileno(), output)
    try:
        yield
    finally:
        _flush()
        for output, before in kept.items():
            os.dup2(before, output)
            os.close(before)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()


def _said(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    size = os.fstat(log.fileno()).st_size
    tail = os.pread(log.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    lines = [line.strip() for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def _first(error: Exception) -> str:
    """Return what Java raised, without the place where it was raised."""
    raised = getattr(error, "java_exception", None)
    text = str(raised if raised is not None else error).strip()
    if "stopped SparkContext" in text:
        return "it stopped at once; does its master answer?"
    return (text.splitlines() or ["no reason was given"])[0]
