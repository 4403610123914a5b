"""Conditions on the bounding boxes of geospatial columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from .boxes import Box, bound_rows
from .crs import is_geospatial, read_metadata


@dataclass(frozen=True, slots=True)
class BoxCondition:
    """The condition that the box of a geospatial column has a common X and Y with a box.

    Raises `InvalidDataError` if the box has a NaN or is upside down.
    """

    column: str
    """The name of the column."""
    box: Box
    """The box."""

    def __post_init__(self) -> None:
        """Check the box."""
        if not self.box.is_valid(geographic=False):
            raise InvalidDataError(
                f"the box {self.sides} is invalid; expected finite numbers xmin, ymin, xmax, ymax, "
                "with ymin at most ymax"
            )

    @property
    def sides(self) -> tuple[float, float, float, float]:
        """The sides xmin, ymin, xmax and ymax."""
        return self.box.xmin, self.box.ymin, self.box.xmax, self.box.ymax

    def match(self, array: Any, edges: str | None) -> Any:
        """Return whether each value of a column fulfills the condition (bool).

        A null, and a geometry without points, does not.

        Raises `InvalidDataError` if a value is not valid WKB.
        """
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        return bound_rows(array, edges).intersect(self.box)


def find_edges(column: pa.Field[Any]) -> str | None:
    """Return the algorithm of the edges of a geospatial column; None if they are straight.

    Raises `InvalidDataError` if the column is not geospatial, or its metadata is malformed.
    """
    if not is_geospatial(column):
        raise InvalidDataError(
            f"the column {column.name!r} is not geospatial; expected the extension geoarrow.wkb"
        )
    edges: str | None = read_metadata(column).get("edges")
    return None if edges == "planar" else edges
