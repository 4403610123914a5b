"""Filters that are written as SQL conditions, such as ``delay > 60 AND carrier = 'AA'``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from ..errors import UsageError
from .comparisons import Operand, column, combine, compare, convert, is_in, literal

_DIALECT = "duckdb"
_COMPARISONS = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: operator.truediv,
}
_TEXT_TESTS: dict[Any, Callable[..., Any]] = {
    exp.StartsWith: pc.starts_with,
    exp.EndsWith: pc.ends_with,
    exp.Contains: pc.match_substring,
}
_TYPES = {
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIME": pa.time64("us"),
}
"""The types of literals such as ``DATE '2026-01-31'``."""


def parse_sql_filter(text: str, schema: pa.Schema) -> Any:
    """Return the expression of a SQL condition.

    Raises `UsageError` if the condition is malformed, names a missing column, or uses SQL without
    an equivalent.

    Examples
    --------
    >>> schema = pa.schema([("delay", pa.int16()), ("carrier", pa.string())])
    >>> parse_sql_filter("delay > 60 AND carrier IN ('AA', 'BB')", schema)
    <pyarrow.compute.Expression ((delay > 60) and ((carrier == "AA") or (carrier == "BB")))>
    """
    try:
        statements = sqlglot.parse(text, dialect=_DIALECT)
    except ParseError as error:
        details = error.errors[0] if error.errors else {}
        reason = str(details.get("description") or error).rstrip(".")
        if reason.startswith("Required keyword"):
            reason = "a value is missing"
        near = f" near {details['highlight']!r}" if details.get("highlight") else ""
        raise UsageError(f"the filter {text!r} is malformed{near}: {reason}") from None
    except SqlglotError as error:
        raise UsageError(f"the filter {text!r} is malformed: {error}") from None
    if len(statements) != 1 or statements[0] is None:
        raise UsageError(f"the filter {text!r} is malformed; expected one condition")
    return _Translation(schema).condition(statements[0])


class _Translation:
    """Translates the nodes of a condition on the columns of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: Any) -> Any:
        """Return the expression of a node that is true, false or null."""
        expression = self._condition(node)
        # Versions of sqlglot differ: NOT is a node of its own, or an argument of the comparison.
        return ~expression if node.args.get("negate") else expression

    def _condition(self, node: Any) -> Any:
        match node:
            case exp.Paren():
                return self.condition(node.this)
            case exp.And():
                return combine(operator.and_, list(map(self.condition, node.flatten())))
            case exp.Or():
                return combine(operator.or_, list(map(self.condition, node.flatten())))
            case exp.Not():
                return ~self.condition(node.this)
            case exp.Between():
                operand = self.operand(node.this)
                low, high = self.operand(node.args["low"]), self.operand(node.args["high"])
                return compare(">=", operand, low) & compare("<=", operand, high)
            case exp.In() if node.expressions:
                values = [self._value(item) for item in node.expressions]
                return is_in(self.operand(node.this), values)
            case exp.Is():
                return self._is(node)
            case exp.Like():
                return self._like(node)
            case exp.StartsWith() | exp.EndsWith() | exp.Contains():
                test = _TEXT_TESTS[type(node)]
                return test(self._text(node.this), pattern=str(self._value(node.expression)))
            case exp.IsNan():
                operand = self.operand(node.this)
                return pc.is_nan(operand.cast(operand.type))
            case _ if type(node) in _COMPARISONS:
                left, right = self.operand(node.this), self.operand(node.expression)
                return compare(_COMPARISONS[type(node)], left, right)
            case _:
                operand = self.operand(node)
                if not pa.types.is_boolean(operand.type):
                    raise _unsupported(node, "is not a condition")
                return operand.cast(operand.type)

    def operand(self, node: Any) -> Operand:
        """Return the operand of a node that has a value."""
        match node:
            case exp.Paren():
                return self.operand(node.this)
            case exp.Column() | exp.Identifier():
                return column(_column_name(node), self._schema)
            case _ if type(node) in _ARITHMETIC:
                return self._arithmetic(node)
            case _:
                return literal(self._value(node))

    def _value(self, node: Any) -> Any:
        """Return the Python value of a literal."""
        match node:
            case exp.Paren():
                return self._value(node.this)
            case exp.Literal(is_string=True) | exp.RawString():
                return node.this
            case exp.Literal():
                return float(node.this) if any(c in node.this for c in ".eE") else int(node.this)
            case exp.Boolean():
                return bool(node.this)
            case exp.Neg():
                return -self._value(node.this)
            case exp.Cast() if node.to.this.name in _TYPES:
                return convert(self._value(node.this), _TYPES[node.to.this.name]).as_py()
            case exp.Null():
                raise _unsupported(node, "is never equal to a value; use IS NULL")
            case _:
                raise _unsupported(node, "is not supported here; expected a value")

    def _is(self, node: Any) -> Any:
        if isinstance(node.expression, exp.Null):
            operand = self.operand(node.this)
            return pc.is_null(operand.cast(operand.type))
        if isinstance(node.expression, exp.Boolean):
            # Unlike "=", IS is false for null.
            operand = self.condition(node.this)
            value = operand if node.expression.this else ~operand
            return value & pc.is_valid(operand)
        raise _unsupported(node, "is not supported; expected IS NULL, IS TRUE or IS FALSE")

    def _like(self, node: Any) -> Any:
        """Translate LIKE with wildcards at the ends of the pattern only."""
        pattern = str(self._value(node.expression))
        text = pattern.strip("%")
        if "%" in text or "_" in text or "\\" in text:
            raise _unsupported(node, "has a wildcard inside of its pattern; use '%' at its ends")
        operand = self._text(node.this)
        if pattern == text:
            return operand == text
        if pattern.startswith("%") and pattern.endswith("%"):
            return pc.match_substring(operand, pattern=text)
        test = pc.ends_with if pattern.startswith("%") else pc.starts_with
        return test(operand, pattern=text)

    def _text(self, node: Any) -> Any:
        operand = self.operand(node)
        if not (pa.types.is_string(operand.type) or pa.types.is_large_string(operand.type)):
            raise _unsupported(node, f"has the type {operand.type}; expected text")
        return operand.cast(operand.type)

    def _arithmetic(self, node: Any) -> Operand:
        left, right = self.operand(node.this), self.operand(node.expression)
        for operand in (left, right):
            if not (pa.types.is_integer(operand.type) or pa.types.is_floating(operand.type)):
                raise _unsupported(node, f"computes with a value of the type {operand.type}")
        if left.expression is None and right.expression is None:
            try:
                return literal(_ARITHMETIC[type(node)](left.value, right.value))
            except ZeroDivisionError:
                raise _unsupported(node, "divides by zero") from None
        integers = pa.types.is_integer(left.type) and pa.types.is_integer(right.type)
        exact = integers and not isinstance(node, exp.Div)
        target: Any = pa.int64() if exact else pa.float64()
        return Operand(target, _ARITHMETIC[type(node)](left.cast(target), right.cast(target)))


def _column_name(node: Any) -> str:
    """Return the name of a column. Dots are part of it."""
    if isinstance(node, exp.Column):
        return ".".join(part.name for part in node.parts)
    return str(node.name)


def _unsupported(node: Any, problem: str) -> UsageError:
    return UsageError(
        f"the filter is invalid: {node.sql(dialect=_DIALECT)} {problem}"
        "; a pyarrow.compute expression can express more"
    )
