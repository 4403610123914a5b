"""Starting Java and Spark: a retry for a transient failure, a one-line error for a permanent one.

The output of Java, Spark and the workers can go to a file: they inherit it as standard output and
standard error for as long as they run.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 3
_STDOUT, _STDERR = 1, 2
_TAIL_BYTES = 4096


def start_session(builder: Any, log: IO[bytes] | None = None) -> SparkSession:
    """Return the session of a builder, and start Java first if none is running.

    Parameters
    ----------
    builder : pyspark.sql.SparkSession.Builder
        The configured builder.
    log : binary file, optional
        The file that receives the output of Java and Spark. By default they share the standard
        output and error of this process.

    Raises
    ------
    ConfigError
        If Java or Spark does not start. The message contains the cause that it reported.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _redirect_output(log):
                return builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
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
