"""Filter pushdown: translating filters of Spark to expressions that the daemon evaluates.

The filters come from PySpark as objects, or from Spark's JVM as JSON.
"""

from __future__ import annotations

import base64
import datetime
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at
from pyspark.sql import datasource as ds

from ..client.filters import serialize_filter
from ..errors import UsageError
from ..protocol.request import MAX_FILTER_CHARS
from .casting import CASTING_ERRORS

_STRING_PREDICATES: dict[type[ds.Filter], Callable[..., Any]] = {
    ds.StringStartsWith: pc.starts_with,
    ds.StringEndsWith: pc.ends_with,
    ds.StringContains: pc.match_substring,
}


class _UnsupportedFilterError(Exception):
    """A filter has no exact translation."""


@dataclass(frozen=True, slots=True)
class PushedFilter:
    """A filter that the daemon evaluates. `Client.read` accepts it in place of an expression."""

    plan: bytes
    """The Substrait extended expression."""

    @classmethod
    def from_text(cls, text: str) -> PushedFilter:
        """Return the filter that `filter_option` encoded.

        Raises `UsageError` if the text is not base64.
        """
        try:
            return cls(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        except ValueError:
            raise UsageError(
                "the option 'filter' must be a result of splitarrow.pipeline.filter_option"
            ) from None

    def to_substrait(self, schema: pa.Schema) -> pa.Buffer:
        """Return the expression. It contains its own schema, to which the daemon casts."""
        del schema
        return pa.py_buffer(self.plan)


def filter_option(expression: Any, schema: pa.Schema) -> str:
    """Return the value of the option ``filter``, with which the daemon filters rows.

    Parameters
    ----------
    expression : pyarrow.compute.Expression
        The condition on the rows to read.
    schema : pyarrow.Schema
        The columns that the expression uses, with the types that it expects.

    Raises
    ------
    UsageError
        If `expression` is not an expression, or does not match the schema.
    """
    return serialize_filter("the schema", schema, expression)


def translate_filter(spark_filter: ds.Filter, schema: pa.Schema) -> Any:
    """Return the expression that keeps exactly the rows that a filter keeps.

    Return None if the filter has no exact translation.
    """
    try:
        expression, _ = _translate(spark_filter, schema)
        combine_filters([(expression, referenced_columns(spark_filter))], schema)
    except (_UnsupportedFilterError, *CASTING_ERRORS):
        return None
    return expression


def referenced_columns(spark_filter: ds.Filter) -> list[str]:
    """Return the names of the columns that a filter uses."""
    operand: Any = spark_filter.child if isinstance(spark_filter, ds.Not) else spark_filter
    return [operand.attribute[0]]


def combine_filters(filters: Iterable[tuple[Any, list[str]]], schema: pa.Schema) -> PushedFilter:
    """Return the conjunction of expressions over columns that the daemon casts to a schema."""
    conjunction: Any = None
    names: list[str] = []
    for expression, columns in filters:
        conjunction = expression if conjunction is None else conjunction & expression
        names += columns
    used = pa.schema([schema.field(name) for name in dict.fromkeys(names)])
    return PushedFilter(bytes(memoryview(conjunction.to_substrait(used))))


def _translate(spark_filter: ds.Filter, schema: pa.Schema) -> tuple[Any, Any]:
    """Return the expression of a filter and that of its negation."""
    if isinstance(spark_filter, ds.Not):
        expression, negation = _translate(spark_filter.child, schema)
        return negation, expression
    operands: Any = spark_filter
    path: tuple[str, ...] = operands.attribute
    if len(path) != 1 or len(schema.get_all_field_indices(path[0])) != 1:
        raise _UnsupportedFilterError("it does not refer to exactly one top-level column")
    column, column_type = pc.field(path[0]), schema.field(path[0]).type
    if isinstance(spark_filter, ds.IsNull):
        return column.is_null(), column.is_valid()
    if isinstance(spark_filter, ds.IsNotNull):
        return column.is_valid(), column.is_null()
    if isinstance(spark_filter, ds.In):
        return _translate_in(column, column_type, operands.value)
    if type(spark_filter) in _STRING_PREDICATES:
        if not at.is_string(column_type):
            raise _UnsupportedFilterError("the column is not a string")
        expression = _STRING_PREDICATES[type(spark_filter)](column, operands.value)
        return expression, ~expression
    if isinstance(spark_filter, ds.EqualNullSafe) and operands.value is None:
        return column.is_null(), column.is_valid()
    value = _exact_scalar(operands.value, column_type)
    if isinstance(spark_filter, ds.EqualNullSafe):
        return column == value, (column != value) | column.is_null()
    expression = _translate_comparison(spark_filter, column, value)
    return expression, ~expression


def _translate_comparison(spark_filter: ds.Filter, column: Any, value: Any) -> Any:
    match spark_filter:
        case ds.EqualTo():
            return column == value
        case ds.LessThan():
            return column < value
        case ds.LessThanOrEqual():
            return column <= value
        case ds.GreaterThan():
            return ~(column <= value)  # true for NaN, unlike column > value
        case ds.GreaterThanOrEqual():
            return ~(column < value)
        case _:
            raise _UnsupportedFilterError(f"the filter {type(spark_filter).__name__} is unknown")


def _translate_in(column: Any, column_type: Any, values: Iterable[Any]) -> tuple[Any, Any]:
    candidates = list(values)
    present = [_exact_scalar(value, column_type) for value in candidates if value is not None]
    if not present:
        raise _UnsupportedFilterError("the list has no values")
    if at.is_floating(column_type):
        raise _UnsupportedFilterError("-0.0 equals 0.0, but their hashes differ")
    expression = column.isin(pa.array([value.as_py() for value in present], column_type))
    if len(present) < len(candidates):
        raise _UnsupportedFilterError("the list contains null")
    return expression, ~expression & column.is_valid()


def _exact_scalar(value: Any, column_type: Any) -> Any:
    """Return the operand of a filter with the type of its column, if no digit is lost."""
    comparable = (
        at.is_boolean(column_type)
        or at.is_integer(column_type)
        or at.is_floating(column_type)
        or at.is_string(column_type)
        or at.is_date(column_type)
        or at.is_timestamp(column_type)
        or at.is_decimal(column_type)
    )
    if not comparable:
        raise _UnsupportedFilterError(f"values of the type {column_type} are not compared")
    if value is None or at.is_boolean(column_type) != isinstance(value, bool):
        raise _UnsupportedFilterError(f"{value!r} is not comparable to {column_type}")
    if isinstance(value, float) and math.isnan(value):
        raise _UnsupportedFilterError("Arrow does not compare NaN as Spark does")
    scalar = pa.scalar(value, column_type)
    if scalar.as_py() != value:
        raise _UnsupportedFilterError(f"{column_type} cannot represent {value!r} exactly")
    return scalar


_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)

