"""Filter pushdown: translating filters of Spark to filters that the daemon evaluates.

The filters come from PySpark as objects, or from Spark's JVM as JSON. Spark reads each value
unchanged, or the read fails, so the daemon compares the values as it has them. Only NaN differs:
to Spark it is the largest number.
"""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as at

from ..errors import InvalidDataError, UsageError
from ..filters import decode_filter, encode_filter
from ..filters.binding import bind
from ..filters.literals import kind_of
from ..filters.tree import Call, Column, Literal, combine, make_literal
from ..formats.nested_fields import choose_fields, extend_schema
from ..protocol.request import MAX_FILTER_CHARS
from .types import compares_as_stored

_OPERATORS = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "IN",
    "IsNull": "IS_NULL",
    "IsNotNull": "IS_NOT_NULL",
    "StringStartsWith": "STARTS_WITH",
    "StringEndsWith": "ENDS_WITH",
    "StringContains": "CONTAINS",
}
"""The operators of Spark's JVM by the names of the classes of PySpark."""
_STRING_PREDICATES = {
    "STARTS_WITH": "starts_with",
    "ENDS_WITH": "ends_with",
    "CONTAINS": "contains",
}
_COMPARISONS = ("=", "<", "<=", ">", ">=")
_MAX_VALUES = 1000
"""The largest number of values of the other side of a join that the daemon compares with."""
_PUSHED_KINDS = ("boolean", "integer", "float", "decimal", "text", "date", "timestamp")


class _UnsupportedFilterError(Exception):
    """A filter has no exact translation."""


def filter_option(expression: Any, schema: pa.Schema) -> str:
    """Return the value of the option ``filter``, with which the daemon filters rows.

    Parameters
    ----------
    expression : str, tuples, or expression
        The condition on the rows to read, as `splitarrow.Client.read` takes it.
    schema : pyarrow.Schema
        The columns that the condition uses.

    Raises
    ------
    UsageError
        If the condition is malformed, or does not match the schema.
    """
    return encode_filter(expression, schema)


def parse_option(text: str) -> Any:
    """Return the filter that `filter_option` encoded; raise `UsageError` if it is none."""
    try:
        return decode_filter(text)
    except InvalidDataError:
        raise UsageError(
            "the option 'filter' must be a result of splitarrow.pipeline.filter_option"
        ) from None


def translate_filter(spark_filter: Any, schema: pa.Schema) -> Any:
    """Return the filter that keeps exactly the rows that a filter of PySpark keeps.

    `schema` is that of the dataset. Return None if there is none.
    """
    try:
        return _translate_object(spark_filter, schema)
    except (_UnsupportedFilterError, UsageError):
        return None


def combine_filters(filters: Iterable[Any], schema: pa.Schema) -> str | None:
    """Return the conjunction of some filters as the field ``filter`` of a ticket.

    Return None if there are none, or they are too long for a ticket.
    """
    nodes = list(filters)
    text = encode_filter(combine("and", nodes), schema) if nodes else None
    return None if text is None or len(text) > MAX_FILTER_CHARS else text


def _translate_object(spark_filter: Any, schema: pa.Schema) -> Any:
    name = type(spark_filter).__name__
    if name == "Not":
        return Call("not", (_translate_object(spark_filter.child, schema),))
    if name not in _OPERATORS:
        raise _UnsupportedFilterError(f"the filter {name} is unknown")
    value = getattr(spark_filter, "value", None)
    return _translate(_OPERATORS[name], spark_filter.attribute, value, schema)


def _translate(operator: str, path: tuple[str, ...], value: Any, schema: pa.Schema) -> Any:
    """Return the filter that applies an operator of Spark to a column and a value.

    `value` is a sequence for ``IN``, and unused for ``IS_NULL`` and ``IS_NOT_NULL``.
    """
    column = Column(".".join(path))
    field = _find_field(path, schema)
    data_type = field.type
    if operator not in ("IS_NULL", "IS_NOT_NULL") and not _compares_as_stored(path, field, schema):
        raise _UnsupportedFilterError("Spark compares its values in another way")
    match operator:
        case "IS_NULL":
            tree = Call("is null", (column,))
        case "IS_NOT_NULL":
            tree = Call("not", (Call("is null", (column,)),))
        case "IN":
            if at.is_floating(data_type):
                raise _UnsupportedFilterError("-0.0 equals 0.0, but their hashes differ")
            values = [_make_literal(each, data_type) for each in value]
            tree = Call("in", (column, *values))
        case "<=>" if value is None:
            tree = Call("is null", (column,))
        case "<=>":
            equal = Call("=", (column, _make_literal(value, data_type)))
            tree = Call("is true", (equal,))
        case _ if operator in _STRING_PREDICATES:
            tree = Call(_STRING_PREDICATES[operator], (column, Literal(value)))
        case _ if operator in _COMPARISONS:
            if value is None:
                raise _UnsupportedFilterError("it compares with null")
            literal = _make_literal(value, data_type)
            if operator in (">", ">="):  # true for NaN, which is less than nothing
                opposite = {">": "<=", ">=": "<"}[operator]
                tree = Call("not", (Call(opposite, (column, literal)),))
            else:
                tree = Call(operator, (column, literal))
        case _:
            raise _UnsupportedFilterError(f"the operator {operator} is unknown")
    bind(tree, _extend(schema, column.name))
    return tree


