"""Predicates of Spark's JVM, as JSON, translated to expressions that the daemon evaluates.

A predicate is ``{"operator": NAME, "operands": [...]}``. An operand is another predicate, a column
``{"column": NAME}``, or a literal ``{"type": NAME, "value": TEXT}`` in Spark's internal form.
"""

from __future__ import annotations

import base64
import datetime
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds

from ...protocol.request import MAX_FILTER_CHARS
from ..casting import CASTING_ERRORS
from .filters import combine_filters, referenced_columns, translate_filter

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


class _UntranslatableError(Exception):
    """A predicate has no exact translation."""


def push_predicates(
    predicates: Sequence[Mapping[str, Any] | None], schema: pa.Schema
) -> tuple[list[bool], str | None]:
    """Choose the predicates that the daemon can evaluate exactly as Spark does.

    Parameters
    ----------
    predicates : sequence of mapping or None
        The predicates of one query, all of which a row must satisfy.
    schema : pyarrow.Schema
        The columns with the types that Spark gives them.

    Returns
    -------
    list of bool
        Which predicates are accepted.
    str or None
        The conjunction of these, as the field ``filter`` of a ticket; None if there are none.
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
        translated = _translate(predicate, schema)
        combine_filters([translated], schema)
    except (_UntranslatableError, *CASTING_ERRORS):
        return None
    return translated


def _translate(predicate: Mapping[str, Any], schema: pa.Schema) -> tuple[Any, list[str]]:
    """Return the expression of a predicate, and the columns that it uses."""
    operator, operands = predicate["operator"], predicate["operands"]
    if operator in ("AND", "OR"):
        left, left_columns = _translate(operands[0], schema)
        right, right_columns = _translate(operands[1], schema)
        both = left & right if operator == "AND" else left | right
        return both, left_columns + right_columns
    spark_filter = _spark_filter(operator, operands)
    expression = translate_filter(spark_filter, schema)
    if expression is None:
        raise _UntranslatableError
    return expression, referenced_columns(spark_filter)


def _spark_filter(operator: str, operands: Sequence[Mapping[str, Any]]) -> ds.Filter:
    """Return a predicate about one column as PySpark represents it."""
    first, *rest = operands
    if operator == "NOT":
        if "operator" not in first or first["operator"] in ("AND", "OR"):
            raise _UntranslatableError
        inner = _spark_filter(first["operator"], first["operands"])
        return inner.child if isinstance(inner, ds.Not) else ds.Not(inner)
    if operator in _MIRRORED and "column" not in first and "column" in rest[0]:
        operator, first, rest = _MIRRORED[operator], rest[0], [first]
    if "column" not in first:
        raise _UntranslatableError
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
            raise _UntranslatableError


def _literal(operand: Mapping[str, Any]) -> Any:
    """Return the value of a literal as PySpark represents it."""
    if "type" not in operand:
        raise _UntranslatableError
    value, name = operand["value"], operand["type"]
    if value is None:
        return None
    convert = Decimal if name.startswith("decimal(") else _LITERALS.get(name)
    if convert is None:
        raise _UntranslatableError
    return convert(value)
