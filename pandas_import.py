"""Keeping pyarrow from importing pandas, which takes seconds and 60 MiB.

pyarrow looks for pandas when it first turns a Python object into a scalar or an array, even if
that object is a number. A server never hands it an object of pandas, and neither does the process
that plans a `splitarrow.pytorch.StreamDataset`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    """A finder that finds no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Return None for all other modules, so that the next finder is used."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=fullname)


def prevent_pandas_import() -> None:
    """Make pyarrow conclude that pandas is not installed, unless it has been imported.

    Only a process of its own may do so: pyarrow remembers it, so that ``to_pandas`` fails.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)
