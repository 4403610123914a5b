"""The Python workers of the executors: their interpreter, and the objects sent to them."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import ConfigError, SplitArrowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


P = ParamSpec("P")
T = TypeVar("T")


class Portable:
    """A base class of objects that tasks use.

    Spark unpickles them on an executor. If its interpreter lacks a module, the task fails with
    one line that names the host, the interpreter, the module and a way out.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Return a function that needs nothing but PySpark, and a pickle of the object."""
        from pyspark import cloudpickle

        return _make_restore(), (cloudpickle.dumps((type(self), self.__getstate__()), protocol),)


def _make_restore() -> Callable[[bytes], Any]:
    """Return a function that unpickles an object. It is pickled by value, as it is nested."""

    def restore(data: bytes) -> Any:
        import socket
        import sys

        from pyspark import cloudpickle

        try:
            cls, attributes = cloudpickle.loads(data)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"the interpreter {sys.executable} of the executor on host {socket.gethostname()} "
                f"has no module {error.name!r}; install splitarrow[spark] there, or set "
                "--conf spark.pyspark.python=PATH and call splitarrow.pipeline.register(spark)"
            ) from None
        restored = object.__new__(cls)
        restored.__dict__.update(attributes or {})
        return restored

    return restore


def one_line_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Keep the traceback of an error of splitarrow out of the message of Spark.

    A worker of PySpark reads the variable when it formats an error, and then ends.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with hide_traceback():
            return function(*args, **kwargs)

    return call


@contextmanager
def hide_traceback() -> Generator[None]:
    """Do what `one_line_errors` does, for the errors within the context."""
    try:
        yield
    except SplitArrowError:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


_PYTHON_SETTING = "spark.pyspark.python"
_MODULES = ("pyarrow", "pandas", "pyspark", "splitarrow")
_QUIET_SECONDS = 15.0
_MAX_TASKS = 64
_WAY_OUT = (
    "install the same version of splitarrow[spark] there, or name an interpreter that has it with "
    f"--conf {_PYTHON_SETTING}=PATH"
)

Finding = tuple[str, str, str, str]
"""The host, the interpreter, its first missing module or an empty string, and the version of
splitarrow."""


def use_worker_python(spark: SparkSession) -> None:
    """Make the interpreter that ``spark.pyspark.python`` names that of all Python workers.

    Call it before a data source is registered. Without the setting, nothing changes.
    """
    context = spark.sparkContext
    python = context.getConf().get(_PYTHON_SETTING)
    if python:
        context.pythonExec = python


def check_workers(spark: SparkSession) -> None:
    """Check that the executors can run the tasks of the data source.

    A small job imports the packages on the executors. It runs once per application and interpreter,
    and not at all if the workers are on this machine (a master ``local[…]``).

    Raises `ConfigError` if a package is missing or differs. The message is one line with the host,
    the interpreter and the module.
    """
    context: Any = spark.sparkContext
    checked = context.__dict__.setdefault("_splitarrow_checked", set[str]())
    python: str = context.pythonExec
    if context.master.startswith("local") or python in checked:
        return
    tasks = min(_MAX_TASKS, max(2, context.defaultParallelism))
    with _notice_of_waiting(context):
        findings = run_probe(context, tasks)
    problem = describe_problem(findings)
    if problem:
        raise ConfigError(problem)
    checked.add(python)


def describe_problem(findings: Iterable[Finding]) -> str:
    """Return one line about the first executor that cannot run tasks, or an empty string."""
    from .. import __version__

    for host, python, module, version in findings:
        where = f"the interpreter {python} of the executor on host {host}"
        if module:
            return f"{where} has no module {module!r}; {_WAY_OUT}"
        if version != __version__:
            return f"{where} has splitarrow {version}, but the driver has {__version__}; {_WAY_OUT}"
    return ""


def run_probe(context: Any, tasks: int) -> list[Finding]:
    """Return what the Python workers of the executors find, with one task per core.

    Raises `ConfigError` if the interpreter does not run there.
    """
    from py4j.protocol import Py4JJavaError

    try:
        return (
            context.parallelize(range(tasks), tasks).mapPartitions(make_probe(_MODULES)).collect()
        )
    except Py4JJavaError as error:
        from .spark_errors import summarize_java

        raise ConfigError(
            f"the interpreter {context.pythonExec} does not run on an executor: "
            f"{summarize_java(error)}; {_WAY_OUT}"
        ) from None


def make_probe(modules: tuple[str, ...]) -> Callable[[Iterable[Any]], Iterator[Finding]]:
    """Return a function that imports modules where it runs.

    It is pickled by value, since the executors may lack this package.
    """

    def probe(_rows: Iterable[Any]) -> Iterator[Finding]:
        import importlib
        import socket

        missing = version = ""
        for name in modules:
            try:
                module: Any = importlib.import_module(name)
            except ImportError as error:
                missing = error.name or name
                break
            version = module.__version__
        yield socket.gethostname(), sys.executable, missing, version

    return probe


@contextmanager
def _notice_of_waiting(context: Any) -> Generator[None]:
    """Write a line to standard error if the cluster has granted no executor after a while."""
    timer = threading.Timer(_QUIET_SECONDS, _notice, [context])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _notice(context: Any) -> None:
    tracker = context._jsc.sc().statusTracker()
    if len(tracker.getExecutorInfos()) > 1:  # the driver is one of them
        return
    memory = context.getConf().get("spark.executor.memory", "1g")
    cores = context.getConf().get("spark.executor.cores", "all")
    sys.stderr.write(
        f"splitarrow: no executor in {_QUIET_SECONDS:g} s: {context.master} has no worker with "
        f"{memory} of memory and {cores} cores free; other applications may hold them\n"
    )
