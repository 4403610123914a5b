"""Binding: gives the columns and the comparisons of a tree the types of a schema.

A comparison is exact. Both sides get a common type that has all of their values, or the filter is
refused. A literal that the type of the column lacks changes the comparison instead: with two digits
after the point, ``d <= 4.999`` becomes ``d <= 4.99``, and for unsigned integers ``u > -1`` becomes
true for all values, and null for null. Floating-point numbers are the exception, as in SQL: what is
compared with one is rounded to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.types as at

from ..errors import InvalidDataError
from ..formats.parquet.geo.boxes import Box
from ..formats.parquet.geo.conditions import BoxCondition, find_edges
from .literals import (
    find_limits,
    find_place,
    find_unit,
    kind_of,
    make_bytes,
    make_float,
    make_scalar,
    make_uuid,
)
from .tree import (
    COMPARISONS,
    DAY,
    MIRRORED,
    Call,
    Cast,
    Column,
    Instant,
    Literal,
    describe,
    describe_value,
    refuse,
    walk,
)

TEXT_TESTS: Final = ("like", "ilike", "starts_with", "ends_with", "contains")
"""The functions that compare a text with a pattern."""
FLOAT_FUNCTIONS: Final = {
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh"), 1),
    **dict.fromkeys(("exp", "floor", "ln", "log10", "log1p", "log2", "round", "sign", "sin"), 1),
    **dict.fromkeys(("sinh", "sqrt", "tan", "tanh"), 1),
    **dict.fromkeys(("atan2", "logb", "power"), 2),
}
"""The functions from floating-point numbers to one, and the number of their arguments."""
_ARITHMETIC: Final = ("+", "-", "*", "/", "divide")
_MAX_PRECISION: Final = 76


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column of the dataset."""

    index: int
    """Its index."""
    type: Any
    """Its type (``pyarrow.DataType``): of extension types the storage type, except for UUIDs."""


