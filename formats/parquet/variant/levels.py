"""Variant values parsed to their leaves, level by level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .buffers import Index
from .checks import MAX_DEPTH
from .scalars import check_scalars
from .types import Kind
from .values import Entries, Values, check_sizes, read_arrays, read_objects


@dataclass(frozen=True, slots=True)
class Level:
    """All values of one depth.

    The next level has the fields of the objects, and then the elements of the arrays.

    Attributes
    ----------
    values : Values
        The values.
    kind : ndarray of int8, shape (n,)
        The `Kind` of each value.
    objects, arrays : ndarray of int64
        Which values are objects and arrays.
    fields, elements : Entries or None
        Their entries; None if there is no object or array.
    """

    values: Values
    kind: Any
    objects: Index
    arrays: Index
    fields: Entries | None
    elements: Entries | None


def parse_levels(values: Values) -> list[Level]:
    """Parse and check some values entirely.

    If the checks collect invalid rows, the levels are not aligned once a row is invalid: discard
    them, and parse the valid rows again.

    Raises
    ------
    InvalidDataError
        If a value is invalid, or nested more than MAX_DEPTH deep, unless invalid rows are
        collected.
    """
    levels: list[Level] = []
    while len(values):
        values = check_sizes(values)
        if len(levels) > MAX_DEPTH:
            checks = values.context.checks
            too_deep = np.zeros(len(values), np.bool_)
            checks.require(too_deep, values.row, f"it is nested more than {MAX_DEPTH} deep")
            break
        level = _parse_level(values)
        levels.append(level)
        following = [entries.values for entries in (level.fields, level.elements) if entries]
        if not following:
            break
        values = _concatenate(following)
    return levels


def _parse_level(values: Values) -> Level:
    kind = values.kinds()
    check_scalars(values, kind)
    objects = np.flatnonzero(kind == Kind.OBJECT)
    arrays = np.flatnonzero(kind == Kind.ARRAY)
    fields = read_objects(values.take(objects))[1] if len(objects) else None
    elements = read_arrays(values.take(arrays))[1] if len(arrays) else None
    return Level(values, kind, objects, arrays, fields, elements)


def _concatenate(parts: list[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    return Values(
        parts[0].context,
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.size for part in parts]),
        np.concatenate([part.row for part in parts]),
    )
