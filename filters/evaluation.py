"""Evaluation of a bound filter over record batches, with Arrow's compute functions.

Conditions are true, false or null (three-valued logic, as in SQL). A short filter can take any
amount of memory, so `Cost` estimates the memory for its results before a batch is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from .binding import FLOAT_FUNCTIONS, TEXT_TESTS, BoundCall, BoundColumn, BoundLiteral, walk_bound
from .tree import COMPARISONS

_MAX_EQUALITIES: Final = 4
"""The largest number of values that are compared one by one."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An estimate of the memory that the results of a filter take, all together."""

    calls: int
    """The number of calls. A comparison with several values counts for each."""
    fixed_bytes: float
    """The size of the results of fixed size for one row, in bytes."""
    copying_calls: int
    """The number of calls whose results may be as large as all columns and literals together."""
    columns: Mapping[int, int]
    """For each column, the number of references to it."""
    literal_bytes: int
    """The size of all literals, in bytes."""

    @classmethod
    def estimate(cls, bound: Any) -> Cost:
        """Estimate the cost of a bound filter."""
        calls = copying = literal_bytes = 0
        fixed = 0.0
        columns: dict[int, int] = {}
        for node in walk_bound(bound):
            match node:
                case BoundColumn():
                    columns[node.index] = columns.get(node.index, 0) + 1
                case BoundLiteral():
                    data: Any = node.scalar.as_py() if node.scalar.is_valid else None
                    literal_bytes += len(data) if isinstance(data, (str, bytes)) else 16
                case _:
                    calls += len(node.options[0]) if node.function in ("in", "in bits") else 1
                    width = _width(node.type)
                    if width is None:
                        copying += 1
                    else:
                        fixed += width
        return cls(calls, fixed, copying, columns, literal_bytes)

    def nbytes(self, rows: int, columns: Mapping[int, Any]) -> float:
        """Return the estimated size of all results over some columns, in bytes."""
        total = rows * self.fixed_bytes
        if self.copying_calls:
            values = sum(
                references * _decoded_bytes(columns[index])
                for index, references in self.columns.items()
                if index in columns
            )
            total += self.copying_calls * (values + rows * self.literal_bytes)
        return total


def _width(data_type: Any) -> float | None:
    """Return the size of a value and its bit of validity, in bytes; None if it varies."""
    if at.is_fixed_size_binary(data_type):  # the number of bits of a wide one overflows
        return data_type.byte_width + 1 / 8
    try:
        return (data_type.bit_width + 1) / 8
    except ValueError:
        return None


def _decoded_bytes(array: Any) -> int:
    """Return the size of an array after the values of its dictionary or runs were repeated."""
    if isinstance(array.type, (pa.DictionaryType, pa.RunEndEncodedType)):
        is_dictionary = isinstance(array.type, pa.DictionaryType)
        values = array.dictionary if is_dictionary else array.values
        return len(array) * _widest_value(values)
    return array.nbytes


def _widest_value(values: Any) -> int:
    """Return the size of the largest value of an array in bytes, or more."""
    try:
        return pc.max(pc.binary_length(values)).as_py() or 0
    except pa.ArrowNotImplementedError:
        width = _width(values.type)
        return values.nbytes if width is None else int(width + 1)


def evaluate(bound: Any, columns: Mapping[int, Any], rows: int) -> Any:
    """Return whether a bound condition is true for each row (``pyarrow.BooleanArray``, no nulls).

    `columns` has the arrays of the columns that it refers to, by their indices. Raises
    `pyarrow.ArrowException` if a value does not fit a conversion, or a computation overflows.
    """
    result: Any = compute(bound, columns)
    if isinstance(result, pa.Scalar):
        repeat: Any = pa.repeat
        return repeat(pc.fill_null(result, pa.scalar(False)), rows)
    array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(False))
    # Arrow filters in half the time without a bitmap for nulls.
    bitmap = array.buffers()[1]
    return pa.Array.from_buffers(pa.bool_(), len(array), [None, bitmap], 0, array.offset)


