"""The rows that a condition selects, as DuckDB finds them.

DuckDB compares the values of the common types. Python compares those that DuckDB lacks, such as
decimals of more than 38 digits and durations, and those that DuckDB cannot convert to a common
type. Where the rules of filters differ from DuckDB's, the SQL says so: a NaN is unequal to every
value, and all points in time are taken as UTC.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from .filter_conditions import (
    FUNCTIONS,
    Among,
    Arithmetic,
    Between,
    Columns,
    Comparison,
    Junction,
    NanTest,
    Not,
    NullTest,
    Path,
    Reference,
    TextTest,
    Truth,
    TruthTest,
    Value,
    family,
    list_references,
    quote,
    to_decimal,
    value_set,
)
from .filter_tables import DAY, SECOND, Column

Booleans = list[bool | None]
_MAX_DIGITS = 38


class RejectedError(Exception):
    """The rules of filters define no result, as for a division by zero."""


class _NotNativeError(Exception):
    """DuckDB cannot evaluate a leaf."""


# --- Python ------------------------------------------------------------------------------------


def evaluate(condition: Any, columns: Columns, style: str) -> Booleans:
    """Return the value of a condition for each row, computed in Python."""
    match condition:
        case Junction(symbol=symbol, conditions=conditions):
            results = [evaluate(each, columns, style) for each in conditions]
            decisive = symbol == "or"
            return [
                decisive if decisive in row else None if None in row else not decisive
                for row in zip(*results, strict=True)
            ]
        case Not(condition=inner):
            return _negate(evaluate(inner, columns, style))
        case TruthTest(condition=inner, value=value, negated=negated):
            return [(each is value) != negated for each in evaluate(inner, columns, style)]
        case _:
            return evaluate_leaf(condition, columns, style)


def evaluate_leaf(leaf: Any, columns: Columns, style: str) -> Booleans:
    """Return the value of a leaf for each row, computed in Python.

    Raises `RejectedError` if it has none.
    """
    match leaf:
        case Comparison(symbol=symbol, left=left, right=right):
            sides = _align(left, right, columns, style)
            return [_compare(symbol, one, other) for one, other in zip(*sides, strict=True)]
        case Among(operand=operand, values=values, negated=negated):
            if style == "pyarrow":
                found = _arrow_is_in(leaf, columns[operand.path])
            elif style == "polars":
                found = _polars_is_in(leaf, columns[operand.path])
            else:
                equal = [Comparison("=", operand, value) for value in values]
                found = evaluate(Junction("or", tuple(equal)), columns, style)
            return _negate(found) if negated else found
        case Between(operand=operand, low=low, high=high, negated=negated):
            limits = (Comparison(">=", operand, low), Comparison("<=", operand, high))
            found = evaluate(Junction("and", limits), columns, style)
            return _negate(found) if negated else found
        case NullTest(operand=operand, negated=negated, counts_nan=counts_nan):
            values = columns[operand.path].values
            missing = [each is None or (counts_nan and each != each) for each in values]
            return [each != negated for each in missing]
        case NanTest(operand=operand):
            return [None if each is None else each != each for each in columns[operand.path].values]
        case TextTest(operand=operand, negated=negated):
            test = _text_test(leaf)
            found = [None if each is None else test(each) for each in columns[operand.path].values]
            return _negate(found) if negated else found
        case Truth(operand=operand):
            return list(columns[operand.path].values)
        case _:
            raise AssertionError(leaf)


def _negate(values: Booleans) -> Booleans:
    return [None if each is None else not each for each in values]


def _compare(symbol: str, one: Any, other: Any) -> bool | None:
    if symbol in ("distinct", "same"):
        if one is None or other is None:
            return ((one is None) == (other is None)) == (symbol == "same")
        return (one == other) == (symbol == "same")
    if one is None or other is None:
        return None
    return bool(FUNCTIONS[symbol](one, other))


def _align(left: Any, right: Any, columns: Columns, style: str) -> tuple[list[Any], list[Any]]:
    """Return the values of two operands, as they are compared."""
    rows = len(next(iter(columns.values())).values)
    one, other = _values(left, columns, rows), _values(right, columns, rows)
    kinds = [family(left, columns), family(right, columns)]
    if "null" in kinds or "none" in kinds:
        return ([None] * rows if kinds[0] == "null" else one), (
            [None] * rows if kinds[1] == "null" else other
        )
    convert: Callable[[Any], Any] | None = None
    if _float_width(left, columns) or _float_width(right, columns):
        convert = float
    elif "float" in kinds:
        convert = _exact
    if convert is not None:
        one = [None if each is None else convert(each) for each in one]
        other = [None if each is None else convert(each) for each in other]
    if style != "pyarrow":
        one = _round(left, one, _float_width(right, columns))
        other = _round(right, other, _float_width(left, columns))
    return one, other


def _exact(value: Any) -> Any:
    number = to_decimal(value)
    if not number.is_finite():
        raise RejectedError
    return number


def _float_width(operand: Any, columns: Columns) -> int:
    """Return the width of a column of floating-point numbers in bits; 0 for all other operands."""
    if isinstance(operand, Reference) and columns[operand.path].family == "float":
        return columns[operand.path].type.bit_width
    return 64 if isinstance(operand, Arithmetic) and family(operand, columns) == "float" else 0


def _round(operand: Any, values: list[Any], width: int) -> list[Any]:
    """Round a literal to the type of the column beside it."""
    if not isinstance(operand, Value) or width not in (16, 32):
        return values
    return [None if each is None else round_to(each, width) for each in values]


def round_to(value: float, width: int) -> float:
    """Return the closest floating-point number of 16 or 32 bits."""
    with np.errstate(over="ignore"):
        return float((np.float16 if width == 16 else np.float32)(value))


def _values(operand: Any, columns: Columns, rows: int) -> list[Any]:
    match operand:
        case Value(family="text", value=value, form=None):  # beside a number
            return [int(value)] * rows
        case Value(value=value):
            return [value] * rows
        case Reference(path=path):
            return columns[path].values
        case _:
            return _calculate(operand, columns, rows)


def _calculate(operand: Arithmetic, columns: Columns, rows: int) -> list[Any]:
    is_float = family(operand, columns) == "float"
    sides = [_values(each, columns, rows) for each in (operand.left, operand.right)]
    function = FUNCTIONS[operand.symbol]
    results: list[Any] = []
    for one, other in zip(*sides, strict=True):
        if one is None or other is None:
            results.append(None)
            continue
        if is_float:
            result = _calculate_float(function, float(one), float(other))
        else:
            with localcontext() as context:
                context.prec = 100
                result = function(one, other)
            if isinstance(result, Decimal):
                if max(abs(one), abs(other), abs(result)) >= 2**31:
                    raise RejectedError  # float64 would round it
            elif not -(2**63) <= result < 2**63:
                raise RejectedError
        results.append(result)
    return results


def _calculate_float(function: Callable[[float, float], float], one: float, other: float) -> float:
    try:
        result = function(one, other)
    except ZeroDivisionError:
        raise RejectedError from None
    if math.isfinite(one) and math.isfinite(other) and not math.isfinite(result):
        raise RejectedError
    if result != result and one == one and other == other:
        raise RejectedError
    return result


def _text_test(leaf: TextTest) -> Callable[[str], bool]:
    text = leaf.text
    match leaf.function:
        case "starts_with":
            return lambda value: value.startswith(text)
        case "ends_with":
            return lambda value: value.endswith(text)
        case "contains":
            return lambda value: text in value
        case _:
            wildcards = {"%": ".*", "_": "."}
            pattern = "".join(wildcards.get(each, re.escape(each)) for each in text)
            flags = re.DOTALL | (re.IGNORECASE if leaf.function == "ilike" else 0)
            compiled = re.compile(pattern, flags)
            return lambda value: compiled.fullmatch(value) is not None


def _arrow_is_in(leaf: Among, column: Column) -> Booleans:
    """Return what pyarrow's own function does."""
    array, values = column.array, value_set(leaf)
    if pa.types.is_string_view(array.type):
        array, values = array.cast(pa.string()), values.cast(pa.string())
    try:
        return pc.is_in(array, value_set=values).to_pylist()
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        pass
    listed = [each.value for each in leaf.values]
    has_nan = any(each != each for each in listed)
    if _has_zero(listed) and _has_zero(column.values):
        raise RejectedError
    return [each in listed or (has_nan and each != each) for each in column.values]


