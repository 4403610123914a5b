"""Conditions as trees: drawn at random, and written as each kind of filter."""

from __future__ import annotations

import datetime as dt
import functools
import math
import operator
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from .filter_tables import DAY, FAR, SECOND, TEXTS, UNITS, Column, make_array, to_datetime

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
_KEYWORDS = {"order"}

timestamp: Any = pa.timestamp
duration: Any = pa.duration

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
    kinds = {_group(family(each, columns)) for each in operands}
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


def _group(kind: str) -> str:
    if kind in _NUMBERS:
        return "number"
    return "instant" if kind in _INSTANTS else kind


# --- drawing -----------------------------------------------------------------------------------


def draw_condition(rng: random.Random, columns: Columns, style: str) -> Any:
    """Return a condition that a style can express."""
    drawer = _Drawer(rng, columns, style)
    if rng.random() < 0.04:
        with suppress(NotWritableError):
            mismatch = drawer.mismatch()
            render(mismatch, style)
            return mismatch
    if style == "tuples":
        groups = [
            _join("and", drawer.leaves(rng.choice((1, 1, 1, 2, 3))))
            for _ in range(rng.choice((1, 1, 1, 2, 3)))
        ]
        return _join("or", groups)
    return drawer.tree(rng.choice((0, 0, 0, 1, 1, 2, 3)))


def _join(symbol: str, conditions: Sequence[Any]) -> Any:
    return conditions[0] if len(conditions) == 1 else Junction(symbol, tuple(conditions))


