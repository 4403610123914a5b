"""Sparse arrays of SciPy, which is optional."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ....errors import MissingExtraError, UsageError


def make_scipy_array(
    kind: str,
    values: Any,
    index_arrays: tuple[Any, ...],
    shape: tuple[int, ...],
    *,
    is_canonical: bool,
) -> Any:
    """Return a sparse array over the memory of arrays that were checked.

    Parameters
    ----------
    kind : {"coo", "csr", "csc"}
        The format.
    values : numpy.ndarray
        The stored values.
    index_arrays : tuple of numpy.ndarray
        The arrays of the index; see `SparseTensor.index_arrays`.
    shape : tuple of int
        The shape.
    is_canonical : bool
        Whether coordinates are sorted and distinct.

    Raises
    ------
    MissingExtraError
        If SciPy is not installed.
    UsageError
        If SciPy does not support the type or the shape.
    """
    sparse = _require_scipy()
    try:
        index_arrays = _with_scipy_indices(index_arrays)
        if kind == "coo":
            coordinates = tuple(index_arrays[0].T)
            array = sparse.coo_array((values, coordinates), shape=shape, copy=False)
            array.has_canonical_format = is_canonical
            return array
        make = sparse.csr_array if kind == "csr" else sparse.csc_array
        # The constructor with arrays would copy indices that fit into fewer bits.
        array = make(shape, dtype=values.dtype)
        array.data, (array.indptr, array.indices) = values, index_arrays
    except (TypeError, ValueError) as error:
        raise UsageError(f"SciPy cannot represent the sparse tensor: {error}") from None
    return array


def _with_scipy_indices(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays of one type that SciPy computes with: int32 or int64."""
    names = {array.dtype.name for array in arrays}
    if names in ({"int32"}, {"int64"}):
        return arrays
    return tuple(array.astype("int64") for array in arrays)


def is_scipy_array(source: Any) -> bool:
    """Return whether an object is a sparse matrix or array. It does not import SciPy."""
    sparse: Any = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(source)


def _require_scipy() -> Any:
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "scipy":
            raise
        raise MissingExtraError(
            "scipy is not installed; install it with: pip install 'splitarrow[scipy]'"
        ) from None
