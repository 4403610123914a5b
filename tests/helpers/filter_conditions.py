"""Conditions as trees, and how each kind of filter is written."""

from __future__ import annotations

import datetime as dt
import functools
import operator
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from .filter_tables import DAY, SECOND, Column, make_array, to_datetime

STYLES = ("sql", "tuples", "pyarrow", "polars")
SYMBOLS = ("=", "<>", "<", "<=", ">", ">=")
FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS = ("int", "decimal", "float")
_INSTANTS = ("date", "timestamp")
_KEYWORDS = {"order", "row", "union"}


Path = tuple[str, ...]
Columns = Mapping[Path, Column]


class NotWritableError(Exception):
    """A style cannot express a condition."""


# --- trees -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """A literal."""

    family: str
    """The kind of the value, as of a column, or ``none``."""
    value: Any
    """The value as a `Column` has it; a number may be an int, a Decimal or a float."""
    form: Any = None
    """How it is written: a variant in SQL, or the type of a scalar of pyarrow."""


@dataclass(frozen=True)
class Reference:
    """A column, or a field of structs."""

    path: Path


@dataclass(frozen=True)
class Arithmetic:
    """The sum, difference, product or quotient of two operands."""

    symbol: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Comparison:
    """Two operands that are compared; ``distinct`` and ``same`` are those that are never null."""

    symbol: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Among:
    """The test whether a list of values contains a column."""

    operand: Any
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True)
class Between:
    operand: Any
    low: Value
    high: Value
    negated: bool = False


@dataclass(frozen=True)
class NullTest:
    operand: Reference
    negated: bool = False
    counts_nan: bool = False
    """Whether a NaN counts as null, an option of pyarrow."""


@dataclass(frozen=True)
class NanTest:
    operand: Reference


@dataclass(frozen=True)
class TextTest:
    """LIKE, ILIKE, starts_with, ends_with or contains."""

    function: str
    operand: Reference
    text: str
    negated: bool = False


@dataclass(frozen=True)
class Truth:
    """A column of booleans."""

    operand: Reference


@dataclass(frozen=True)
class TruthTest:
    """IS [NOT] TRUE, IS [NOT] FALSE."""

    condition: Any
    value: bool
    negated: bool


@dataclass(frozen=True)
class Not:
    condition: Any


@dataclass(frozen=True)
class Junction:
    """Conditions that must all hold (``and``), or of which one must hold (``or``)."""

    symbol: str
    conditions: tuple[Any, ...]


def list_leaves(condition: Any) -> list[Any]:
    """Return the conditions that contain no other."""
    match condition:
        case Junction(conditions=conditions):
            return [leaf for each in conditions for leaf in list_leaves(each)]
        case Not(condition=inner) | TruthTest(condition=inner):
            return list_leaves(inner)
        case _:
            return [condition]


def list_operands(leaf: Any) -> list[Any]:
    """Return the columns, literals and calculations of a leaf, with those in calculations."""
    match leaf:
        case Comparison() | Arithmetic():
            sides = [leaf.left, leaf.right]
            return [*sides, *(each for side in sides for each in list_operands(side))]
        case Among():
            return [leaf.operand, *list_operands(leaf.operand), *leaf.values]
        case Between():
            return [leaf.operand, *list_operands(leaf.operand), leaf.low, leaf.high]
        case Value() | Reference():
            return []
        case _:
            return [leaf.operand]


def list_references(operand: Any) -> list[Reference]:
    """Return the columns of an operand."""
    operands = [operand, *list_operands(operand)]
    return [each for each in operands if isinstance(each, Reference)]


def list_paths(condition: Any) -> set[Path]:
    """Return the paths of the columns that a condition refers to."""
    operands = [each for leaf in list_leaves(condition) for each in list_operands(leaf)]
    return {each.path for each in operands if isinstance(each, Reference)}


def family(operand: Any, columns: Columns) -> str:
    """Return the kind of an operand's values."""
    match operand:
        case Reference(path=path):
            return columns[path].family
        case Arithmetic(symbol=symbol, left=left, right=right):
            kinds = {family(left, columns), family(right, columns)}
            if symbol == "/" or "float" in kinds:
                return "float"
            return "decimal" if "decimal" in kinds else "int"
        case _:
            return operand.family


def join(symbol: str, conditions: Sequence[Any]) -> Any:
    """Return the only condition, or the junction of several."""
    return conditions[0] if len(conditions) == 1 else Junction(symbol, tuple(conditions))


def permitted_outcomes(condition: Any, columns: Columns, style: str) -> set[str]:
    """Return whether rows, a refusal, or either is right."""
    verdicts = [_leaf_outcomes(leaf, columns, style) for leaf in list_leaves(condition)]
    if {"refused"} in verdicts:
        return {"refused"}
    return set().union({"rows"}, *verdicts)