def _compares_as_stored(path: tuple[str, ...], field: pa.Field[Any], schema: pa.Schema) -> bool:
    index = schema.get_field_index(path[0])
    if index < 0:
        return compares_as_stored(field)  # the option columns names a field of a struct
    return compares_as_stored(schema.field(index), path[1:])


def _find_field(path: tuple[str, ...], schema: pa.Schema) -> pa.Field[Any]:
    """Return a column, or a field of a struct as a column."""
    name = ".".join(path)
    extended = _extend(schema, name)
    found = extended.get_all_field_indices(name)
    if len(found) != 1 or any("." in part for part in path):
        raise _UnsupportedFilterError("it does not refer to exactly one column")
    return extended.field(found[0])


def _extend(schema: pa.Schema, name: str) -> pa.Schema:
    return extend_schema(schema, choose_fields(schema, [name]))


def _make_literal(value: Any, data_type: Any) -> Literal:
    """Return the operand of a filter, if Spark has values of its type in the column."""
    kind = kind_of(data_type)
    if kind not in _PUSHED_KINDS:
        raise _UnsupportedFilterError(f"values of the type {data_type} are not compared")
    if (kind == "boolean") != isinstance(value, bool) and value is not None:
        raise _UnsupportedFilterError(f"{value!r} is not comparable to {data_type}")
    if isinstance(value, float) and math.isnan(value):
        raise _UnsupportedFilterError("Spark finds NaN equal to NaN")
    if isinstance(value, datetime.datetime):
        is_local = kind != "timestamp" or data_type.tz is None
        if is_local != (value.tzinfo is None):
            raise _UnsupportedFilterError("it mixes timestamps with and without a time zone")
    return make_literal(value)


_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)

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

    `schema` is that of the dataset. Return which are chosen, and their conjunction as the field
    ``filter`` of a ticket; None if there are none.
    """
    translated = [_try_translate(predicate, schema) for predicate in predicates]
    text = combine_filters((each for each in translated if each is not None), schema)
    if text is None:
        return [False] * len(predicates), None
    return [each is not None for each in translated], text


def push_runtime(
    predicates: Sequence[Mapping[str, Any] | None], filter: str | None, schema: pa.Schema
) -> str | None:
    """Return a filter that also keeps only rows that may satisfy the predicates of a join.

    `filter` is one as the field of a ticket. The predicates are ``IN`` with the values of the other
    side. If there are many of them, only the smallest and the largest are used. Spark joins the
    rows, so that a predicate without translation is left out.
    """
    for predicate in predicates:
        for candidate in _shorten(predicate):
            added = _try_translate(candidate, schema)
            parts = [] if filter is None else [decode_filter(filter)]
            text = None if added is None else combine_filters([*parts, added], schema)
            if text is not None:
                filter = text
                break
    return filter


def _shorten(predicate: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield an ``IN`` predicate, and then the range of its values, as predicates."""
    if predicate is None or predicate["operator"] != "IN":
        return
    column, *operands = predicate["operands"]
    present = [operand for operand in operands if operand.get("value") is not None]
    if len(present) <= _MAX_VALUES:
        yield {"operator": "IN", "operands": [column, *present]}
    try:
        bounds = min(present, key=_literal), max(present, key=_literal)
    except (_UnsupportedFilterError, ValueError, OverflowError):
        return
    limits = zip((">=", "<="), bounds, strict=True)
    yield {
        "operator": "AND",
        "operands": [{"operator": each, "operands": [column, bound]} for each, bound in limits],
    }


def has_no_value(predicates: Sequence[Mapping[str, Any] | None]) -> bool:
    """Return whether the other side of a join has no value, so that no row has a match."""
    return any(
        predicate is not None
        and predicate["operator"] == "IN"
        and all("type" in each and each["value"] is None for each in predicate["operands"][1:])
        for predicate in predicates
    )


def _try_translate(predicate: Mapping[str, Any] | None, schema: pa.Schema) -> Any:
    if predicate is None:
        return None
    try:
        return _translate_predicate(predicate, schema)
    except (_UnsupportedFilterError, UsageError, ValueError, OverflowError):
        return None


def _translate_predicate(predicate: Mapping[str, Any], schema: pa.Schema) -> Any:
    """Return the filter of a predicate."""
    operator, operands = predicate["operator"], predicate["operands"]
    if operator in ("AND", "OR"):
        parts = [_translate_predicate(each, schema) for each in operands]
        return combine(operator.lower(), parts)
    return _translate_simple(operator, operands, schema)


def _translate_simple(
    operator: str, operands: Sequence[Mapping[str, Any]], schema: pa.Schema
) -> Any:
    """Return the filter of a predicate about one column."""
    first, *rest = operands
    if operator == "NOT":
        if "operator" not in first or first["operator"] in ("AND", "OR"):
            raise _UnsupportedFilterError("it has no translation")
        return Call("not", (_translate_simple(first["operator"], first["operands"], schema),))
    if operator in _MIRRORED and "column" not in first and "column" in rest[0]:
        operator, first, rest = _MIRRORED[operator], rest[0], [first]
    if "column" not in first:
        raise _UnsupportedFilterError("it has no translation")
    values = [_literal(operand) for operand in rest]
    if operator == "<>":
        return Call("not", (_translate("=", (first["column"],), values[0], schema),))
    value = values if operator == "IN" or not values else values[0]
    return _translate(operator, (first["column"],), value, schema)


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