def _has_zero(values: Sequence[Any]) -> bool:
    """Return whether a zero is among some values, where its sign may count."""
    return any(isinstance(each, float) and not each for each in values)


def _polars_is_in(leaf: Among, column: Column) -> Booleans:
    """Return what polars' own function does."""
    values = [each.value for each in leaf.values]
    try:
        frame = pl.DataFrame({"c": pl.from_arrow(column.array)})
        return frame.select(pl.col("c").is_in(values))["c"].to_list()
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        raise RejectedError from None


# --- DuckDB ------------------------------------------------------------------------------------


class Oracle:
    """Evaluates conditions on tables in one connection of DuckDB."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute("PRAGMA disable_optimizer")
        self._tables: dict[str, _Names] = {}
        self.leaves = {"duckdb": 0, "python": 0}
        """The number of leaves that each has evaluated."""

    def close(self) -> None:
        self._connection.close()

    def add_table(self, name: str, columns: Columns) -> None:
        """Add a table. Its columns are read from Arrow's memory."""
        arrays = {
            path: array for path, array in map(_native, columns.values()) if array is not None
        }
        names = {path: f"c{index}" for index, path in enumerate(arrays)}
        rows = len(next(iter(columns.values())).values)
        table = pa.table(
            {
                "pos": pa.array(range(rows), pa.int64()),
                **{names[path]: array for path, array in arrays.items()},
            }
        )
        self._connection.register("arrow_memory", table)
        self._connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM arrow_memory')
        self._connection.unregister("arrow_memory")
        self._tables[name] = _Names(columns, names)

    def select(self, name: str, conditions: Sequence[tuple[Any, str]]) -> list[list[int]]:
        """Return the positions of the rows that each condition selects, with its style."""
        names = self._tables[name]
        translations = [_Translation(names, style) for _, style in conditions]
        written = [
            translation.condition(condition)
            for translation, (condition, _) in zip(translations, conditions, strict=True)
        ]
        try:
            columns = self._query(name, written)
        except duckdb.Error:
            if len(conditions) > 1:
                half = len(conditions) // 2
                return [
                    *self.select(name, conditions[:half]),
                    *self.select(name, conditions[half:]),
                ]
            (condition, style), (translation,) = conditions[0], translations
            self.leaves["python"] += translation.leaves["duckdb"] + translation.leaves["python"]
            columns = [evaluate(condition, names.columns, style)]
        else:
            for translation in translations:
                for key, count in translation.leaves.items():
                    self.leaves[key] += count
        return [[pos for pos, value in enumerate(column) if value] for column in columns]

    def _query(self, name: str, written: Sequence[str]) -> list[Booleans]:
        statement = f'SELECT {", ".join(written)} FROM "{name}" ORDER BY pos'
        rows = self._connection.execute(statement).fetchall()
        return [[row[index] for row in rows] for index in range(len(written))]


