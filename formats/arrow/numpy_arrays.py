"""Columns of record batches as NumPy arrays, and keeping pyarrow from importing pandas.

pyarrow looks for pandas when it first turns a Python object into a scalar or an array, even if that
object is a number. The import takes seconds and 60 MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import pyarrow as pa

from ...errors import MissingExtraError, UsageError


def columns_to_numpy(data: pa.RecordBatch | pa.Table) -> dict[str, Any]:
    """Return the columns of a batch or table as NumPy arrays, by their names.

    Numbers without nulls share the memory of a record batch, and are then read-only. See
    `column_to_numpy` for other columns.
    """
    require_numpy()
    names = data.schema.names
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise UsageError(
            f"several columns are called {min(repeated)!r}; select columns with different names"
        )
    return {name: column_to_numpy(data.column(name)) for name in names}


def column_to_numpy(column: Any) -> Any:
    """Return an array or a chunked array as a NumPy array.

    Fixed-size lists and tensors of numbers without nulls become arrays of the shape ``(rows,
    size)``, or of more dimensions. pyarrow's ``to_numpy`` converts the others: integers with nulls
    become floating-point numbers, and strings and other lists become Python objects.
    """
    numpy = require_numpy()
    if isinstance(column, pa.ChunkedArray):
        if _find_shape(column.type) is None:
            return _convert(column)
        # One chunk without rows determines the shape of a column without chunks.
        chunks = column.chunks or [pa.array([], column.type)]
        arrays = [column_to_numpy(chunk) for chunk in chunks]
        return arrays[0] if len(arrays) == 1 else numpy.concatenate(arrays)
    shape, values = _find_shape(column.type), column
    if shape is None:
        return _convert(column)
    if isinstance(column.type, pa.FixedShapeTensorType) and not column.null_count:
        return column.to_numpy_ndarray()
    while isinstance(values.type, pa.BaseExtensionType) or pa.types.is_fixed_size_list(values.type):
        if values.null_count:
            return _convert(column)
        is_extension = isinstance(values.type, pa.BaseExtensionType)
        values = values.storage if is_extension else values.flatten()
    if values.null_count:
        return _convert(column)
    return _convert(values).reshape((len(column), *shape))


def require_numpy() -> Any:
    """Return the module ``numpy``; raises `MissingExtraError` if it is not installed."""
    try:
        return import_module("numpy")
    except ImportError as error:
        if error.name != "numpy":
            raise
        raise MissingExtraError(
            "numpy is not installed; install it with: pip install numpy"
        ) from None


def _convert(column: Any) -> Any:
    try:
        return column.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise UsageError(
            f"a column of the type {column.type} has no form in NumPy: {error}"
        ) from None


def _find_shape(kind: Any) -> tuple[int, ...] | None:
    """Return the shape of a value of a column; None if the values are not arrays of numbers."""
    shape: list[int] = []
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        else:
            break
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return tuple(shape) if shape and is_number else None


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

    ``to_pandas`` fails from then on, so only a process of our own may call this.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)