@dataclass(frozen=True, slots=True)
class BoundLiteral:
    """A value of a type."""

    scalar: Any
    """The value (``pyarrow.Scalar``)."""

    @property
    def type(self) -> Any:
        """Its type."""
        return self.scalar.type


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A function whose arguments have the types that it takes."""

    function: str
    """The name; `evaluation` implements the functions."""
    arguments: tuple[Any, ...]
    """Its arguments: `BoundColumn`, `BoundLiteral` and `BoundCall`."""
    type: Any
    """The type of the result."""
    options: Any = None
    """What the function needs besides its arguments."""


def bind(node: Any, schema: pa.Schema) -> Any:
    """Return a condition with the types of a schema.

    Raises `UsageError` if the filter refers to a missing column, compares values that cannot be
    compared, or is not a condition. The error gives the position in SQL.
    """
    return _Binder(schema).condition(node)


_NUMBERS: Final = ("integer", "decimal", "float")
_REMEDIES: Final = {
    "boolean": "compare it with true or false",
    "text": "write a text in single quotes",
    "date": "write a date in single quotes, as in '2026-01-05'",
    "timestamp": "write a time in single quotes, as in '2026-01-05 12:30:00'",
    "time": "write a time in single quotes, as in '12:30:00'",
    "duration": "write a duration as in INTERVAL '90 minutes'",
    "interval": "only IS NULL is supported for intervals",
    "nested": "name a field of a struct, as in st.x, or use IS NULL",
    "UUID": "write a UUID in single quotes",
    "binary": "write bytes in single quotes, as in '\\x00\\xFF'",
}


class _Binder:
    """Binds nodes to a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def condition(self, node: Any) -> Any:
        """Return a bound node that is true, false or null."""
        bound = self.value(node)
        if at.is_null(bound.type):
            return BoundLiteral(pa.scalar(None, pa.bool_()))
        if not at.is_boolean(bound.type):
            shell = "; in a shell, put the whole condition in quotes"
            refuse(
                f"{describe(node)} is not a condition: it has the type {bound.type}; expected "
                f"bool: compare it with a value{shell if isinstance(node, Column) else ''}",
                node,
            )
        return bound

    def value(self, node: Any) -> Any:
        """Return a bound node with values of a plain type."""
        match node:
            case Column():
                return _make_plain(self._column(node))
            case Literal():
                return _make_natural(node)
            case Cast():
                return self._cast(node)
            case _:
                return self._call(node)

    def _column(self, node: Column) -> BoundColumn:
        names = self._schema.names
        count = names.count(node.name)
        if count != 1:
            problem = f"{count} columns are named" if count else "there is no column"
            near = [] if count else get_close_matches(node.name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if not count and (node.quoted or not near):
                text = node.name.replace("'", "''")
                hint += f"{' Write' if near else '; write'} a text in single quotes: '{text}'"
            refuse(f"{problem} {node.name!r}{hint}", node)
        index = names.index(node.name)
        data_type: Any = self._schema.field(index).type
        while isinstance(data_type, pa.BaseExtensionType) and not _is_uuid(data_type):
            data_type = data_type.storage_type
        return BoundColumn(index, data_type)

    def _call(self, node: Call) -> Any:
        function, arguments = node.function, node.arguments
        count = len(arguments)
        match function:
            case "and" | "or" if count:
                return BoundCall(function, tuple(map(self.condition, arguments)), pa.bool_())
            case "xor" if count == 2:
                return BoundCall(function, tuple(map(self.condition, arguments)), pa.bool_())
            case "not" | "is true" | "is false" if count == 1:
                return BoundCall(function, (self.condition(arguments[0]),), pa.bool_())
            case "is null" if count == 1:
                return self._is_null(arguments[0])
            case "isnan" if count == 1:
                return self._is_nan(arguments[0], node)
            case "in" | "in bits" if count > 1:
                return self._is_in(arguments[0], arguments[1:], node)
            case _ if function in COMPARISONS and count == 2:
                return self._compare(function, arguments[0], arguments[1], node)
            case _ if function in TEXT_TESTS and count == 2:
                return self._test_text(function, arguments[0], arguments[1], node)
            case _ if function in _ARITHMETIC and count == 2:
                return self._compute(function, arguments[0], arguments[1], node)
            case "negate" | "abs" if count == 1:
                return self._compute_one(function, arguments[0], node)
            case _ if FLOAT_FUNCTIONS.get(function) == count:
                values = tuple(_to_float(self._number(each, node)) for each in arguments)
                return BoundCall(function, values, pa.float64())
            case "if_else" if count == 3:
                condition = self.condition(arguments[0])
                return self._choose(function, arguments[1:], node, condition)
            case "coalesce" if count:
                return self._choose(function, arguments, node)
            case "intersects" if count == 5:
                return self._intersects(*arguments, node)
            case _:
                refuse(f"it calls {function!r} with {count} arguments, which is unknown", node)

    # --- comparisons -----------------------------------------------------------------------------

    def _compare(self, symbol: str, left: Any, right: Any, node: Any) -> Any:
        if isinstance(left, Literal) and not isinstance(right, Literal):
            return self._compare(MIRRORED[symbol], right, left, node)
        operand = strip_casts(self.value(left))
        if isinstance(right, Literal):
            return _compare_literal(symbol, operand, right, (left, node))
        return _compare_operands(symbol, operand, strip_casts(self.value(right)), node)

    def _is_in(self, operand_node: Any, candidates: tuple[Any, ...], node: Any) -> Any:
        """Return the condition that an operand equals one of several values."""
        operand = strip_casts(self.value(operand_node))
        is_plain = all(isinstance(each, Literal) for each in candidates)
        if not is_plain or isinstance(operand, BoundLiteral) or at.is_null(operand.type):
            equalities = [self._compare("=", operand_node, each, node) for each in candidates]
            return BoundCall("or", tuple(equalities), pa.bool_())
        if at.is_string_view(operand.type) or at.is_binary_view(operand.type):
            wide: Any = pa.large_string() if at.is_string_view(operand.type) else pa.large_binary()
            operand = _cast(operand, wide)
        scalars: list[Any] = []
        for literal in candidates:
            if literal.value is None or literal.value != literal.value:
                continue  # NaN equals nothing, but Arrow finds it in a set
            equality = _compare_literal("=", operand, literal, (operand_node, node))
            # Others are never true: no value of the column equals the literal.
            if equality.function == "=" and equality.arguments[0] is operand:
                scalars.append(equality.arguments[1].scalar)
        values = pa.array(scalars, _storage(operand.type))
        has_null = any(each.value is None for each in candidates)
        return BoundCall(node.function, (operand,), pa.bool_(), (values, has_null))

    def _is_null(self, node: Any) -> Any:
        if isinstance(node, Literal):
            return BoundLiteral(pa.scalar(node.value is None))
        if isinstance(node, Column):
            return BoundCall("is null", (self._column(node),), pa.bool_())
        return BoundCall("is null", (strip_casts(self.value(node)),), pa.bool_())

    def _is_nan(self, argument: Any, node: Any) -> Any:
        operand = self._number(argument, node)
        if not at.is_floating(operand.type):
            return BoundCall("always", (operand,), pa.bool_(), False)
        return BoundCall("isnan", (operand,), pa.bool_())

    def _test_text(self, function: str, argument: Any, pattern: Any, node: Any) -> Any:
        operand = strip_casts(self.value(argument))
        kind = kind_of(operand.type)
        if kind == "null":
            return BoundLiteral(pa.scalar(None, pa.bool_()))
        if kind != "text":
            refuse(f"{describe(argument)} has the type {operand.type}; expected text", node)
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            refuse(f"the pattern of {function} must be a text in quotes", pattern)
        if at.is_string_view(operand.type):
            operand = _cast(operand, pa.large_string())
        return BoundCall(function, (operand,), pa.bool_(), pattern.value)

    def _intersects(self, column: Any, *arguments: Any) -> Any:
        *sides, node = arguments
        if not isinstance(column, Column):
            refuse(f"{describe(column)} is not a geospatial column", node)
        bound = self._column(column)
        numbers = [each.value for each in sides if isinstance(each, Literal)]
        try:
            box = Box(*map(float, numbers))
            condition = BoxCondition(column.name, box)
            edges = find_edges(self._schema.field(bound.index))
        except InvalidDataError as error:
            refuse(error.message, node)
        except (TypeError, ValueError, OverflowError):
            refuse(f"the box of {column.name!r} is not four numbers", node)
        return BoundCall("intersects", (bound,), pa.bool_(), (condition, edges))

    # --- computed values -------------------------------------------------------------------------

    def _number(self, argument: Any, node: Any) -> Any:
        operand = self.value(argument)
        if kind_of(operand.type) not in (*_NUMBERS, "null"):
            refuse(
                f"{describe(node)} computes with a value of the type {operand.type} "
                f"({describe(argument)}); expected a number",
                node,
            )
        return _cast(operand, pa.int64()) if at.is_null(operand.type) else operand

    def _compute(self, function: str, left: Any, right: Any, node: Any) -> Any:
        if not any(isinstance(each, Column) for each in (*walk(left), *walk(right))):
            refuse(
                f"{describe(node)} computes with literals alone; write the result, or a date in "
                "single quotes, as in '2026-01-05'",
                node,
            )
        operands = [self._number(left, node), self._number(right, node)]
        kinds = {kind_of(each.type) for each in operands}
        if function == "/" or "float" in kinds:
            # As in SQL, a literal beside a float32 does not make the result a float64.
            others = [
                each.type
                for each, argument in zip(operands, (left, right), strict=True)
                if not _is_flexible(argument)
            ]
            single = all(at.is_float32(each) for each in others)
            data_type: Any = pa.float32() if single else pa.float64()
            values = [_cast(each, data_type, safe=False) for each in operands]
            return BoundCall("/" if function == "divide" else function, tuple(values), data_type)
        if "decimal" in kinds or any(at.is_uint64(each.type) for each in operands):
            return _compute_decimal(function, [_to_decimal(each, node) for each in operands], node)
        values = [_cast(each, pa.int64()) for each in operands]
        return BoundCall(function, tuple(values), pa.int64())

    def _compute_one(self, function: str, argument: Any, node: Any) -> Any:
        operand = self._number(argument, node)
        if at.is_unsigned_integer(operand.type) and function == "negate":
            return _compute_decimal(
                "-", [_to_decimal(_zero(), node), _to_decimal(operand, node)], node
            )
        if at.is_signed_integer(operand.type):
            operand = _cast(operand, pa.int64())
        return BoundCall(function, (operand,), operand.type)

    def _choose(self, function: str, arguments: Any, node: Any, *conditions: Any) -> Any:
        """Return a choice among values, which get a common type."""
        operands = [self.value(each) for each in arguments]
        types = {each.type for each in operands if not at.is_null(each.type)}
        if len(types) > 1:
            floats = {kind_of(each) for each in types}
            if floats == {"text"}:
                types = {pa.large_string()}
            elif floats == {"integer"} and pa.uint64() not in types:
                types = {pa.int64()}
            elif "float" in floats and floats <= set(_NUMBERS):
                types = {pa.float64()}
            elif floats <= {"integer", "decimal"}:
                operands = _align_decimals([_to_decimal(each, node) for each in operands], node)
                types = {operands[0].type}
            else:
                names = " and ".join(sorted(map(str, types)))
                refuse(f"{describe(node)} has values of the types {names}", node)
        data_type = types.pop() if types else pa.null()
        values = [_cast(each, data_type, safe=False) for each in operands]
        return BoundCall(function, (*conditions, *values), data_type)

    def _cast(self, node: Cast) -> Any:
        operand, target = self.value(node.argument), node.type
        for data_type in (operand.type, target):
            if kind_of(data_type) in ("nested", "interval", "UUID"):
                refuse(f"it converts {describe(node.argument)} to {target}", node)
        return _cast(operand, target, safe=node.safe)


# --- literals ------------------------------------------------------------------------------------


def _compare_literal(symbol: str, operand: Any, literal: Literal, nodes: tuple[Any, Any]) -> Any:
    """Return the comparison of an operand with a literal of any type."""
    kind = kind_of(operand.type)
    if literal.value is None or kind == "null":
        return BoundLiteral(pa.scalar(None, pa.bool_()))
    match kind:
        case "float":
            scalar = make_float(literal.value, _find_precision(operand))
            if scalar is not None:
                is_double = at.is_float64(scalar.type)
                operand = _to_float(operand) if is_double else operand
                return _make_comparison(symbol, operand, scalar.cast(operand.type))
        case "integer" | "decimal" | "date" | "timestamp" | "time" | "duration":
            place = find_place(literal.value, operand.type)
            if place is not None:
                return _compare_place(symbol, operand, place)
        case "boolean" if isinstance(literal.value, bool):
            return _make_comparison(symbol, operand, pa.scalar(literal.value))
        case "text" if isinstance(literal.value, str):
            return _make_comparison(symbol, operand, pa.scalar(literal.value, operand.type))
        case "binary":
            data = make_bytes(literal.value)
            if data is not None:
                return _compare_bytes(symbol, operand, data)
        case "UUID":
            data = make_uuid(literal.value)
            if data is not None:
                return _make_comparison(symbol, operand, pa.scalar(data, pa.binary(16)))
        case _:
            pass
    _refuse_pair(operand.type, literal, nodes)


def _find_precision(operand: Any) -> Any:
    """Return the type of the values of a floating-point operand. Half floats are computed wider."""
    is_cast = isinstance(operand, BoundCall) and operand.function == "cast"
    source = operand.arguments[0].type if is_cast else operand.type
    return source if at.is_float16(source) else operand.type


def _refuse_pair(data_type: Any, literal: Literal, nodes: tuple[Any, Any]) -> NoReturn:
    left, node = nodes
    remedy = _REMEDIES.get(kind_of(data_type))
    if remedy is None:
        is_text = isinstance(literal.value, str)
        remedy = "write a number without quotes" if is_text else "compare it with a number"
    refuse(
        f"{describe_value(literal.value)} cannot be compared with a column of type {data_type} "
        f"({describe(left)}): {remedy}",
        literal if literal.position is not None else node,
    )


def _make_comparison(symbol: str, operand: Any, scalar: Any) -> BoundCall:
    return BoundCall(symbol, (operand, BoundLiteral(scalar)), pa.bool_())


def _compare_place(symbol: str, operand: Any, place: Fraction) -> Any:
    """Return the comparison with a number of units of the operand's type, or one equal to it."""
    low, high = find_limits(operand.type)
    if place.denominator == 1 and low <= place <= high:
        return _make_comparison(symbol, operand, make_scalar(int(place), operand.type))
    if symbol in ("=", "<>"):
        return BoundCall("always", (operand,), pa.bool_(), symbol == "<>")
    is_less = symbol in ("<", "<=")
    if place > high:
        return BoundCall("always", (operand,), pa.bool_(), is_less)
    if place < low:
        return BoundCall("always", (operand,), pa.bool_(), not is_less)
    floor = make_scalar(place.numerator // place.denominator, operand.type)
    return _make_comparison("<=" if is_less else ">", operand, floor)


def _compare_bytes(symbol: str, operand: Any, data: bytes) -> Any:
    data_type = operand.type
    if at.is_fixed_size_binary(data_type) and data_type.byte_width != len(data):
        if symbol in ("=", "<>"):
            return BoundCall("always", (operand,), pa.bool_(), symbol == "<>")
        operand = _cast(operand, pa.binary())
    return _make_comparison(symbol, operand, pa.scalar(data, operand.type))


def _make_natural(node: Literal) -> BoundLiteral:
    """Return a literal in the type that it has by itself."""
    match node.value:
        case int(value) if not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
            return _make_decimal(Decimal(value), node)
        case Decimal():
            return _make_decimal(node.value, node)
        case Instant(kind, nanoseconds):
            types: dict[str, Any] = {
                "date": (pa.date32(), DAY),
                "time": (pa.time64("ns"), 1),
                "timestamp": (pa.timestamp("us"), 1000),
                "timestamptz": (pa.timestamp("us", "UTC"), 1000),
                "duration": (pa.duration("us"), 1000),
            }
            data_type, unit = types[kind]
            if nanoseconds % unit and kind != "date":
                data_type, unit = types[kind][0], 1
                data_type = {
                    "timestamp": pa.timestamp("ns"),
                    "timestamptz": pa.timestamp("ns", "UTC"),
                }.get(kind, pa.duration("ns"))
            try:
                return BoundLiteral(make_scalar(nanoseconds // unit, data_type))
            except (pa.ArrowException, OverflowError):
                refuse(f"{describe(node)} is out of range", node)
        case _:
            return BoundLiteral(pa.scalar(node.value))


def _make_decimal(value: Decimal, node: Any) -> BoundLiteral:
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > _MAX_PRECISION:
        refuse(f"{describe(node)} has more than {_MAX_PRECISION} digits", node)
    return BoundLiteral(pa.scalar(value, _decimal_type(precision, scale)))


# --- types ---------------------------------------------------------------------------------------


def _is_uuid(data_type: Any) -> bool:
    return isinstance(data_type, pa.UuidType)


def _storage(data_type: Any) -> Any:
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def _make_plain(column: Any) -> Any:
    """Return a column with the values of its dictionary or runs, in a type that Arrow compares."""
    bound = column
    while isinstance(bound.type, (pa.DictionaryType, pa.RunEndEncodedType)):
        bound = BoundCall("decode", (bound,), _widen_view(bound.type.value_type))
    data_type = bound.type
    if at.is_float16(data_type):
        return _cast(bound, pa.float32())
    if at.is_decimal32(data_type) or at.is_decimal64(data_type):
        data_type = pa.decimal128(data_type.precision, data_type.scale)
    if at.is_decimal(data_type) and data_type.scale < 0:
        data_type = _decimal_type(data_type.precision - data_type.scale, 0)
    return _cast(bound, data_type)


def _widen_view(data_type: Any) -> Any:
    """Return the type in which Arrow decodes values of a dictionary or of runs."""
    if at.is_string_view(data_type):
        return pa.large_string()
    return pa.large_binary() if at.is_binary_view(data_type) else data_type


def _cast(bound: Any, data_type: Any, *, safe: bool = True) -> Any:
    if bound.type == data_type:
        return bound
    return BoundCall("cast", (bound,), data_type, safe)


def strip_casts(bound: Any) -> Any:
    """Return what a bound node converts without loss, for a comparison or a test for null."""
    while isinstance(bound, BoundCall) and bound.function == "cast":
        (argument,) = bound.arguments
        if not _widens(argument.type, bound.type):
            break
        bound = argument
    return bound


def _widens(source: Any, target: Any) -> bool:
    """Return whether a conversion keeps each value, and filters can compare the source itself."""
    kinds = kind_of(source), kind_of(target)
    match kinds:
        case ("integer", "integer"):
            low, high = find_limits(source)
            least, most = find_limits(target)
            return least <= low and high <= most
        case ("integer", "float"):
            return source.bit_width <= (32 if at.is_float64(target) else 16)
        case ("float", "float"):
            return False  # a literal beside a float32 means another value than beside a float64
        case ("decimal", "decimal") if source.bit_width >= 128 and source.scale >= 0:
            digits = source.precision - source.scale, target.precision - target.scale
            return target.scale >= source.scale and digits[1] >= digits[0]
        case ("text", "text"):
            return True
        case _:
            return False


def _to_float(bound: Any) -> Any:
    return _cast(bound, pa.float64(), safe=False)


def _zero() -> BoundLiteral:
    return BoundLiteral(pa.scalar(0))


def _is_flexible(node: Any) -> bool:
    return isinstance(node, Literal) and not isinstance(node.value, float)


def _decimal_type(precision: int, scale: int) -> Any:
    return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)


def _to_decimal(bound: Any, node: Any) -> Any:
    if at.is_integer(bound.type):
        digits = {8: 3, 16: 5, 32: 10}.get(bound.type.bit_width, 20)
        return _cast(bound, pa.decimal128(digits, 0))
    if not at.is_decimal(bound.type):
        refuse(f"{describe(node)} has operands of different kinds", node)
    return bound


def _align_decimals(operands: list[Any], node: Any) -> list[Any]:
    """Return decimals with a common type that has all of their values."""
    scale = max(each.type.scale for each in operands)
    digits = max(each.type.precision - each.type.scale for each in operands)
    if digits + scale > _MAX_PRECISION:
        refuse(
            f"{describe(node)} needs decimals of {digits + scale} digits; at most {_MAX_PRECISION} "
            "are supported",
            node,
        )
    data_type = _decimal_type(digits + scale, scale)
    return [_cast(each, data_type) for each in operands]


def _compute_decimal(function: str, operands: list[Any], node: Any) -> Any:
    left, right = (each.type for each in operands)
    if function == "divide":
        refuse(f"{describe(node)} divides decimals; use / for a floating-point result", node)
    if function == "*":
        scale = left.scale + right.scale
        precision = left.precision + right.precision + 1
    else:
        scale = max(left.scale, right.scale)
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    if precision > _MAX_PRECISION:
        refuse(f"{describe(node)} needs decimals of {precision} digits", node)
    if precision > 38:
        operands = [
            _cast(each, pa.decimal256(each.type.precision, each.type.scale)) for each in operands
        ]
    return BoundCall(function, tuple(operands), _decimal_type(precision, scale))


def _compare_operands(symbol: str, left: Any, right: Any, node: Any) -> Any:
    """Return the comparison of two operands of any types."""
    kinds = kind_of(left.type), kind_of(right.type)
    if "null" in kinds:
        return BoundLiteral(pa.scalar(None, pa.bool_()))
    if set(kinds) <= set(_NUMBERS):
        left, right = _align_numbers(left, right, node)
    elif set(kinds) <= {"date", "timestamp"} or kinds in (("time",) * 2, ("duration",) * 2):
        if left.type != right.type:
            units = tuple(find_unit(each.type) for each in (left, right))
            return BoundCall("compare ticks", (left, right), pa.bool_(), (symbol, *units))
    elif kinds[0] == kinds[1] and kinds[0] in ("text", "binary"):
        if left.type != right.type:
            wide: Any = pa.large_string() if kinds[0] == "text" else pa.large_binary()
            left, right = _cast(left, wide), _cast(right, wide)
    elif kinds[0] != kinds[1] or kinds[0] in ("nested", "interval"):
        refuse(
            f"{describe(node)} compares the types {left.type} and {right.type}, which have no "
            f"common type: {_find_remedy(kinds)}",
            node,
        )
    return BoundCall(symbol, (left, right), pa.bool_())


def _find_remedy(kinds: tuple[str, str]) -> str:
    for kind in kinds:
        if kind in ("nested", "interval"):
            return _REMEDIES[kind]
    return "compare columns of the same kind"


def _align_numbers(left: Any, right: Any, node: Any) -> tuple[Any, Any]:
    types = left.type, right.type
    if types[0] == types[1]:
        return left, right
    kinds = {kind_of(each) for each in types}
    if "float" in kinds:
        return _to_float(left), _to_float(right)
    if kinds == {"integer"}:
        unsigned = [at.is_unsigned_integer(each) for each in types]
        if all(unsigned):
            return _cast(left, pa.uint64()), _cast(right, pa.uint64())
        if pa.uint64() not in types:
            return _cast(left, pa.int64()), _cast(right, pa.int64())
    operands = [_to_decimal(left, node), _to_decimal(right, node)]
    return tuple(_align_decimals(operands, node))  # pyright: ignore[reportReturnType]


def walk_bound(bound: Any) -> Iterator[Any]:
    """Yield a bound node and all nodes below it."""
    yield bound
    if isinstance(bound, BoundCall):
        for argument in bound.arguments:
            yield from walk_bound(argument)