_COMPARISONS: dict[str, Callable[..., ds.Filter]] = {
    "=": ds.EqualTo,
    "<=>": ds.EqualNullSafe,
    "<": ds.LessThan,
    "<=": ds.LessThanOrEqual,
    ">": ds.GreaterThan,
    ">=": ds.GreaterThanOrEqual,
    "<>": lambda column, value: ds.Not(ds.EqualTo(column, value)),
    "STARTS_WITH": ds.StringStartsWith,
    "ENDS_WITH": ds.StringEndsWith,
    "CONTAINS": ds.StringContains,
}
_MIRRORED = {"=": "=", "<=>": "<=>", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

_LITERALS: dict[str, Callable[[str], Any]] = {
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": lambda text: struct.unpack("f", struct.pack("f", float(text)))[0],
    "double": float,
    "boolean": lambda text: text == "true",
    "string": str,
    "date": lambda text: (_EPOCH + datetime.timedelta(days=int(text))).date(),
    "timestamp": lambda text: (_EPOCH + int(text) * _MICROSECOND).replace(tzinfo=datetime.UTC),
    "timestamp_ntz": lambda text: _EPOCH + int(text) * _MICROSECOND,
}


def push_predicates(
    predicates: Sequence[Mapping[str, Any] | None], schema: pa.Schema
) -> tuple[list[bool], str | None]:
    """Choose the predicates of a query that the daemon can evaluate exactly as Spark does.

    Return which are chosen, and their conjunction as the field ``filter`` of a ticket; None if
    there are none.
    """
    translated = [_try_translate(predicate, schema) for predicate in predicates]
    pushed = [each for each in translated if each is not None]
    if not pushed:
        return [False] * len(predicates), None
    plan = combine_filters(pushed, schema).plan
    text = base64.urlsafe_b64encode(plan).decode()
    if len(text) > MAX_FILTER_CHARS:
        return [False] * len(predicates), None
    return [each is not None for each in translated], text


def _try_translate(
    predicate: Mapping[str, Any] | None, schema: pa.Schema
) -> tuple[Any, list[str]] | None:
    if predicate is None:
        return None
    try:
        translated = _translate_predicate(predicate, schema)
        combine_filters([translated], schema)
    except (_UnsupportedFilterError, *CASTING_ERRORS):
        return None
    return translated


def _translate_predicate(predicate: Mapping[str, Any], schema: pa.Schema) -> tuple[Any, list[str]]:
    """Return the expression of a predicate, and the columns that it uses."""
    operator, operands = predicate["operator"], predicate["operands"]
    if operator in ("AND", "OR"):
        left, left_columns = _translate_predicate(operands[0], schema)
        right, right_columns = _translate_predicate(operands[1], schema)
        both = left & right if operator == "AND" else left | right
        return both, left_columns + right_columns
    spark_filter = _spark_filter(operator, operands)
    expression = translate_filter(spark_filter, schema)
    if expression is None:
        raise _UnsupportedFilterError("it has no translation")
    return expression, referenced_columns(spark_filter)


def _spark_filter(operator: str, operands: Sequence[Mapping[str, Any]]) -> ds.Filter:
    """Return a predicate about one column as PySpark represents it."""
    first, *rest = operands
    if operator == "NOT":
        if "operator" not in first or first["operator"] in ("AND", "OR"):
            raise _UnsupportedFilterError("it has no translation")
        inner = _spark_filter(first["operator"], first["operands"])
        return inner.child if isinstance(inner, ds.Not) else ds.Not(inner)
    if operator in _MIRRORED and "column" not in first and "column" in rest[0]:
        operator, first, rest = _MIRRORED[operator], rest[0], [first]
    if "column" not in first:
        raise _UnsupportedFilterError("it has no translation")
    column = (first["column"],)
    match operator:
        case "IS_NULL":
            return ds.IsNull(column)
        case "IS_NOT_NULL":
            return ds.IsNotNull(column)
        case "IN":
            return ds.In(column, tuple(_literal(operand) for operand in rest))
        case _ if operator in _COMPARISONS:
            return _COMPARISONS[operator](column, _literal(rest[0]))
        case _:
            raise _UnsupportedFilterError("it has no translation")


def _literal(operand: Mapping[str, Any]) -> Any:
    """Return the value of a literal as PySpark represents it."""
    if "type" not in operand:
        raise _UnsupportedFilterError("it has no translation")
    value, name = operand["value"], operand["type"]
    if value is None:
        return None
    convert = Decimal if name.startswith("decimal(") else _LITERALS.get(name)
    if convert is None:
        raise _UnsupportedFilterError("it has no translation")
    return convert(value)