class _Names:
    """The columns of a table, and their names in DuckDB."""

    def __init__(self, columns: Columns, names: dict[Path, str]) -> None:
        self.columns = columns
        self.names = names


def _native(column: Column) -> tuple[Path, Any]:
    """Return the array that DuckDB reads; None if it cannot."""
    array, data_type = column.array, column.type
    match column.family:
        case "float" if data_type.bit_width == 16:
            array = array.cast(pa.float32())
        case "timestamp":
            array = array.cast(pa.int64()).cast(pa.timestamp(data_type.unit))
        case "date":
            array = array.cast(pa.date32())
        case "binary":
            array = pa.array(array.to_pylist(), pa.binary())
        case "null":
            array = pa.nulls(len(array), pa.int32())
        case "decimal" if data_type.scale < 0 or data_type.precision > _MAX_DIGITS:
            array = None
        case "duration":
            array = None
        case _:
            pass
    return column.path, array


class _Translation:
    """Writes one condition for DuckDB."""

    def __init__(self, names: _Names, style: str) -> None:
        self._names = names.names
        self._columns = names.columns
        self._style = style
        self.leaves = {"duckdb": 0, "python": 0}

    def condition(self, node: Any) -> str:
        match node:
            case Junction(symbol=symbol, conditions=conditions):
                return "(" + f" {symbol} ".join(map(self.condition, conditions)) + ")"
            case Not(condition=inner):
                return f"(NOT {self.condition(inner)})"
            case TruthTest(condition=inner, value=value, negated=negated):
                return f"({self.condition(inner)} IS {'NOT ' if negated else ''}{value})"
            case _:
                pass
        try:
            text = self._leaf(node)
        except _NotNativeError:
            self.leaves["python"] += 1
            values = evaluate_leaf(node, self._columns, self._style)
            listed = ", ".join("NULL" if each is None else str(each) for each in values)
            return f"([{listed}]::BOOLEAN[])[pos + 1]"
        self.leaves["duckdb"] += 1
        return text

    def _leaf(self, node: Any) -> str:
        match node:
            case Comparison(symbol=symbol, left=left, right=right):
                return self._comparison(symbol, left, right)
            case Among(operand=operand, values=values, negated=negated):
                if self._style in ("pyarrow", "polars"):
                    raise _NotNativeError
                return f"({'NOT ' if negated else ''}{self._among(operand, values)})"
            case Between(operand=operand, low=low, high=high, negated=negated):
                low = self._comparison(">=", operand, low)
                high = self._comparison("<=", operand, high)
                return f"({'NOT ' if negated else ''}({low} AND {high}))"
            case NullTest(operand=operand, negated=negated, counts_nan=counts_nan):
                column = self._name(operand)
                test = f"({column} IS NULL{f' OR isnan({column})' if counts_nan else ''})"
                return f"(NOT {test})" if negated else test
            case NanTest(operand=operand):
                return f"isnan({self._name(operand)})"
            case TextTest(function="like" | "ilike" as name, operand=operand, text=text):
                negation = "NOT " if node.negated else ""
                return f"({self._name(operand)} {negation}{name} {quote(text)})"
            case TextTest(function=name, operand=operand, text=text):
                test = f"{name}({self._name(operand)}, {quote(text)})"
                return f"(NOT {test})" if node.negated else test
            case Truth(operand=operand):
                return self._name(operand)
            case _:
                raise AssertionError(node)

    def _name(self, operand: Reference) -> str:
        try:
            return self._names[operand.path]
        except KeyError:
            raise _NotNativeError from None

    def _among(self, operand: Reference, values: Sequence[Value]) -> str:
        kind = family(operand, self._columns)
        if kind in ("int", "text") and all(each.family in (kind, "none") for each in values):
            listed = ", ".join(map(self._plain, values))
            return f"({self._name(operand)} IN ({listed}))"
        known = [each for each in values if each.family != "none"]
        tests = [self._comparison("=", operand, each) for each in known]
        if len(known) < len(values):
            tests.append("NULL::BOOLEAN")
        return f"({' OR '.join(tests)})"

    def _comparison(self, symbol: str, left: Any, right: Any) -> str:
        columns = self._columns
        references = [*list_references(left), *list_references(right)]
        for each in references:
            self._name(each)
        kinds = {family(left, columns), family(right, columns)}
        if "null" in kinds or "none" in kinds:
            raise _NotNativeError
        operators = {"distinct": "IS DISTINCT FROM", "same": "IS NOT DISTINCT FROM"}
        name = operators.get(symbol, symbol)
        widths = {_float_width(left, columns), _float_width(right, columns)} - {0}
        if widths:
            one, other = (self._as_float(each, widths) for each in (left, right))
            test = f"({one} {name} {other})"
            if symbol in operators:
                return test
            unordered = symbol == "<>"
            return (
                f"(CASE WHEN {one} IS NULL OR {other} IS NULL THEN NULL "
                f"WHEN isnan({one}) OR isnan({other}) THEN {unordered} ELSE {test} END)"
            )
        if kinds <= {"date", "timestamp"} and "timestamp" in kinds:
            sides = self._as_timestamps(left, right)
        elif kinds == {"time"}:
            sides = self._as_times(left, right)
        else:
            sides = [self._operand(each) for each in (left, right)]
        return f"({sides[0]} {name} {sides[1]})"

    def _as_float(self, operand: Any, widths: set[int]) -> str:
        """Write an operand as a number of the type in which it is compared."""
        literals = [16, 32] if self._style != "pyarrow" else []
        if len(widths) == 1 and (width := min(widths)) in literals and isinstance(operand, Value):
            value = float(operand.value)
            value = round_to(value, 16) if width == 16 else operand.value
            return f"CAST('{value}' AS FLOAT)"
        if isinstance(operand, Value):
            return f"CAST('{operand.value}' AS DOUBLE)"
        if isinstance(operand, Reference) and _float_width(operand, self._columns) in literals:
            return self._name(operand)
        return f"CAST({self._operand(operand)} AS DOUBLE)"

    def _as_timestamps(self, left: Any, right: Any) -> list[str]:
        def has_nanoseconds(operand: Any) -> bool:
            if isinstance(operand, Value):
                return operand.value % 1000 != 0
            return getattr(self._columns[operand.path].type, "unit", None) == "ns"

        exact = has_nanoseconds(left) or has_nanoseconds(right)
        target = "TIMESTAMP_NS" if exact else "TIMESTAMP"

        def write(operand: Any) -> str:
            if not isinstance(operand, Value):
                return f"{self._name(operand)}::{target}"
            if exact and not -(2**63) < operand.value < 2**63:
                raise _NotNativeError
            value = operand.value if exact else operand.value // 1000
            return f"make_timestamp{'_ns' if exact else ''}({value})"

        return [write(left), write(right)]

    def _as_times(self, left: Any, right: Any) -> list[str]:
        types = [
            self._columns[each.path].type for each in (left, right) if not isinstance(each, Value)
        ]
        is_fine = any(isinstance(each, Value) and each.value % 1000 for each in (left, right))
        target = "TIME_NS" if is_fine or any(each.unit == "ns" for each in types) else "TIME"
        return [f"{self._operand(each)}::{target}" for each in (left, right)]

    def _operand(self, node: Any) -> str:
        match node:
            case Reference():
                return self._name(node)
            case Arithmetic(symbol=symbol, left=left, right=right):
                kind = family(node, self._columns)
                sides = [self._operand(each) for each in (left, right)]
                if kind == "float":
                    sides = [f"CAST({each} AS DOUBLE)" for each in sides]
                elif kind == "int":
                    sides = [f"CAST({each} AS BIGINT)" for each in sides]
                return f"({sides[0]} {symbol} {sides[1]})"
            case _:
                return self._plain(node)

    def _plain(self, node: Value) -> str:
        value = node.value
        match node.family:
            case "none":
                return "NULL"
            case "bool":
                return str(value)
            case "int" | "decimal" | "float":
                return _exact_number(value)
            case "text":
                return quote(value) if node.form is not None else value
            case "binary":
                return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
            case "uuid":
                return f"'{uuid.UUID(bytes=value)}'::UUID"
            case "date":
                return f"(DATE '1970-01-01' + {value // DAY})"
            case "timestamp":
                return f"make_timestamp({value // 1000})"
            case "time":
                seconds, rest = divmod(value, SECOND)
                hours, minutes = seconds // 3600, seconds // 60 % 60
                return f"('{hours:02}:{minutes:02}:{seconds % 60:02}.{rest:09}'::TIME_NS)"
            case _:
                raise _NotNativeError


def _exact_number(value: Any) -> str:
    number = to_decimal(value)
    text = f"{number:f}" if number.is_finite() else ""
    if not text or len(text.strip("-").replace(".", "").lstrip("0")) > _MAX_DIGITS - 2:
        raise _NotNativeError
    if "." in text and len(text.partition(".")[2]) > _MAX_DIGITS - 2:
        raise _NotNativeError
    return f"({text})"
