"""Filters that are written as SQL conditions, such as ``delay > 60 AND carrier = 'AA'``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from ..errors import UsageError
from .binding import FLOAT_FUNCTIONS
from .literals import parse_time, parse_timestamp
from .tree import DAY, Call, Column, Instant, Literal, combine, refuse

_DIALECT: Final = "duckdb"
_COMPARISONS: Final[Mapping[Any, str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
}
_BINARY: Final[Mapping[Any, str]] = {
    **_COMPARISONS,
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}
_UNARY: Final[Mapping[Any, str]] = {exp.Not: "not", exp.IsNan: "isnan", exp.Abs: "abs"}
_INSTANTS: Final = {
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
    "DATETIME": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMPTZ": "timestamptz",
    "TIME": "time",
}
"""The kinds of literals such as ``DATE '2026-01-31'``."""
_ESCAPE_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")
_UNITS: Final = {
    "WEEK": 7 * DAY,
    "DAY": DAY,
    "HOUR": DAY // 24,
    "MINUTE": DAY // 1440,
    "SECOND": 10**9,
    "MILLISECOND": 10**6,
    "MICROSECOND": 10**3,
    "NANOSECOND": 1,
}
_SPAN: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-z]+?)s?(?=[\s\d+-]|$)", re.IGNORECASE)


def parse_sql(text: str) -> Any:
    """Return the tree of a SQL condition.

    Raises `UsageError` if the condition is malformed, or uses SQL that filters do not have.

    Examples
    --------
    >>> from splitarrow.filters.tree import describe
    >>> describe(parse_sql("delay > 60 AND carrier IN ('AA', 'BB')"))
    "and(delay > 60, in(carrier, 'AA', 'BB'))"
    """
    try:
        statements = sqlglot.parse(text, dialect=_DIALECT)
    except (SqlglotError, RecursionError) as error:
        raise UsageError(f"the filter {text!r} is malformed{explain_error(error)}") from None
    if len(statements) != 1 or statements[0] is None:
        raise UsageError(f"the filter {text!r} is malformed; expected one condition")
    try:
        return _convert(statements[0])
    except RecursionError:
        raise UsageError("the filter is nested too deeply") from None


def explain_error(error: Exception) -> str:
    """Return the place and the reason of a syntax error, to append to a message.

    The text of sqlglot's own error has escape codes that underline the place.
    """
    errors: list[Any] = getattr(error, "errors", None) or [{}]
    reason = str(errors[0].get("description") or error).rstrip(".")
    if reason.startswith("Required keyword"):
        reason = "a value is missing"
    highlight = errors[0].get("highlight")
    return f"{f' near {highlight!r}' if highlight else ''}: {_ESCAPE_CODE.sub('', reason)}"


def _convert(node: Any) -> Any:
    """Return the tree of a node of SQL."""
    tree = _convert_positive(node)
    # Versions of sqlglot differ: NOT is a node of its own, or an argument of the comparison.
    return Call("not", (tree,)) if node.args.get("negate") else tree


def _convert_positive(node: Any) -> Any:
    position = _find_position(node)
    match node:
        case exp.Paren():
            return _convert(node.this)
        case exp.Column() | exp.Identifier() | exp.Dot():
            quoted = (
                isinstance(node, exp.Column)
                and len(node.parts) == 1
                and bool(node.this.args.get("quoted"))
            )
            return Column(_name_column(node), position, quoted)
        case exp.And() | exp.Or():
            function = "and" if isinstance(node, exp.And) else "or"
            return combine(function, list(map(_convert, node.flatten())))
        case exp.Between():
            operand, low, high = map(_convert, (node.this, node.args["low"], node.args["high"]))
            parts = [Call(">=", (operand, low), position), Call("<=", (operand, high), position)]
            return Call("and", tuple(parts))
        case exp.In() if node.expressions:
            values = (_convert_nullable(each) for each in node.expressions)
            return Call("in", (_convert(node.this), *values), position)
        case exp.Is():
            return _convert_is(node)
        case exp.NullSafeEQ() | exp.NullSafeNEQ():
            equal = _equal_or_both_null(*map(_convert_nullable, (node.this, node.expression)))
            return equal if isinstance(node, exp.NullSafeEQ) else Call("not", (equal,))
        case exp.Escape():
            _refuse_sql(node, "has an ESCAPE clause, which is not supported")
        case exp.Coalesce():
            return Call("coalesce", tuple(map(_convert, (node.this, *node.expressions))), position)
        case _ if type(node) in _BINARY:
            arguments = (_convert(node.this), _convert(node.expression))
            return Call(_BINARY[type(node)], arguments, position)
        case _ if type(node) in _UNARY:
            return Call(_UNARY[type(node)], (_convert(node.this),), position)
        case exp.Func() if node.sql_name().lower() in FLOAT_FUNCTIONS:
            parts = [each for each in (node.this, node.args.get("expression")) if each is not None]
            return Call(node.sql_name().lower(), tuple(map(_convert, parts)), position)
        case exp.Neg() if not isinstance(node.this, exp.Literal):
            return Call("negate", (_convert(node.this),), position)
        case exp.Null():
            _refuse_sql(node, "is never equal to a value; use IS NULL")
        case _:
            return Literal(_convert_value(node), position)


def _convert_nullable(node: Any) -> Any:
    """Return the tree of a node that may be NULL."""
    return Literal(None) if isinstance(node, exp.Null) else _convert(node)


def _convert_is(node: Any) -> Any:
    argument = _convert_nullable(node.this)
    match node.expression:
        case exp.Null():
            return Call("is null", (argument,), _find_position(node))
        case exp.Boolean():
            function = "is true" if node.expression.this else "is false"
            return Call(function, (argument,), _find_position(node))
        case _:
            _refuse_sql(node, "is not supported; expected IS NULL, IS TRUE or IS FALSE")


def _equal_or_both_null(left: Any, right: Any) -> Any:
    """Return the condition that two values are equal or both null. It is never null itself."""
    null = Call("and", (Call("is null", (left,)), Call("is null", (right,))))
    return Call("or", (Call("is true", (Call("=", (left, right)),)), null))


def _convert_value(node: Any) -> Any:
    """Return the value of a literal."""
    match node:
        case exp.Literal(is_string=True) | exp.RawString():
            return str(node.this)
        case exp.Literal():
            return _convert_number(str(node.this))
        case exp.Boolean():
            return bool(node.this)
        case exp.Neg():
            value = _convert_value(node.this)
            # The minus sign of Python rounds a decimal.
            return value.copy_negate() if isinstance(value, Decimal) else -value
        case exp.Cast() if node.to.this.name in _INSTANTS:
            return _convert_instant(node, _INSTANTS[node.to.this.name])
        case exp.Cast() if node.to.this.name in ("INTERVAL", "UUID"):
            text = str(_convert_value(node.this))
            return text if node.to.this.name == "UUID" else _convert_interval(node, text)
        case exp.Cast() if "BINARY" in node.to.this.name:
            return str(_convert_value(node.this))
        case exp.Interval():
            unit = "" if node.unit is None else f" {node.unit.name}"
            return _convert_interval(node, f"{node.this.name}{unit}")
        case _:
            _refuse_sql(node, "is not supported here; expected a value")


def _convert_number(text: str) -> Any:
    """Return the exact number."""
    return int(text) if text.isdecimal() else Decimal(text)


def _convert_instant(node: Any, kind: str) -> Instant:
    text = str(_convert_value(node.this))
    if kind == "time":
        nanoseconds = parse_time(text)
    else:
        nanoseconds, has_offset = parse_timestamp(text.strip())
        if kind == "date" and nanoseconds is not None:
            nanoseconds = nanoseconds // DAY * DAY
        elif has_offset:
            kind = "timestamptz"
    if nanoseconds is None:
        _refuse_sql(node, f"is not a {kind}; expected ISO 8601, as in '2026-01-05 12:30:00'")
    return Instant(kind, nanoseconds)


def _convert_interval(node: Any, text: str) -> Instant:
    """Return the length of an interval of units that always have the same length."""
    total, position = 0, 0
    while match := _SPAN.match(text, position):
        unit = _UNITS.get(match[2].upper())
        if unit is None:
            break
        total += int(Decimal(match[1]) * unit)
        position = match.end()
    if not position or text[position:].strip():
        _refuse_sql(node, "is not supported; expected weeks, days, hours, minutes or seconds")
    return Instant("duration", total)


def _name_column(node: Any) -> str:
    """Return the name of a column or a nested field. Dots separate the parts."""
    if isinstance(node, exp.Column):
        return ".".join(part.name for part in node.parts)
    if isinstance(node, exp.Dot):
        return f"{_name_column(node.this)}.{node.expression.name}"
    return str(node.name)


def _find_position(node: Any) -> int | None:
    """Return the index of the first character of a node, as far as the parser knows it."""
    starts: list[int] = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return min(starts, default=None)


def _refuse_sql(node: Any, problem: str) -> NoReturn:
    problem = f"{node.sql(dialect=_DIALECT)} {problem}"
    hint = "a pyarrow.compute expression can express more"
    refuse(f"{problem}; {hint}", Column("", _find_position(node)))
