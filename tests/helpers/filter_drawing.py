"""Conditions that are drawn at random for the columns of a table."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa

from .filter_conditions import (
    SYMBOLS,
    Among,
    Arithmetic,
    Between,
    Columns,
    Comparison,
    Junction,
    NanTest,
    Not,
    NotWritableError,
    NullTest,
    Reference,
    TextTest,
    Truth,
    TruthTest,
    Value,
    family,
    group_of,
    join,
    permitted_outcomes,
    render,
)
from .filter_oracle import RejectedError, evaluate_leaf
from .filter_tables import DAY, FAR, SECOND, TEXTS, UNITS, Column

timestamp: Any = pa.timestamp
duration: Any = pa.duration


def draw_condition(rng: random.Random, columns: Columns, style: str) -> Any:
    """Return a condition that a style can express."""
    drawer = _Drawer(rng, columns, style)
    if rng.random() < 0.04:
        with suppress(NotWritableError):
            mismatch = drawer.mismatch()
            render(mismatch, style)
            return mismatch
    if rng.random() < 0.4:
        return drawer.leaf(is_alone=True)
    if style == "tuples":
        groups = [drawer.leaves(rng.choice((1, 1, 2, 3))) for _ in range(rng.choice((1, 1, 2, 3)))]
        return join("or", [join("and", group) for group in groups])
    return drawer.tree(rng.choice((1, 1, 2, 3)))


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

    def leaf(self, is_alone: bool = False) -> Any:
        """Return a leaf that the style can express and whose calculations do not overflow.

        Only alone may it be one that an engine may also refuse.
        """
        while True:
            draw = self._pick_leaf()
            try:
                leaf = draw()
                render(leaf, self.style)
                outcomes = permitted_outcomes(leaf, self.columns, self.style)
                if outcomes == {"rows"} or (is_alone and "rows" in outcomes):
                    evaluate_leaf(leaf, self.columns, self.style)
                    return leaf
            except (NotWritableError, RejectedError):
                continue

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
        group = group_of(left.family)
        others = [each for each in self.columns.values() if group_of(each.family) == group]
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