class _Drawer:
    def __init__(self, rng: random.Random, columns: Columns, style: str) -> None:
        self.rng = rng
        self.columns = columns
        self.style = style

    def tree(self, depth: int) -> Any:
        rng = self.rng
        if depth == 0:
            return self.leaf()
        draw = rng.random()
        if draw < 0.2:
            return Not(self.tree(depth - 1))
        if draw < 0.3 and self.style == "sql":
            return TruthTest(self.tree(depth - 1), rng.random() < 0.5, rng.random() < 0.5)
        count = rng.choice((2, 2, 2, 3, 9)) if depth == 1 else 2
        symbol = rng.choice(("and", "or"))
        return Junction(symbol, tuple(self.tree(depth - 1) for _ in range(count)))

    def leaves(self, count: int) -> list[Any]:
        return [self.leaf() for _ in range(count)]

    def leaf(self) -> Any:
        """Return a leaf that the style can express and whose calculations do not overflow."""
        from .filter_oracle import RejectedError, evaluate_leaf

        while True:
            draw = self._pick_leaf()
            try:
                leaf = draw()
                render(leaf, self.style)
                if "rows" in permitted_outcomes(leaf, self.columns, self.style):
                    evaluate_leaf(leaf, self.columns, self.style)
            except (NotWritableError, RejectedError):
                continue
            return leaf

    def _pick_leaf(self) -> Callable[[], Any]:
        is_tuple = self.style == "tuples"
        weights: dict[Callable[[], Any], int] = {
            self._compare_literal: 40,
            self._among: 14,
        }
        if not is_tuple:
            weights |= {
                self._compare_columns: 14,
                self._test_null: 8,
                self._test_text: 9,
                self._truth: 3,
                self._test_nan: 3,
                self._compare_calculation: 7,
            }
        if self.style in ("sql", "polars"):
            weights |= {self._between: 8, self._distinct: 4}
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def _column(self, *families: str) -> Column:
        found = [each for each in self.columns.values() if each.family in families or not families]
        if not found:
            raise NotWritableError
        return self.rng.choice(found)

    def _comparable(self) -> Column:
        kinds = ["int", "decimal", "float", "date", "timestamp", "time", "duration", "text"]
        kinds += ["binary", "uuid", "bool", "null"]
        weights = [8, 7, 7, 4, 9, 3, 3, 6, 3, 2, 1, 1]
        return self._column(self.rng.choices(kinds, weights)[0])

    def _compare_literal(self) -> Any:
        column = self._comparable()
        operand, value = Reference(column.path), self._literal(column)
        symbol = self.rng.choice(SYMBOLS)
        if self.style != "tuples" and self.rng.random() < 0.2:
            return Comparison(symbol, value, operand)
        return Comparison(symbol, operand, value)

    def _compare_columns(self) -> Any:
        left = self._comparable()
        group = _group(left.family)
        others = [each for each in self.columns.values() if _group(each.family) == group]
        right = self.rng.choice(others)
        kinds = {left.family, right.family}
        for each in (left, right):
            if (
                kinds == {"decimal", "float"}
                and each.family == "decimal"
                and (each.type.precision > 15)
            ):
                raise NotWritableError  # its conversion to float64 is not defined to the last bit
        return Comparison(self.rng.choice(SYMBOLS), Reference(left.path), Reference(right.path))

    def _distinct(self) -> Any:
        column = self._comparable()
        value = self._literal(column)
        if value.value != value.value:
            raise NotWritableError
        symbol = self.rng.choice(("distinct", "same"))
        if column.family not in ("float", "null") and self.rng.random() < 0.3:
            others = [each for each in self.columns.values() if each.family == column.family]
            return Comparison(
                symbol, Reference(column.path), Reference(self.rng.choice(others).path)
            )
        return Comparison(symbol, Reference(column.path), value)

    def _among(self) -> Any:
        column = self._comparable()
        if column.family == "null":
            raise NotWritableError
        count = self.rng.choice((1, 2, 3, 3, 10))
        values = [self._member(column) for _ in range(count)]
        if self.rng.random() < 0.2:
            values.append(Value("none", None))
        negated = self.rng.random() < 0.3
        return Among(Reference(column.path), tuple(values), negated)

    def _member(self, column: Column) -> Value:
        if self.style in ("pyarrow", "polars"):
            allowed = ("int", "float", "text") if self.style == "polars" else ()
            known = [each for each in column.values if each is not None]
            if (allowed and column.family not in allowed) or not known:
                raise NotWritableError
            value = self.rng.choice(known)
            if column.family == "text" and self.rng.random() < 0.5:
                value = self.rng.choice(TEXTS)
            return Value(column.family, value, column.type)
        return self._literal(column)

    def _between(self) -> Any:
        column = self._comparable()
        low, high = self._literal(column), self._literal(column)
        negated = self.style == "sql" and self.rng.random() < 0.3
        return Between(Reference(column.path), low, high, negated)

    def _test_null(self) -> Any:
        column = self._column()
        counts_nan = (
            self.style == "pyarrow" and column.family == "float" and self.rng.random() < 0.5
        )
        return NullTest(Reference(column.path), self.rng.random() < 0.5, counts_nan)

    def _test_nan(self) -> Any:
        return NanTest(Reference(self._column("float").path))

    def _truth(self) -> Any:
        return Truth(Reference(self._column("bool").path))

    def _test_text(self) -> Any:
        rng, column = self.rng, self._column("text")
        source = rng.choice([*(each for each in column.values if each), *TEXTS])
        begin = rng.randint(0, len(source))
        part = source[begin : begin + rng.randint(0, 4)]
        function = rng.choice(("starts_with", "ends_with", "contains"))
        negated = False
        if self.style == "sql" and rng.random() < 0.6:
            function = rng.choice(("like", "like", "ilike"))
            letters = [rng.choice((each, each, each, "_", "%")) for each in source]
            part = rng.choice((source, "%" + part + "%", part + "%", "%" + part, "".join(letters)))
            if function == "ilike":
                part = part.upper() if rng.random() < 0.5 else part.lower()
            negated = rng.random() < 0.3
        return TextTest(function, Reference(column.path), part, negated)

    def _compare_calculation(self) -> Any:
        rng = self.rng
        exact = self.style in ("pyarrow", "polars")
        kinds = ("int", "float") if exact or rng.random() < 0.7 else ("int", "decimal")

        def choose() -> Reference:
            column = self._column(*kinds)
            narrow = column.family != "decimal" and column.type.bit_width < 64
            if (
                (narrow and (exact or column.family == "float"))
                or column.type == pa.uint64()
                or (column.family == "decimal" and column.type.precision > 9)
            ):
                raise NotWritableError
            return Reference(column.path)

        left: Any = choose()
        symbol = rng.choice("+-*/" if self.style != "pyarrow" else "+-*")
        right: Any = choose() if rng.random() < 0.3 else self._factor()
        if rng.random() < 0.2:
            left, right = right, left
        calculation = Arithmetic(symbol, left, right)
        kind = family(calculation, self.columns)
        results = {"int": (0, 1, -1, 2, 5, 100), "float": (0.5, 1, 2.5, 0, -1), "decimal": (5, 0)}
        value = rng.choice(results[kind])
        return Comparison(rng.choice(SYMBOLS), calculation, self._number(value))

    def _factor(self) -> Value:
        return self._number(self.rng.choice((1, 2, 5, 100, -3, 0.5, 1.5)))

    def _number(self, value: float) -> Value:
        if isinstance(value, int):
            return Value("int", value, pa.int64())
        if self.style == "sql":
            return Value("decimal", Decimal(repr(value)))
        return Value("float", value, pa.float64())

    def mismatch(self) -> Any:
        """Return a comparison that must be refused, or may be refused."""
        rng, symbol = self.rng, self.rng.choice(SYMBOLS)
        numbers, nested = self._column("int"), self._column("bool", "nested")
        number = Reference(numbers.path)
        choices = [
            (number, Value("date", 20_000 * DAY, pa.date32())),
            (number, Value("time", 5 * SECOND, pa.time32("s"))),
            (Reference(nested.path), Value("int", 5, pa.int64())),
        ]
        if self.style in ("sql", "tuples"):
            choices.append((number, Value("none", None)))
        if self.style == "sql":
            sum_of_literals = Arithmetic(
                rng.choice("+-*/"), Value("int", 2, pa.int64()), Value("int", 1, pa.int64())
            )
            choices += [(number, sum_of_literals), (number, Value("text", "5"))]
        left, right = rng.choice(choices)
        return Comparison(symbol, left, right)

    # --- literals

    def _literal(self, column: Column) -> Value:
        """Return a literal to compare a column with, often close to one of its values."""
        known = [each for each in column.values if each is not None]
        value = self.rng.choice(known) if known and self.rng.random() < 0.7 else None
        return getattr(self, f"_{column.family}_literal")(column, value)

    def _int_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        extremes = [-1, 0, 1, 2, 300, -300, 70_000, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]
        extremes += [2**63, 2**64 - 1]
        if self.style in ("sql", "tuples"):
            extremes += [2**64, 10**20, -(10**20), 10**30]
        number = rng.choice(extremes) if value is None else value + rng.choice((0, 0, 0, 1, -1))
        if self.style in ("pyarrow", "polars"):
            number = min(max(number, -(2**63)), 2**64 - 1)
        if rng.random() < 0.7:
            return Value("int", number, pa.int64() if number < 2**63 else pa.uint64())
        if self.style == "sql" or rng.random() < 0.5:
            part = rng.choice((Decimal("0.5"), Decimal("-0.25"), Decimal("0.001"), Decimal("0.0")))
            return Value("decimal", number + part, rng.choice(("plain", "exponent")))
        small = abs(number) < 2**50
        number = (
            number + rng.choice((0.5, -0.25, 0.0)) if small else rng.choice((0.1, 1e20, 2.0**63))
        )
        return Value("float", number, pa.float64())

    def _decimal_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        number = value if value is not None else Decimal(rng.choice(("0", "5", "-1.5", "4.999")))
        scale = max(column.type.scale, 0)
        with localcontext() as context:
            context.prec = 100
            unit = Decimal(1).scaleb(-scale)
            number = number + rng.choice((0, 0, 0, 1, -1)) * unit
            if rng.random() < 0.3:
                number = number + rng.choice((1, -1, 0)) * unit / rng.choice((2, 10))
        draw = rng.random()
        if draw < 0.3:
            whole = int(number) if rng.random() < 0.7 else rng.choice((0, 1, 5, 2**63, -(2**63)))
            if self.style in ("pyarrow", "polars"):
                whole = min(max(whole, -(2**63)), 2**64 - 1)
            return Value("int", whole, pa.int64() if whole < 2**63 else pa.uint64())
        if draw < 0.5 and self.style != "sql":
            return Value("float", float(number), pa.float64())
        return Value("decimal", number, rng.choice(("plain", "plain", "exponent")))

    def _float_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        width = column.type.bit_width
        is_special = value is None or value != value or math.isinf(value)
        special = (math.nan, math.inf, -math.inf, -0.0)
        if self.style != "sql" and rng.random() < 0.15:
            return Value("float", rng.choice(special), pa.float64())
        if rng.random() < 0.3:
            return Value("int", rng.choice((0, 1, 2, 5, -1, 100, 2048)), pa.int64())
        number: Any = rng.choice((0.1, 0.3, 1.5, -1.0, 5.0, 1.25)) if is_special else value
        if width == 32:
            number = float(str(np.float32(number)))
        if width == 16:
            number = rng.choice((0.1, 0.3, 1.5, -1.0, 5.0, 65504.0, 0.0))
        if self.style == "sql" or (self.style == "tuples" and rng.random() < 0.3):
            form = "plain" if 1e-5 < abs(number) < 1e15 and rng.random() < 0.7 else "exponent"
            return Value("decimal", Decimal(repr(number)), form)
        return Value("float", number, pa.float64())

    def _bool_literal(self, column: Column, value: Any) -> Value:
        return Value("bool", self.rng.random() < 0.5, pa.bool_())

    def _date_literal(self, column: Column, value: Any) -> Value:
        return self._instant_literal(column, value)

    def _timestamp_literal(self, column: Column, value: Any) -> Value:
        return self._instant_literal(column, value)

    def _instant_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        if value is None:
            value = rng.choice((0, 20_513 * DAY, 20_513 * DAY + 5 * 3600 * SECOND, -1000, FAR[0]))
        value += rng.choice((0, 0, 0, 1000, -1000, SECOND, DAY))
        value = min(max(value, FAR[0]), FAR[1])
        is_zoned = column.family == "timestamp" and column.type.tz is not None
        if rng.random() < 0.35:
            form = (
                rng.choice((pa.date32(), pa.date64()))
                if self.style == "pyarrow"
                else (rng.choice(("text", "typed")))
            )
            return Value("date", value // DAY * DAY, form)
        if self.style == "pyarrow":
            unit = rng.choice(list(UNITS))
            value = value // UNITS[unit] * UNITS[unit]
            if unit == "ns" and abs(value) >= 2**63:
                raise NotWritableError
            return Value("timestamp", value, timestamp(unit, "UTC" if is_zoned else None))
        if self.style == "polars":
            return Value("timestamp", value // 1000 * 1000, "aware" if is_zoned else "naive")
        if column.family == "date":
            forms = ["text", "text T", "typed"] if self.style == "sql" else ["naive"]
        elif self.style == "sql":
            forms = ["text", "text T", "typed", "offset", "Z", "typed offset"]
        else:
            forms = ["naive", "aware"]
        form = rng.choice(forms)
        has_nanoseconds = column.family == "timestamp" and column.type.unit == "ns"
        if not (has_nanoseconds and form in ("text", "text T")):
            value = value // 1000 * 1000
        if "offset" in form:
            value = min(max(value, FAR[0] + DAY), FAR[1] - DAY)
        return Value("timestamp", value, form)

    def _time_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        value = rng.choice((0, 3600 * SECOND, 5000)) if value is None else value
        value = min(max(value + rng.choice((0, 0, 1000, -1000, SECOND)), 0), DAY - 1000)
        if self.style == "pyarrow":
            form = rng.choice((pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")))
            return Value("time", value // UNITS[form.unit] * UNITS[form.unit], form)
        return Value("time", value // 1000 * 1000, rng.choice(("text", "typed")))

    def _duration_literal(self, column: Column, value: Any) -> Value:
        rng = self.rng
        value = rng.choice((0, DAY, -DAY, 5 * SECOND)) if value is None else value
        value += rng.choice((0, 0, 1000, -1000, SECOND))
        if self.style == "pyarrow":
            unit = rng.choice(list(UNITS))
            return Value("duration", value // UNITS[unit] * UNITS[unit], duration(unit))
        if self.style == "sql":
            unit, size = rng.choice(
                (("day", DAY), ("hour", 3600 * SECOND), ("minute", 60 * SECOND), ("second", SECOND))
            )
            return Value("duration", value // size * size, unit)
        return Value("duration", value // 1000 * 1000)

    def _text_literal(self, column: Column, value: Any) -> Value:
        return Value(
            "text",
            self.rng.choice(TEXTS) if value is None else value,
            self.rng.choice((pa.string(), pa.string(), pa.large_string())),
        )

    def _binary_literal(self, column: Column, value: Any) -> Value:
        return Value("binary", b"ab" if value is None else value, pa.binary())

    def _uuid_literal(self, column: Column, value: Any) -> Value:
        return Value(
            "uuid",
            uuid.UUID(int=1).bytes if value is None else value,
            self.rng.choice(("text", "object")),
        )

    def _null_literal(self, column: Column, value: Any) -> Value:
        return self.rng.choice((Value("int", 5, pa.int64()), Value("text", "a", pa.string())))


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
                join = operator.and_ if symbol == "and" else operator.or_
                return functools.reduce(join, map(self.condition, conditions))
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
                _join(symbol, conditions[:index] + conditions[index + 1 :])
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
