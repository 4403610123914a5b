"""Filters from Python: tuples, and expressions of pyarrow and polars.

pyarrow and polars define how their own methods treat nulls and NaN. Where that differs from SQL, a
method becomes several conditions that return the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa

from ..errors import UsageError
from ..formats.arguments import refuse
from ..formats.arrow.schema import find_schema
from .binding import FLOAT_FUNCTIONS
from .tree import (
    COMPARISONS,
    DAY,
    Call,
    Cast,
    Column,
    Instant,
    Literal,
    combine,
    make_decimal,
    make_literal,
)

# --- tuples --------------------------------------------------------------------------------------


def parse_tuples(filter: Any) -> Any:
    """Return the tree of tuples, as ``pyarrow.parquet.read_table`` takes them.

    `filter` is a tuple such as ``("delay", ">", 60)``, a list of tuples that must all hold, or a
    list of such lists of which one must hold. Raises `UsageError` if a tuple is malformed.
    """
    if not filter:
        raise UsageError("the filter is empty; pass None to read all rows")
    if not isinstance(filter, (tuple, list)):
        refuse("filter", filter, "('delay', '>', 60), or a list of such tuples")
    if isinstance(filter, tuple) or isinstance(filter[0], str):
        return _parse_tuple(filter)
    if all(isinstance(item, tuple) for item in filter):
        return combine("and", [_parse_tuple(item) for item in filter])
    return combine("or", [parse_tuples(item) for item in filter])


def _parse_tuple(item: Any) -> Any:
    if len(item) != 3 or not isinstance(item[0], str) or not isinstance(item[1], str):
        raise UsageError(f"the filter {item!r} is invalid; expected ('delay', '>', 60)")
    name, symbol, value = item[0], item[1].strip().lower(), item[2]
    symbol = {"==": "=", "!=": "<>"}.get(symbol, symbol)
    if symbol in COMPARISONS:
        if value is None:
            raise UsageError(
                f"the filter {item!r} is never true: null is equal to nothing; use the condition "
                f"'{name} is null' in SQL"
            )
        return Call(symbol, (Column(name), make_literal(value)))
    if symbol not in ("in", "not in") or isinstance(value, (str, bytes)):
        known = ", ".join(("=", "==", "!=", *COMPARISONS[1:], "in", "not in"))
        raise UsageError(f"the filter {item!r} is invalid; the operators are {known}")
    values = list(value)
    if not values:
        raise UsageError(f"the filter {item!r} is invalid: the list of values is empty")
    found = Call("in", (Column(name), *map(make_literal, values)))
    return found if symbol == "in" else Call("not", (found,))


# --- pyarrow -------------------------------------------------------------------------------------

_ARROW_CALLS: Final = {
    "equal": "=",
    "not_equal": "<>",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "and": "and",
    "and_kleene": "and",
    "or": "or",
    "or_kleene": "or",
    "xor": "xor",
    "invert": "not",
    "is_nan": "isnan",
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "divide",
    "negate": "negate",
    "abs": "abs",
    "if_else": "if_else",
    "coalesce": "coalesce",
    **{name: name for name in FLOAT_FUNCTIONS},
}
_ARROW_TEXT_TESTS: Final = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "match_substring": "contains",
}


def convert_arrow(expression: Any) -> Any:
    """Return the tree of a ``pyarrow.compute.Expression``.

    Raises `UsageError` if it has a function that filters do not have, or refers to a column by its
    number.
    """
    try:
        # pyarrow reads an expression only with the schema of a plan, which changes its casts. Its
        # pickled form has all of it: the nodes as metadata of a schema, and the values as columns.
        _, (buffer,) = expression.__reduce__()
        batch: Any = pa.ipc.open_file(buffer).get_batch(0)
    except pa.ArrowException as error:
        raise UsageError(f"the filter is invalid: {error}; refer to columns by name") from None
    return _ArrowReader(_list_tokens(bytes(batch.schema.serialize()[8:])), batch).read()


def _list_tokens(message: bytes) -> Iterator[tuple[str, str]]:
    """Yield the custom metadata of a schema in order, with repeated keys."""
    schema = find_schema(message)
    for number in range(schema.CustomMetadataLength()):
        pair: Any = schema.CustomMetadata(number)
        yield pair.Key().decode(), pair.Value().decode()


class _ArrowReader:
    """Reads the nodes of a pickled expression, in which a call ends with its own token."""

    def __init__(self, tokens: Iterator[tuple[str, str]], batch: Any) -> None:
        self._tokens = tokens
        self._batch = batch

    def read(self) -> Any:
        """Return the tree of the next node."""
        return self._convert(*next(self._tokens))

    def _convert(self, kind: str, value: str) -> Any:
        match kind:
            case "literal":
                return Literal(make_literal(self._batch.column(int(value))[0]).value)
            case "field_ref":
                return Column(value)
            case "nested_field_ref":
                return Column(".".join(self.read().name for _ in range(int(value))))
            case _:
                return self._read_call(value)

    def _read_call(self, name: str) -> Any:
        arguments: list[Any] = []
        options: Any = None
        for kind, value in self._tokens:
            if kind == "end":
                break
            if kind == "options":
                options = self._batch.column(int(value))[0]
            else:
                arguments.append(self._convert(kind, value))
        return _convert_arrow_call(name, arguments, options)


def _convert_arrow_call(name: str, arguments: list[Any], options: Any) -> Any:
    function = _ARROW_CALLS.get(name.removesuffix("_checked"))
    if function in ("and", "or"):
        return combine(function, arguments)
    if function is not None:
        return Call(function, tuple(arguments))
    match name:
        case "is_null":
            null = Call("is null", tuple(arguments))
            if not options["nan_is_null"].as_py():
                return null
            return Call("or", (null, Call("is true", (Call("isnan", tuple(arguments)),))))
        case "is_valid":
            return Call("not", (Call("is null", tuple(arguments)),))
        case "is_finite":
            infinite = Call("in", (arguments[0], Literal(math.inf), Literal(-math.inf)))
            return Call("not", (Call("or", (Call("isnan", tuple(arguments)), infinite)),))
        case "is_in":
            values: Any = options["value_set"].values
            behavior: Any = options["null_matching_behavior"].as_py()
            literals = [make_literal(each) for each in values]
            # To pyarrow, -0.0 is another value than 0.0 in a set.
            has_zero = any(each.value == 0 and isinstance(each.value, float) for each in literals)
            function = "in bits" if has_zero else "in"
            return _find_any(arguments[0], literals, function, matches_null=not behavior)
        case "cast":
            target: Any = options["to_type"].type
            return Cast(arguments[0], target, not options["allow_int_overflow"].as_py())
        case _ if name in _ARROW_TEXT_TESTS and not options["ignore_case"].as_py():
            pattern: Any = options["pattern"].as_py()
            text = pattern.decode() if isinstance(pattern, bytes) else pattern
            return Call(_ARROW_TEXT_TESTS[name], (*arguments, Literal(text)))
        case "match_like":
            function = "ilike" if options["ignore_case"].as_py() else "like"
            return Call(function, (*arguments, Literal(options["pattern"].as_py())))
        case _:
            raise UsageError(f"the filter is invalid: it calls {name}, which filters lack")


def _find_any(
    operand: Any, literals: list[Literal], function: str = "in", *, matches_null: bool
) -> Any:
    """Return the condition of pyarrow's `is_in`, which is never null and finds NaN and null."""
    plain = [each for each in literals if each.value is not None and not _is_nan(each.value)]
    parts: list[Any] = []
    if plain:
        parts.append(Call("is true", (Call(function, (operand, *plain)),)))
    if any(_is_nan(each.value) for each in literals):
        parts.append(Call("is true", (Call("isnan", (operand,)),)))
    if matches_null and any(each.value is None for each in literals):
        parts.append(Call("is null", (operand,)))
    return combine("or", parts) if parts else Literal(False)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


