"""Geospatial columns: filters by bounding box, and the boxes of values.

A geospatial column is binary, in WKB, and its field metadata names the extension ``geoarrow.wkb``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from .errors import InvalidDataError, UsageError
from .formats.arguments import check_column, check_text
from .formats.arrow.data_types import is_text
from .formats.parquet.geo.boxes import Box, bound_rows
from .formats.parquet.geo.conditions import BoxCondition, find_edges
from .formats.parquet.geo.crs import is_geospatial

__all__ = ["BoxFilter", "bounds", "intersects"]


@dataclass(frozen=True, slots=True)
class BoxFilter:
    """A filter by bounding boxes; `intersects` returns it.

    ``&`` adds another filter of any kind that must hold, too.
    """

    boxes: tuple[tuple[str | None, tuple[float, float, float, float]], ...]
    """Columns and boxes. None stands for the only geospatial column."""
    others: tuple[Any, ...] = ()
    """Other filters that must hold."""

    def __and__(self, other: Any) -> BoxFilter:
        if isinstance(other, BoxFilter):
            return BoxFilter(self.boxes + other.boxes, self.others + other.others)
        return self if other is None else replace(self, others=(*self.others, other))

    def conditions(self, schema: pa.Schema) -> list[BoxCondition]:
        """Return the conditions for a dataset.

        Raises
        ------
        UsageError
            If a box is invalid, or the dataset has no such geospatial column.
        """
        try:
            return [
                BoxCondition(_find_column(column, schema), Box(*map(float, box)))
                for column, box in self.boxes
            ]
        except InvalidDataError as error:
            raise UsageError(f"the filter is invalid: {error.message}") from None


def intersects(column: str | None, box: Sequence[float]) -> BoxFilter:
    """Return a filter for the rows whose bounding box has a common point with a box.

    Row groups and shards whose boxes have none are not read. Rows that are null or empty do not
    pass.

    Parameters
    ----------
    column : str or None
        The geospatial column. None stands for the only one.
    box : sequence of float
        xmin, ymin, xmax, ymax, in the units of the column's CRS. If xmin is greater than xmax, the
        box crosses the antimeridian: it has the X with ``x >= xmin or x <= xmax``.

    Raises
    ------
    UsageError
        If the box is not four finite numbers, or ymin is greater than ymax.

    Examples
    --------
    >>> from splitarrow import geo
    >>> geo.intersects("geom", (5, 47, 15, 55)) & "population > 1000"
    BoxFilter(boxes=(('geom', (5.0, 47.0, 15.0, 55.0)),), others=('population > 1000',))
    """
    if column is not None:
        check_text("column", column)
    try:
        xmin, ymin, xmax, ymax = map(float, box)
        BoxCondition("", Box(xmin, ymin, xmax, ymax))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"the box is {box!r}; expected xmin, ymin, xmax, ymax") from None
    except InvalidDataError as error:
        raise UsageError(error.message) from None
    return BoxFilter(((column, (xmin, ymin, xmax, ymax)),))


def bounds(column: Any, edges: str | None = None) -> pa.StructArray:
    """Return the bounding box of each value of a column, after checking all values.

    Parameters
    ----------
    column : pyarrow.Array or ChunkedArray
        The values in WKB.
    edges : str, optional
        The algorithm of the edges of a GEOGRAPHY: ``spherical``, ``vincenty``, ``thomas``,
        ``andoyer`` or ``karney``. None stands for straight edges.

    Returns
    -------
    pyarrow.StructArray
        ``xmin``, ``ymin``, ``xmax`` and ``ymax`` (float64). Null for a null, and for a geometry
        that has no X or no Y.

    Raises
    ------
    InvalidDataError
        If a value is not valid WKB.

    Examples
    --------
    >>> import struct
    >>> point = struct.pack("<BIdd", 1, 1, 8.5, 47.25)
    >>> bounds(pa.array([point, None])).to_pylist()
    [{'xmin': 8.5, 'ymin': 47.25, 'xmax': 8.5, 'ymax': 47.25}, None]
    """
    import numpy as np

    check_column("column", column)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not is_text(array.type):
        raise UsageError(f"column has the type {array.type}; expected binary values in WKB")
    sides = bound_rows(array, edges).sides
    names = ["xmin", "ymin", "xmax", "ymax"]
    arrays = [pa.array(sides[:, index]) for index in range(4)]
    mask = pa.array(np.isnan(sides[:, 0]))
    return pa.StructArray.from_arrays(arrays, names, mask=mask)


def _find_column(name: str | None, schema: pa.Schema) -> str:
    if name is None:
        names = [field.name for field in schema if is_geospatial(field)]
        if len(names) != 1:
            raise UsageError(
                f"the dataset has {len(names)} geospatial columns; name the one of the box"
            )
        return names[0]
    if name not in schema.names:
        raise UsageError(f"the filter refers to the column {name!r}, which the dataset lacks")
    find_edges(schema.field(name))
    return name