def _leaf_outcomes(leaf: Any, columns: Columns, style: str) -> set[str]:
    operands = list_operands(leaf)
    calculations = [each for each in operands if isinstance(each, Arithmetic)]
    if any(isinstance(each.left, Value) and isinstance(each.right, Value) for each in calculations):
        return {"refused"}
    if isinstance(leaf, (NullTest, NanTest, TextTest, Truth)):
        return {"rows"}
    kinds = {group_of(family(each, columns)) for each in operands}
    in_list = isinstance(leaf, Among)
    if "none" in kinds and not in_list:
        return {"refused"}
    kinds -= {"null", "none"}
    if "nested" in kinds or (len(kinds) > 1 and kinds != {"number", "text"}):
        return {"refused"}
    if kinds == {"number", "text"}:
        return {"rows", "refused"}
    is_decimal = any(
        family(each, columns) == "decimal" for one in calculations for each in list_references(one)
    )
    is_foreign = style == "polars" and (
        "binary" in kinds or getattr(leaf, "symbol", "") in ("distinct", "same")
    )
    is_foreign |= style in ("pyarrow", "polars") and "uuid" in kinds
    return {"rows", "refused"} if is_decimal or is_foreign else {"rows"}


def group_of(kind: str) -> str:
    """Return the kinds that can be compared with each other, by one name."""
    if kind in _NUMBERS:
        return "number"
    return "instant" if kind in _INSTANTS else kind


# --- writing -----------------------------------------------------------------------------------


def render(condition: Any, style: str, lowercase: bool = False) -> Any:
    """Return the filter in a style. Raises `NotWritableError` if the style cannot express it."""
    if style == "sql":
        return _SqlWriter(lowercase).condition(condition)
    if style == "tuples":
        return _write_tuples(condition)
    return _Writer(style).condition(condition)


def to_decimal(value: Any) -> Decimal:
    """Return a number as the shortest decimal that denotes it."""
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