# --- polars --------------------------------------------------------------------------------------

_POLARS_OPERATORS: Final = {
    "Eq": "=",
    "NotEq": "<>",
    "Lt": "<",
    "LtEq": "<=",
    "Gt": ">",
    "GtEq": ">=",
    "And": "and",
    "LogicalAnd": "and",
    "Or": "or",
    "LogicalOr": "or",
    "Xor": "xor",
    "Plus": "+",
    "Minus": "-",
    "Multiply": "*",
    "Divide": "/",
    "TrueDivide": "/",
    "RustDivide": "/",
}
_SPECIAL: Final = re.compile(r"(?<![\w\"])(-?inf|NaN)(?![\w\"])")
_POLARS_UNITS: Final = {"Nanoseconds": 1, "Microseconds": 10**3, "Milliseconds": 10**6}
_POLARS_TEXT_TESTS: Final = {"StartsWith": "starts_with", "EndsWith": "ends_with"}


def convert_polars(expression: Any) -> Any:
    """Return the tree of a polars expression.

    Raises `UsageError` if it has a function that filters do not have.
    """
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the form differs between versions of polars
        text = expression.meta.serialize(format="json")
    return _PolarsReader(str(expression)).convert(json.loads(text))


class _PolarsReader:
    """Converts the nodes of a serialized expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        # A serialized expression has null for NaN and infinity. The text has them, in this order.
        self._special = iter(_SPECIAL.findall(text))

    def convert(self, node: Any) -> Any:
        """Return the tree of a node."""
        match node:
            case {"Column": str() as name}:
                return Column(name)
            case {"Literal": literal}:
                return self._convert_literal(literal)
            case {"BinaryExpr": {"left": left, "op": op, "right": right}}:
                return self._convert_operation(op, self.convert(left), self.convert(right))
            case {"Function": {"input": inputs, "function": function}}:
                return self._convert_function(function, inputs)
            case {"Alias": [inner, _]}:
                return self.convert(inner)
            case _:
                self._refuse()

    def _convert_operation(self, op: str, left: Any, right: Any) -> Any:
        if op in ("EqValidity", "NotEqValidity"):
            null = Call("and", (Call("is null", (left,)), Call("is null", (right,))))
            equal = Call("or", (Call("is true", (Call("=", (left, right)),)), null))
            return equal if op == "EqValidity" else Call("not", (equal,))
        function = _POLARS_OPERATORS.get(op)
        if function is None:
            self._refuse()
        if function in ("and", "or"):
            return combine(function, [left, right])
        return Call(function, (left, right))

    def _convert_function(self, function: Any, inputs: list[Any]) -> Any:
        match function:
            case {"Boolean": {"IsIn": {"nulls_equal": bool() as nulls_equal}}}:
                return self._convert_is_in(inputs, nulls_equal=nulls_equal)
            case {"Boolean": {"IsBetween": {"closed": str() as closed}}}:
                value, low, high = map(self.convert, inputs)
                least = ">=" if closed in ("Both", "Left") else ">"
                most = "<=" if closed in ("Both", "Right") else "<"
                return Call("and", (Call(least, (value, low)), Call(most, (value, high))))
            case {"StructExpr": {"FieldByName": str() as name}}:
                parent = self.convert(inputs[0])
                if not isinstance(parent, Column):
                    self._refuse()
                return Column(f"{parent.name}.{name}")
            case {"StringExpr": str() as name} if name in _POLARS_TEXT_TESTS:
                return Call(_POLARS_TEXT_TESTS[name], tuple(map(self.convert, inputs)))
            case {"StringExpr": {"Contains": {"literal": True}}}:
                return Call("contains", tuple(map(self.convert, inputs)))
            case "Negate" | "Abs":
                return Call(function.lower(), (self.convert(inputs[0]),))
            case {"Boolean": str() as name}:
                return self._convert_test(name, self.convert(inputs[0]))
            case _:
                self._refuse()

    def _convert_test(self, name: str, argument: Any) -> Any:
        match name:
            case "IsNull":
                return Call("is null", (argument,))
            case "IsNotNull":
                return Call("not", (Call("is null", (argument,)),))
            case "IsNan":
                return Call("isnan", (argument,))
            case "IsNotNan":
                return Call("not", (Call("isnan", (argument,)),))
            case "Not":
                return Call("not", (argument,))
            case _:
                self._refuse()

    def _convert_is_in(self, inputs: list[Any], *, nulls_equal: bool) -> Any:
        """Return the condition of `is_in`: null for null, unless nulls are equal."""
        operand = self.convert(inputs[0])
        literals = self._read_list(inputs[1])
        found = _find_any(operand, literals, matches_null=nulls_equal)
        if nulls_equal:
            return found
        return Call("if_else", (Call("is null", (operand,)), Literal(None), found))

    def _read_list(self, node: Any) -> list[Literal]:
        """Return the values of a list, which polars serializes as a stream of Arrow."""
        match node:
            case {"Literal": {"Scalar": {"List": [*data]}} | {"Series": [*data]}}:
                return [_round_trip(make_literal(each)) for each in _read_series(bytes(data))]
            case _:
                self._refuse()

    def _convert_literal(self, literal: Any) -> Any:
        match literal:
            case {"Dyn": {"Int": value}}:
                return Literal(int(value))
            case {"Dyn": {"Float": value}}:
                return self._convert_float(value)
            case {"Dyn": {"Str": str() as value}}:
                return Literal(value)
            case {"Scalar": {"Null": _}} | {"Scalar": "Null"}:
                return Literal(None)
            case {"Scalar": scalar} if isinstance(scalar, Mapping) and len(scalar) == 1:
                ((kind, value),) = scalar.items()
                return self._convert_scalar(kind, value)
            case _:
                self._refuse()

    def _convert_float(self, value: Any) -> Literal:
        return make_literal(float(next(self._special, "nan") if value is None else value))

    def _convert_scalar(self, kind: str, value: Any) -> Literal:
        match kind, value:
            case "String" | "StringOwned", str():
                return Literal(value)
            case "Boolean", bool():
                return Literal(value)
            case "Binary" | "BinaryOwned", list():
                return Literal(bytes(value))
            case "Float32" | "Float64" | "Float16", _:
                return self._convert_float(value)
            case "Date", int():
                return Literal(Instant("date", value * DAY))
            case "Time", int():
                return Literal(Instant("time", value))
            case "Duration", [int() as number, str() as unit]:
                return Literal(Instant("duration", number * _POLARS_UNITS[unit]))
            case "Datetime" | "DatetimeOwned", [int() as number, str() as unit, zone]:
                kind = "timestamp" if zone is None else "timestamptz"
                return Literal(Instant(kind, number * _POLARS_UNITS[unit]))
            case "Decimal", [number, _, int() as scale]:
                return Literal(make_decimal(int(number), scale))
            case _, int():
                return Literal(value)
            case _:
                self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"the filter {self._text} has a part that filters lack; write it as a condition in SQL "
            "or as a pyarrow.compute expression"
        )


def _read_series(data: bytes) -> list[Any]:
    """Return the values of a series that polars serialized as a stream of Arrow."""
    try:
        return [*pa.ipc.open_stream(data).read_all().column(0)]
    except pa.ArrowNotImplementedError:  # integers of 128 bits
        import io

        import polars as pl

        return pl.read_ipc_stream(io.BytesIO(data)).to_series().to_list()


def _round_trip(literal: Literal) -> Literal:
    """Return a floating-point literal as the decimal number that it denotes."""
    return make_literal(literal.value) if isinstance(literal.value, float) else literal
