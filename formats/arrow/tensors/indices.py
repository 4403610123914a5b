"""Checks of the values of a sparse index, with NumPy.

Each check passes once over an array, so that all of them take time in proportion to the index.
"""

from __future__ import annotations

from typing import Any

from ....errors import InvalidDataError
from ..numpy_arrays import require_numpy
from .layout import CooLayout, CsfLayout, CsxLayout, SparseLayout


def check_indices(layout: SparseLayout, arrays: tuple[Any, ...]) -> None:
    """Check the positions of the values of a sparse tensor.

    Parameters
    ----------
    layout : SparseLayout
        The layout.
    arrays : tuple of numpy.ndarray
        The arrays of the index, as `SparseTensor.index_arrays` returns them.

    Raises
    ------
    InvalidDataError
        If an index is outside its dimension, positions decrease or do not cover all values, or
        indices are not sorted although their format requires it. The error names the field and
        the place.
    MissingExtraError
        If NumPy is not installed.
    """
    match layout.index:
        case CooLayout():
            _check_coo(layout, layout.index, arrays[0])
        case CsxLayout():
            _check_csx(layout, layout.index, *arrays)
        case CsfLayout():
            levels = len(layout.shape)
            _check_csf(layout, layout.index, arrays[: levels - 1], arrays[-levels:])


def _check_coo(layout: SparseLayout, index: CooLayout, coordinates: Any) -> None:
    for dimension, size in enumerate(layout.shape):
        _check_range(coordinates[:, dimension], size, f"the indices of dimension {dimension}")
    if index.is_canonical and len(coordinates) > 1:
        _check_canonical(coordinates)


def find_unsorted(coordinates: Any) -> int | None:
    """Return the first row that is not greater than the one before it, None if there is none.

    Parameters
    ----------
    coordinates : numpy.ndarray
        A matrix whose rows are compared from the first column to the last.
    """
    numpy = require_numpy()
    before, after = coordinates[:-1], coordinates[1:]
    # From the last dimension to the first: whether the rest of a row exceeds that of the one before
    is_greater = numpy.zeros(len(after), bool)
    for dimension in reversed(range(coordinates.shape[1])):
        one, other = before[:, dimension], after[:, dimension]
        is_greater &= one == other
        is_greater |= one < other
    place = _find_first(~is_greater)
    return None if place is None else place + 1


def _check_canonical(coordinates: Any) -> None:
    row = find_unsorted(coordinates)
    if row is not None:
        raise InvalidDataError(
            f"the coordinates are not sorted and distinct at value {row}, although isCanonical is "
            "true"
        )


def _check_csx(layout: SparseLayout, index: CsxLayout, indptr: Any, indices: Any) -> None:
    other = layout.shape[1 if index.axis == "row" else 0]
    _check_positions(indptr, layout.non_zero_length, "indptr")
    _check_range(indices, other, "indices")
    _check_sorted(indptr, indices, "indices", distinct=False)


def _check_csf(
    layout: SparseLayout, index: CsfLayout, indptr: tuple[Any, ...], indices: tuple[Any, ...]
) -> None:
    for level, nodes in enumerate(indices):
        dimension = index.axis_order[level]
        _check_range(nodes, layout.shape[dimension], f"indices[{level}]")
        if level:
            _check_positions(indptr[level - 1], len(nodes), f"indptr[{level - 1}]")
            _check_sorted(indptr[level - 1], nodes, f"indices[{level}]", distinct=True)
    if len(indices) and len(indices[0]) > 1:
        place = _find_first(indices[0][1:] <= indices[0][:-1])
        if place is not None:
            raise InvalidDataError(f"indices[0] is not sorted and distinct at {place + 1}")


def _check_range(values: Any, size: int, field: str) -> None:
    if not len(values):
        return
    if int(values.max()) >= size or int(values.min()) < 0:
        place = _find_first((values < 0) | (values >= size))
        assert place is not None
        raise InvalidDataError(
            f"{field}: item {place} is {values[place]}; expected 0 to {size - 1}"
        )


def _check_positions(positions: Any, count: int, field: str) -> None:
    """Check that positions begin with 0, never decrease, and end with `count`."""
    first, last = int(positions[0]), int(positions[-1])
    if first or last != count:
        raise InvalidDataError(f"{field} covers {first} to {last}; expected 0 to {count}")
    place = _find_first(positions[1:] < positions[:-1])
    if place is not None:
        raise InvalidDataError(f"{field} decreases at {place + 1}")


def _check_sorted(positions: Any, values: Any, field: str, *, distinct: bool) -> None:
    """Check that values increase within each span of positions."""
    if len(values) < 2:
        return
    decreases = values[1:] <= values[:-1] if distinct else values[1:] < values[:-1]
    starts = positions[1:-1]
    starts = starts[(starts > 0) & (starts < len(values))]
    decreases[starts.astype("int64") - 1] = False  # a new span begins
    place = _find_first(decreases)
    if place is not None:
        raise InvalidDataError(f"{field} is not sorted{' and distinct' * distinct} at {place + 1}")


def _find_first(flags: Any) -> int | None:
    """Return the index of the first true value."""
    if not flags.any():
        return None
    return int(flags.argmax())