def compute(bound: Any, columns: Mapping[int, Any]) -> Any:
    """Return the values of a bound node: an array, or a scalar if it refers to no column.

    `columns` and errors are those of `evaluate`.
    """
    match bound:
        case BoundColumn():
            array = columns[bound.index]
            while isinstance(array, pa.ExtensionArray):
                array = array.storage
            return array
        case BoundLiteral():
            return bound.scalar
        case BoundCall(
            arguments=(BoundCall(function="decode", arguments=(BoundColumn() as column,)), *rest)
        ):
            array = compute(column, columns)
            if isinstance(array, pa.DictionaryArray) and _fits_dictionary(array, bound, rest):
                values = array.dictionary.cast(bound.arguments[0].type)
                literals = [each.scalar for each in rest]
                return _FUNCTIONS[bound.function](bound, [values, *literals]).take(array.indices)
            arguments = [
                _decode(array, bound.arguments[0].type),
                *(compute(each, columns) for each in rest),
            ]
            return _FUNCTIONS[bound.function](bound, arguments)
        case _:
            arguments = [compute(each, columns) for each in bound.arguments]
            return _FUNCTIONS[bound.function](bound, arguments)


def _fits_dictionary(array: Any, bound: BoundCall, others: list[Any]) -> bool:
    """Return whether to evaluate a function on a dictionary rather than on each row."""
    if bound.function not in _ELEMENTWISE or len(array.dictionary) > len(array):
        return False
    return all(isinstance(each, BoundLiteral) for each in others)


def _call(name: str) -> Callable[[BoundCall, list[Any]], Any]:
    function: Any = getattr(pc, name)
    return lambda _, arguments: function(*arguments)


def _fold(name: str) -> Callable[[BoundCall, list[Any]], Any]:
    function: Any = getattr(pc, name)
    return lambda _, arguments: reduce(function, arguments)


def _always(bound: BoundCall, arguments: list[Any]) -> Any:
    """Return a value for each value, and null for null."""
    value = pa.scalar(bound.options)
    (array,) = arguments
    return _where_valid(array, value)


def _where_valid(array: Any, value: Any) -> Any:
    """Return a value, or values, where an array is not null, and null elsewhere."""
    valid: Any = _is_valid(array)
    return pc.if_else(valid, value, pa.scalar(None, pa.bool_()))


def _is_valid(array: Any) -> Any:
    return pc.invert(_find_nulls(array))


def _is_in(bound: BoundCall, arguments: list[Any]) -> Any:
    values, has_null = bound.options
    (array,) = arguments
    distinguishes_zeros = bound.function == "in bits"
    if 0 < len(values) <= _MAX_EQUALITIES and not distinguishes_zeros:
        found = reduce(pc.or_kleene, (pc.equal(array, each) for each in values))
    else:
        if at.is_floating(values.type) and not distinguishes_zeros:
            zero = pa.scalar(0, values.type)
            values, keys = pc.add(values, zero), pc.add(array, zero)
        else:
            keys = array
        found = pc.is_in(keys, value_set=values)
        found = _where_valid(array, found) if array.null_count else found
    if not has_null:
        return found
    return pc.or_kleene(found, pa.scalar(None, pa.bool_()))


def _is_null(_: BoundCall, arguments: list[Any]) -> Any:
    return _find_nulls(arguments[0])


def _find_nulls(array: Any) -> Any:
    if isinstance(array, pa.DictionaryArray) and array.dictionary.null_count:
        nulls: Any = pc.is_null(array.dictionary)
        return pc.fill_null(nulls.take(array.indices), True)
    return pc.is_null(array)


def _is_true(bound: BoundCall, arguments: list[Any]) -> Any:
    (value,) = arguments
    value = value if bound.function == "is true" else pc.invert(value)
    return pc.coalesce(value, pa.scalar(False))


def _match_text(bound: BoundCall, arguments: list[Any]) -> Any:
    (array,), pattern = arguments, bound.options
    match bound.function:
        case "starts_with":
            return pc.starts_with(array, pattern=pattern)
        case "ends_with":
            return pc.ends_with(array, pattern=pattern)
        case "contains":
            return pc.match_substring(array, pattern=pattern)
        case _:
            ignore_case = bound.function == "ilike"
            if "\\" not in pattern:
                return pc.match_like(array, pattern, ignore_case=ignore_case)
            # To Arrow, a backslash is an escape character. SQL has none.
            wildcards = {"%": ".*", "_": "."}
            parts = (wildcards.get(each) or re.escape(each) for each in pattern)
            expression = f"^(?s:{''.join(parts)})$"
            return pc.match_substring_regex(array, expression, ignore_case=ignore_case)


