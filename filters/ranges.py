"""Pruning: whether a filter can be true for any row of a part of a dataset.

A part is a row group, a shard or a file. What is known of it are ranges of its columns: statistics,
manifests and partition values. Each condition has the set of outcomes (true, false, null) that some
values in these ranges may give, so nothing is skipped that the filter can select.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow.types as at

from ..formats.parquet.geo.boxes import Box
from .binding import BoundCall, BoundColumn, BoundLiteral
from .literals import kind_of
from .tree import COMPARISONS

_TRUE, _FALSE, _NULL, _ANY = 1, 2, 4, 7


@dataclass(frozen=True, slots=True)
class Range:
    """What is known of the values of a column in a part."""

    minimum: Any = None
    """The smallest value, as `to_bound` returns it, or one below it; None if it is unknown."""
    maximum: Any = None
    """The largest value, or one above it; None if it is unknown."""
    nulls: bool = True
    """Whether there may be nulls."""
    values: bool = True
    """Whether there may be values."""
    nan: bool = True
    """Whether floating-point numbers may have a NaN, which a minimum leaves out."""
    box: Box | None = None
    """The bounding box of a geospatial column; None if it is unknown."""


UNKNOWN: Final = Range()
"""The range of a column of which nothing is known."""


def to_bound(scalar: Any) -> Any:
    """Return a scalar as a Python value that is ordered as the values of its type are.

    Dates, times and durations are numbers of units. Return None if the type has no order.
    """
    if not scalar.is_valid:
        return None
    if at.is_temporal(scalar.type):
        return None if at.is_interval(scalar.type) else scalar.value
    value = scalar.as_py()
    if isinstance(value, float) and value != value:
        return None
    return value if isinstance(value, (int, float, str, bytes, Decimal)) else None


def may_match(bound: Any, find_range: Callable[[int], Range]) -> bool:
    """Return whether a bound condition can be true for a row of a part.

    `find_range` returns the range of the column with an index, in the column's type.
    """
    return bool(_find_outcomes(bound, find_range) & _TRUE)


def decide(bound: Any, find_range: Callable[[int], Range]) -> bool | None:
    """Return whether a bound condition is true for all rows of a part (True), or for none (False).

    Return None if that is unknown. `find_range` is that of `may_match`.
    """
    outcomes = _find_outcomes(bound, find_range)
    if outcomes & _TRUE:
        return True if outcomes == _TRUE else None
    return False


def _find_outcomes(bound: Any, find_range: Callable[[int], Range]) -> int:
    """Return the outcomes that a condition may have."""
    if isinstance(bound, BoundLiteral):
        value = bound.scalar.as_py()
        return _NULL if value is None else _TRUE if value else _FALSE
    if isinstance(bound, BoundColumn):
        return _compare("=", _find_range(bound, find_range), Range(True, True, nulls=False))
    match bound.function:
        case "and" | "or":
            parts = [_find_outcomes(each, find_range) for each in bound.arguments]
            return _combine(parts, is_and=bound.function == "and")
        case "not":
            outcomes = _find_outcomes(bound.arguments[0], find_range)
            return _swap(outcomes)
        case "is true" | "is false":
            outcomes = _find_outcomes(bound.arguments[0], find_range)
            wanted = _TRUE if bound.function == "is true" else _FALSE
            return (_TRUE if outcomes & wanted else 0) | (_FALSE if outcomes & ~wanted else 0)
        case "is null":
            found = _find_range(bound.arguments[0], find_range)
            return (_TRUE if found.nulls else 0) | (_FALSE if found.values else 0)
        case "always":
            found = _find_range(bound.arguments[0], find_range)
            value = _TRUE if bound.options else _FALSE
            return (value if found.values else 0) | (_NULL if found.nulls else 0)
        case "in" | "in bits":
            values, has_null = bound.options
            found = _find_range(bound.arguments[0], find_range)
            parts = [_compare("=", found, make_point(each)) for each in values]
            if has_null or not parts:
                parts.append(_NULL if has_null else _FALSE)
            return _combine(parts, is_and=False) | (_NULL if found.nulls else 0)
        case "intersects":
            box = _find_range(bound.arguments[0], find_range).box
            condition, edges = bound.options
            if box is None or not box.is_valid(geographic=edges is not None):
                return _TRUE | _FALSE
            return _FALSE | (_TRUE if box.intersects(condition.box) else 0)
        case _ if bound.function in COMPARISONS:
            left, right = (_find_range(each, find_range) for each in bound.arguments)
            return _compare(bound.function, left, right)
        case _:
            return _ANY


def _swap(outcomes: int) -> int:
    """Return the outcomes of a negation."""
    swapped = (_FALSE if outcomes & _TRUE else 0) | (_TRUE if outcomes & _FALSE else 0)
    return swapped | (outcomes & _NULL)


def _combine(parts: list[int], *, is_and: bool) -> int:
    """Return the outcomes of a conjunction or disjunction, whose parts may be independent."""
    strong, weak = (_FALSE, _TRUE) if is_and else (_TRUE, _FALSE)
    found = 0
    if any(part & strong for part in parts):
        found |= strong
    if all(part & weak for part in parts):
        found |= weak
    # Null needs a part that is null, and none that decides.
    if any(part & _NULL for part in parts) and all(part & (weak | _NULL) for part in parts):
        found |= _NULL
    return found


def _find_range(bound: Any, find_range: Callable[[int], Range]) -> Range:
    """Return the range of the values of a bound node."""
    match bound:
        case BoundLiteral():
            return make_point(bound.scalar)
        case BoundColumn():
            return find_range(bound.index) if bound.index >= 0 else UNKNOWN
        case BoundCall(function="decode"):
            return _find_range(bound.arguments[0], find_range)
        case BoundCall(function="cast") if _keeps_order(bound):
            return _find_range(bound.arguments[0], find_range)
        case _:
            return UNKNOWN


def _keeps_order(bound: BoundCall) -> bool:
    """Return whether a conversion changes no value as Python compares it."""
    source, target = bound.arguments[0].type, bound.type
    if at.is_integer(source):
        return at.is_decimal(target) or (at.is_integer(target) and bound.options)
    if at.is_decimal(source):
        return at.is_decimal(target) and bound.options
    if at.is_floating(source):
        return at.is_floating(target) and target.bit_width >= source.bit_width
    return kind_of(source) == kind_of(target) == "text"


def make_point(scalar: Any) -> Range:
    """Return the range of a single value, which may be null."""
    value = to_bound(scalar)
    is_nan = at.is_floating(scalar.type) and value is None and scalar.is_valid
    return Range(value, value, nulls=not scalar.is_valid, values=scalar.is_valid, nan=is_nan)


def _compare(symbol: str, left: Range, right: Range) -> int:
    """Return the outcomes of a comparison of values in two ranges."""
    outcomes = _NULL if left.nulls or right.nulls else 0
    if not (left.values and right.values):
        return outcomes
    bounds = (left.minimum, left.maximum, right.minimum, right.maximum)
    if left.nan or right.nan:
        outcomes |= _TRUE if symbol == "<>" else _FALSE
    if any(each is None for each in bounds):
        return outcomes | _TRUE | _FALSE
    low, high, least, most = bounds
    try:
        match symbol:
            case "<":
                can_hold, can_fail = low < most, high >= least
            case "<=":
                can_hold, can_fail = low <= most, high > least
            case ">":
                can_hold, can_fail = high > least, low <= most
            case ">=":
                can_hold, can_fail = high >= least, low < most
            case _:
                can_hold = low <= most and least <= high
                can_fail = not (low == high == least == most)
                if symbol == "<>":
                    can_hold, can_fail = can_fail, can_hold
    except TypeError:
        return _ANY
    return outcomes | (_TRUE if can_hold else 0) | (_FALSE if can_fail else 0)
