"""Objects that Spark sends to the executors, and the error if those lack the packages for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