class _SqlWriter:
    def __init__(self, lowercase: bool) -> None:
        self._word: Callable[[str], str] = str.lower if lowercase else str.upper

    def condition(self, node: Any) -> str:
        word = self._word
        match node:
            case Junction(symbol=symbol, conditions=conditions):
                return f" {word(symbol)} ".join(f"({self.condition(each)})" for each in conditions)
            case Not(condition=inner):
                return f"{word('not')} ({self.condition(inner)})"
            case TruthTest(condition=inner, value=value, negated=negated):
                negation = " not" if negated else ""
                return f"({self.condition(inner)}) {word(f'is{negation} {value}')}"
            case Comparison(symbol=symbol, left=left, right=right):
                names = {"distinct": word("is distinct from"), "same": word("is not distinct from")}
                names |= {"<>": "!="} if self._word is str.lower else {}
                return f"{self.operand(left)} {names.get(symbol, symbol)} {self.operand(right)}"
            case Among(operand=operand, values=values, negated=negated):
                listed = ", ".join(map(self.operand, values))
                return f"{self.operand(operand)} {word('not in' if negated else 'in')} ({listed})"
            case Between(operand=operand, low=low, high=high, negated=negated):
                names = word("not between" if negated else "between")
                low, high = self.operand(low), self.operand(high)
                return f"{self.operand(operand)} {names} {low} {word('and')} {high}"
            case NullTest(operand=operand, negated=negated, counts_nan=False):
                return f"{self.operand(operand)} {word('is not null' if negated else 'is null')}"
            case NanTest(operand=operand):
                return f"{word('isnan')}({self.operand(operand)})"
            case TextTest(function="like" | "ilike" as name):
                name = word(f"not {name}" if node.negated else name)
                return f"{self.operand(node.operand)} {name} {quote(node.text)}"
            case TextTest(function=name):
                return f"{word(name)}({self.operand(node.operand)}, {quote(node.text)})"
            case Truth(operand=operand):
                return self.operand(operand)
            case _:
                raise NotWritableError

    def operand(self, node: Any) -> str:
        match node:
            case Reference(path=path):
                return ".".join(map(_identifier, path))
            case Arithmetic(symbol=symbol, left=left, right=right):
                return f"({self.operand(left)} {symbol} {self.operand(right)})"
            case _:
                return self._value(node)

    def _value(self, node: Value) -> str:
        value, form, word = node.value, node.form, self._word
        match node.family:
            case "none":
                return word("null")
            case "bool":
                return word(str(value))
            case "int":
                return str(value)
            case "decimal" | "float":
                return _number_text(value, form)
            case "text":
                return quote(value)
            case "uuid":
                return quote(str(uuid.UUID(bytes=value)))
            case "date":
                text = quote(_date_text(value))
                return f"{word('date')} {text}" if form == "typed" else text
            case "timestamp":
                return self._timestamp(value, str(form))
            case "time":
                text = quote(_time_text(value))
                return f"{word('time')} {text}" if form == "typed" else text
            case "duration" if isinstance(form, str):
                sizes = {"day": DAY, "hour": 3600 * SECOND, "minute": 60 * SECOND, "second": SECOND}
                count = value // sizes[form]
                plural = "" if count == 1 else "s"
                return f"{word('interval')} '{count} {form}{plural}'"
            case _:
                raise NotWritableError

    def _timestamp(self, value: int, form: str) -> str:
        offset = 90 * 60 * SECOND if "offset" in form else 0
        day = _date_text((value + offset) // DAY * DAY)
        text = f"{day}{'T' if form == 'text T' else ' '}{_time_text((value + offset) % DAY)}"
        text += "+01:30" if offset else "Z" if form == "Z" else ""
        names = {"typed": "timestamp ", "typed offset": "timestamptz "}
        return f"{self._word(names.get(form, ''))}{quote(text)}"


def quote(text: str) -> str:
    """Return a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    is_plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name, re.IGNORECASE) and name not in _KEYWORDS
    return name if is_plain else f'"{name}"'


def _number_text(value: Any, form: Any) -> str:
    number = to_decimal(value)
    if not number.is_finite():
        raise NotWritableError
    if form == "exponent":
        sign, digits, exponent = number.as_tuple()
        return f"{'-' if sign else ''}{''.join(map(str, digits))}e{exponent}"
    text = f"{number:f}"
    if len(text) > 60:
        raise NotWritableError
    return text if "." in text else f"{text}.0"


def _date_text(value: int) -> str:
    return to_datetime(value).date().isoformat()


def _time_text(value: int) -> str:
    seconds, rest = divmod(value, SECOND)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest:09}".removesuffix("000") if rest else text


def to_python(node: Value) -> Any:
    """Return a literal as users of Python have it."""
    value = node.value
    match node.family:
        case "date":
            return to_datetime(value).date()
        case "timestamp":
            stamp = to_datetime(value)
            if node.form == "aware":
                zone = dt.timezone(dt.timedelta(minutes=90)) if value % 7 == 0 else dt.UTC
                try:
                    return stamp.replace(tzinfo=dt.UTC).astimezone(zone)
                except OverflowError:
                    raise NotWritableError from None
            return stamp
        case "time":
            seconds, rest = divmod(value, SECOND)
            return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest // 1000)
        case "duration":
            return dt.timedelta(microseconds=value // 1000)
        case "uuid":
            plain = uuid.UUID(bytes=value)
            return str(plain) if node.form == "text" else plain
        case _:
            return value


def _write_tuples(condition: Any) -> Any:
    if isinstance(condition, Junction) and condition.symbol == "or":
        groups = [_write_tuples(each) for each in condition.conditions]
        return [group if isinstance(group, list) else [group] for group in groups]
    if isinstance(condition, Junction):
        group = [_write_tuples(each) for each in condition.conditions]
        if any(isinstance(each, list) for each in group):
            raise NotWritableError
        return group
    match condition:
        case Comparison(symbol=symbol, left=Reference(path=path), right=Value() as value):
            if symbol in SYMBOLS and value.family != "interval":
                return ".".join(path), symbol, _tuple_value(value)
        case Among(operand=Reference(path=path), values=values, negated=negated):
            symbol = "not in" if negated else "in"
            return ".".join(path), symbol, list(map(_tuple_value, values))
        case _:
            pass
    raise NotWritableError


def _tuple_value(value: Value) -> Any:
    return to_python(value)


class _Writer:
    """Writes expressions of pyarrow or of polars."""

    def __init__(self, style: str) -> None:
        self._is_arrow = style == "pyarrow"

    def condition(self, node: Any) -> Any:
        match node:
            case Junction(symbol=symbol, conditions=conditions):
                combine = operator.and_ if symbol == "and" else operator.or_
                return functools.reduce(combine, map(self.condition, conditions))
            case Not(condition=inner):
                return ~self.condition(inner)
            case Comparison(symbol="distinct" | "same" as symbol) if not self._is_arrow:
                left, right = self.operand(node.left), self.operand(node.right)
                return left.ne_missing(right) if symbol == "distinct" else left.eq_missing(right)
            case Comparison(symbol=symbol) if symbol in SYMBOLS:
                return FUNCTIONS[symbol](self.operand(node.left), self.operand(node.right))
            case Among():
                return self._among(node)
            case Between(negated=False) if not self._is_arrow:
                return self.operand(node.operand).is_between(
                    self.operand(node.low), self.operand(node.high)
                )
            case NullTest(operand=operand, negated=negated, counts_nan=counts_nan):
                column = self.operand(operand)
                if self._is_arrow:
                    found = column.is_null(nan_is_null=counts_nan)
                    return (
                        column.is_valid()
                        if negated and not counts_nan
                        else (~found if negated else found)
                    )
                return column.is_not_null() if negated else column.is_null()
            case NanTest(operand=operand):
                column = self.operand(operand)
                return pc.is_nan(column) if self._is_arrow else column.is_nan()
            case TextTest():
                return self._test_text(node)
            case Truth(operand=operand):
                return self.operand(operand)
            case _:
                raise NotWritableError

    def operand(self, node: Any) -> Any:
        match node:
            case Reference(path=path) if self._is_arrow:
                return pc.field(path[0]) if len(path) == 1 else pc.field(path)
            case Reference(path=path):
                column = pl.col(path[0])
                return functools.reduce(lambda one, name: one.struct.field(name), path[1:], column)
            case Arithmetic(symbol=symbol, left=left, right=right):
                return FUNCTIONS[symbol](self.operand(left), self.operand(right))
            case _:
                return pc.scalar(to_scalar(node)) if self._is_arrow else self._literal(node)

    def _literal(self, node: Value) -> Any:
        if node.family in ("uuid", "none"):
            raise NotWritableError
        value = to_python(node)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            value = value.astimezone(dt.UTC)
        try:
            return pl.lit(value)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
            raise NotWritableError from None

    def _among(self, node: Among) -> Any:
        column = self.operand(node.operand)
        found = (
            column.isin(value_set(node))
            if self._is_arrow
            else (column.is_in([each.value for each in node.values]))
        )
        return ~found if node.negated else found

    def _test_text(self, node: TextTest) -> Any:
        column = self.operand(node.operand)
        if node.function in ("like", "ilike"):
            raise NotWritableError
        if self._is_arrow:
            functions = {"starts_with": pc.starts_with, "ends_with": pc.ends_with}
            function: Any = functions.get(node.function, pc.match_substring)
            found = function(column, node.text)
        elif node.function == "contains":
            found = column.str.contains(node.text, literal=True)
        else:
            found = getattr(column.str, node.function)(node.text)
        return ~found if node.negated else found


def to_scalar(node: Value) -> Any:
    """Return a literal as a scalar of pyarrow."""
    if node.family in ("uuid", "none") or (isinstance(node.form, str) and node.family != "decimal"):
        raise NotWritableError
    if node.family == "decimal":
        try:
            return pa.scalar(node.value)
        except pa.ArrowException:
            raise NotWritableError from None
    return make_array([node.value], node.form)[0]


def value_set(node: Among) -> Any:
    """Return the list of values for ``isin`` of pyarrow."""
    types = [each.form for each in node.values if isinstance(each.form, pa.DataType)]
    if not types or isinstance(types[0], pa.BaseExtensionType):
        raise NotWritableError
    return make_array([each.value for each in node.values], types[0])


def simplify(condition: Any) -> list[Any]:
    """Return smaller conditions that contain parts of a condition."""
    match condition:
        case Junction(symbol=symbol, conditions=conditions):
            shorter = [
                join(symbol, conditions[:index] + conditions[index + 1 :])
                for index in range(len(conditions))
            ]
            inner = [
                Junction(symbol, (*conditions[:index], smaller, *conditions[index + 1 :]))
                for index, each in enumerate(conditions)
                for smaller in simplify(each)
            ]
            return [*conditions, *shorter, *inner]
        case Not(condition=inner):
            return [inner, *map(Not, simplify(inner))]
        case TruthTest(condition=inner):
            return [inner, *(replace(condition, condition=each) for each in simplify(inner))]
        case Among(operand=operand, values=values, negated=negated):
            shorter = [values[:index] + values[index + 1 :] for index in range(len(values))]
            fewer = [replace(condition, values=each) for each in shorter if each]
            if negated:
                fewer.insert(0, replace(condition, negated=False))
            return [Comparison("=", operand, each) for each in values] + fewer
        case Between(operand=operand, low=low, high=high, negated=negated):
            smaller = [Comparison(">=", operand, low), Comparison("<=", operand, high)]
            return [*smaller, replace(condition, negated=False)] if negated else smaller
        case Comparison(left=Value() as left, right=right) if condition.symbol in MIRRORED:
            return [Comparison(MIRRORED[condition.symbol], right, left)]
        case Comparison(left=Arithmetic() as left):
            sides = [each for each in (left.left, left.right) if isinstance(each, Reference)]
            return [replace(condition, left=each) for each in sides]
        case TextTest(negated=True):
            return [replace(condition, negated=False)]
        case _:
            return []
