"""Conditions on bounding boxes, as filters carry them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ....errors import InvalidDataError
from .boxes import Box, bound_rows
from .crs import is_geospatial, read_metadata

MARK = b"{"
"""The first byte of a filter with boxes. No Substrait message begins with it."""
MAX_BOXES = 64
"""The largest number of boxes in a filter."""


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
            sides = (self.box.xmin, self.box.ymin, self.box.xmax, self.box.ymax)
            raise InvalidDataError(
                f"the box {sides} is invalid; expected finite numbers xmin, ymin, xmax, ymax, "
                "with ymin at most ymax"
            )

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


def encode_conditions(conditions: Sequence[BoxCondition], text: str | None) -> str:
    """Return a filter with boxes as `Request` holds it. All conditions must hold.

    So must the filter in `text`, a Substrait expression in base64url.
    """
    document: dict[str, Any] = {
        "boxes": [
            [each.column, [each.box.xmin, each.box.ymin, each.box.xmax, each.box.ymax]]
            for each in conditions
        ]
    }
    if text is not None:
        document["filter"] = text
    data = json.dumps(document, ensure_ascii=False).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_conditions(data: bytes) -> tuple[tuple[BoxCondition, ...], str | None]:
    """Return the conditions and the other filter of a filter with boxes, or None.

    Raises `InvalidDataError` if they are malformed.

    Examples
    --------
    >>> decode_conditions(b'{"boxes": [["geom", [0, 1, 2, 3]]]}')[0][0].box.ymax
    3.0
    """
    try:
        document: Any = json.loads(data)
        text = document.pop("filter", None)
        boxes = document.pop("boxes")
        conditions = tuple(
            BoxCondition(_check(name, str), Box(*(float(_check(side, float, int)) for side in box)))
            for name, box in boxes
            if len(box) == 4 or _check(box)
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise InvalidDataError("the filter is not a list of boxes in JSON") from None
    if document or not 1 <= len(conditions) <= MAX_BOXES or not isinstance(text, str | None):
        raise InvalidDataError(f"the filter has unknown fields, or not 1 to {MAX_BOXES} boxes")
    return conditions, text


def may_match(conditions: Sequence[BoxCondition], boxes: Mapping[str, tuple[Box, bool]]) -> bool:
    """Return whether rows may fulfill all conditions, by the boxes that hold their columns.

    A box that is not valid rules nothing out.
    """
    for condition in conditions:
        box, is_geography = boxes.get(condition.column, (None, False))
        if box is None or not box.is_valid(geographic=is_geography):
            continue
        if not box.intersects(condition.box):
            return False
    return True


def _check(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError
    return value