def _decode(array: Any, data_type: Any) -> Any:
    """Return the values of an array without its dictionary or its runs."""
    if isinstance(array, pa.DictionaryArray):
        return array.dictionary.cast(data_type).take(array.indices)
    decode: Any = getattr(pc, "run_end_decode")  # noqa: B009
    return decode(array).cast(data_type)


def _cast(bound: BoundCall, arguments: list[Any]) -> Any:
    (array,) = arguments
    return pc.cast(array, bound.type, safe=bound.options)


def _compare_ticks(bound: BoundCall, arguments: list[Any]) -> Any:
    """Compare dates, times or durations of different units exactly, without a conversion.

    With n coarse units c and fine units f, and q = floor(f / n): c = f if c = q without remainder,
    and c < f if c < q, or c = q with a remainder.
    """
    symbol, left_unit, right_unit = bound.options
    left, right = map(_to_ticks, arguments)
    if left_unit == right_unit:
        return _COMPARISONS[symbol](left, right)
    if left_unit < right_unit:
        mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        symbol, left, right = mirrored.get(symbol, symbol), right, left
        left_unit, right_unit = right_unit, left_unit
    factor = pa.scalar(left_unit // right_unit, pa.int64())
    zero = pa.scalar(0, pa.int64())
    quotient: Any = pc.divide(right, factor)
    rest: Any = pc.subtract(right, pc.multiply(quotient, factor))
    quotient = pc.subtract(quotient, pc.cast(pc.less(rest, zero), pa.int64()))
    has_rest = pc.not_equal(rest, zero)
    equal = pc.equal(left, quotient)
    match symbol:
        case "=":
            return pc.and_(equal, pc.invert(has_rest))
        case "<>":
            return pc.or_(pc.invert(equal), has_rest)
        case "<":
            return pc.or_(pc.less(left, quotient), pc.and_(equal, has_rest))
        case "<=":
            return pc.less_equal(left, quotient)
        case ">":
            return pc.greater(left, quotient)
        case _:
            rounded = pc.and_(equal, pc.invert(has_rest))
            return pc.or_(pc.greater(left, quotient), rounded)


def _to_ticks(array: Any) -> Any:
    """Return dates, times or durations as their numbers of units (int64)."""
    if isinstance(array, pa.Scalar):
        value: Any = array
        return pa.scalar(value.value, pa.int64())
    width = pa.int32() if array.type.bit_width == 32 else pa.int64()
    return array.view(width).cast(pa.int64())


def _intersects(bound: BoundCall, arguments: list[Any]) -> Any:
    condition, edges = bound.options
    return pa.array(condition.match(arguments[0], edges))


def _divide_whole(_: BoundCall, arguments: list[Any]) -> Any:
    return pc.divide_checked(*arguments)


_ELEMENTWISE: Final = frozenset((*COMPARISONS, *TEXT_TESTS, "in", "in bits", "isnan"))
"""Functions that are null for null."""
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_FUNCTIONS: Final[dict[str, Callable[[BoundCall, list[Any]], Any]]] = {
    **{symbol: _call(function.__name__) for symbol, function in _COMPARISONS.items()},
    "and": _fold("and_kleene"),
    "or": _fold("or_kleene"),
    "xor": _call("xor"),
    "not": _call("invert"),
    "always": _always,
    "in": _is_in,
    "in bits": _is_in,
    "is null": _is_null,
    "is true": _is_true,
    "is false": _is_true,
    "isnan": _call("is_nan"),
    **dict.fromkeys(TEXT_TESTS, _match_text),
    "decode": lambda bound, arguments: _decode(arguments[0], bound.type),
    "cast": _cast,
    "compare ticks": _compare_ticks,
    "+": _call("add_checked"),
    "-": _call("subtract_checked"),
    "*": _call("multiply_checked"),
    "/": _call("divide"),
    "divide": _divide_whole,
    "negate": _call("negate_checked"),
    "abs": _call("abs_checked"),
    **{name: _call(name) for name in FLOAT_FUNCTIONS},
    "if_else": _call("if_else"),
    "coalesce": _call("coalesce"),
    "intersects": _intersects,
}
