"""Filters that Spark hands down, as expressions that the daemon applies.

Only what gives exactly Spark's rows is taken: NaN is larger than any number and equal to itself,
and a comparison with null is not true. All other filters stay with Spark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql import datasource as ds

from ..client.reading import substrait
from ..errors import UsageError
from .casting import CASTING_ERRORS

_TEXT: dict[type[ds.Filter], Callable[..., Any]] = {
    ds.StringStartsWith: pc.starts_with,
    ds.StringEndsWith: pc.ends_with,
    ds.StringContains: pc.match_substring,
}


class _Unsuited(Exception):
    """A filter cannot be applied exactly."""


@dataclass(frozen=True, slots=True)
class PushedFilter:
    """A filter that a client takes for an expression. It goes to every task."""

    plan: bytes
    """The Substrait extended expression."""

    @classmethod
    def from_text(cls, text: str) -> PushedFilter:
        """Return the filter that `filter_option` wrote.

        Raises
        ------
        UsageError
            If it is none.
        """
        try:
            return cls(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        except ValueError:
            raise UsageError(
                "option 'filter' is what splitarrow.pipeline.filter_option returns"
            ) from None

    def to_substrait(self, schema: pa.Schema) -> pa.Buffer:
        """Return the expression; it has its own schema, to which the daemon casts."""
        del schema
        return pa.py_buffer(self.plan)


def filter_option(expression: Any, schema: pa.Schema) -> str:
    """Return the text for the option ``filter``, which the daemon applies.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        Which rows to read.
    schema : pyarrow.Schema
        The columns that it uses, with the types that it takes them for.

    Raises
    ------
    UsageError
        If it is no expression, or does not suit the schema.
    """
    return substrait("the schema", schema, expression)


def expression_for(found: ds.Filter, schema: pa.Schema) -> Any:
    """Return the expression (``pyarrow.compute.Expression``) that keeps exactly a filter's rows.

    Parameters
    ----------
    found : pyspark.sql.datasource.Filter
        The filter.
    schema : pyarrow.Schema
        The columns as Spark sees them.

    Returns
    -------
    Expression or None
        None if there is none.
    """
    try:
        expression, _ = _expression(found, schema)
        pushed_filter([(expression, columns_of(found))], schema)
    except (_Unsuited, *CASTING_ERRORS):
        return None
    return expression


def columns_of(found: ds.Filter) -> list[str]:
    """Return the names of the columns that a filter looks at."""
    inner: Any = found.child if isinstance(found, ds.Not) else found
    return [inner.attribute[0]]


def pushed_filter(taken: Iterable[tuple[Any, list[str]]], schema: pa.Schema) -> PushedFilter:
    """Return the conjunction of expressions.

    Parameters
    ----------
    taken : iterable of (expression, column names)
        At least one.
    schema : pyarrow.Schema
        The columns as Spark sees them; the daemon casts its own to these.
    """
    joined: Any = None
    names: list[str] = []
    for expression, columns in taken:
        joined = expression if joined is None else joined & expression
        names += columns
    small = pa.schema([schema.field(name) for name in dict.fromkeys(names)])
    return PushedFilter(bytes(memoryview(joined.to_substrait(small))))


def _expression(found: ds.Filter, schema: pa.Schema) -> tuple[Any, Any]:
    """Return the expression for a filter, and that for its negation."""
    if isinstance(found, ds.Not):
        plain, negated = _expression(found.child, schema)
        return negated, plain
    inner: Any = found
    path: tuple[str, ...] = inner.attribute
    if len(path) != 1 or len(schema.get_all_field_indices(path[0])) != 1:
        raise _Unsuited("not one plain column")
    column, kind = pc.field(path[0]), schema.field(path[0]).type
    if isinstance(found, ds.IsNull):
        return column.is_null(), column.is_valid()
    if isinstance(found, ds.IsNotNull):
        return column.is_valid(), column.is_null()
    if isinstance(found, ds.In):
        return _in(column, kind, inner.value)
    if type(found) in _TEXT:
        if not at.is_string(kind):
            raise _Unsuited("not text")
        kept = _TEXT[type(found)](column, inner.value)
        return kept, ~kept
    if isinstance(found, ds.EqualNullSafe) and inner.value is None:
        return column.is_null(), column.is_valid()
    value = _scalar(inner.value, kind)
    if isinstance(found, ds.EqualNullSafe):
        return column == value, (column != value) | column.is_null()
    kept = _compared(found, column, value)
    return kept, ~kept


def _compared(found: ds.Filter, column: Any, value: Any) -> Any:
    match found:
        case ds.EqualTo():
            return column == value
        case ds.LessThan():
            return column < value
        case ds.LessThanOrEqual():
            return column <= value
        case ds.GreaterThan():
            return ~(column <= value)  # NaN is larger than any number
        case ds.GreaterThanOrEqual():
            return ~(column < value)
        case _:
            raise _Unsuited(f"a filter {type(found).__name__}")


def _in(column: Any, kind: Any, values: Iterable[Any]) -> tuple[Any, Any]:
    listed = list(values)
    present = [_scalar(value, kind) for value in listed if value is not None]
    if not present or at.is_floating(kind):  # -0.0 is 0.0, but not to a hash table
        raise _Unsuited("no values to look up")
    kept = column.isin(pa.array([value.as_py() for value in present], kind))
    if len(present) < len(listed):
        raise _Unsuited("null among the values")
    return kept, ~kept & column.is_valid()


def _scalar(value: Any, kind: Any) -> Any:
    """Return a value of the filter with the type of its column, if that is exact."""
    known = (
        at.is_boolean(kind)
        or at.is_integer(kind)
        or at.is_floating(kind)
        or at.is_string(kind)
        or at.is_date(kind)
        or at.is_timestamp(kind)
        or at.is_decimal(kind)
    )
    if value is None or not known or at.is_boolean(kind) != isinstance(value, bool):
        raise _Unsuited("no value to compare with")
    if isinstance(value, float) and math.isnan(value):
        raise _Unsuited("NaN")
    scalar = pa.scalar(value, kind)
    if scalar.as_py() != value:
        raise _Unsuited("the value does not fit the column")
    return scalar
