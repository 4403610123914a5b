"""Comparing a column with values, as expressions that Substrait can represent.

Substrait represents no checked casts, and Arrow inserts one wherever two types differ. So a value
is converted to the type of its column, or else the column is cast without checks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UsageError

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""The comparisons of two operands, by their symbols."""
_MAX_EQUALITIES = 8
"""The largest number of values that are compared one by one."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a comparison: an expression, or a literal."""

    type: Any
    """The type (``pyarrow.DataType``)."""
    expression: Any = None
    """The expression (``pyarrow.compute.Expression``); None for a literal."""
    value: Any = None
    """The value of a literal."""

    def cast(self, target: Any) -> Any:
        """Return the expression of this operand with another type.

        Raises `UsageError` if a literal has no such value.
        """
        if self.expression is None:
            return pc.scalar(convert(self.value, target))
        if self.type.equals(target):
            return self.expression
        return self.expression.cast(target, safe=False)


def storage_type(data_type: Any) -> Any:
    """Return the storage type of an extension type, and any other type as it is.

    Examples
    --------
    >>> storage_type(pa.uuid())
    FixedSizeBinaryType(fixed_size_binary[16])
    """
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def column(name: str, schema: pa.Schema) -> Operand:
    """Return the operand of a column.

    Dictionary-encoded columns have the type of their values. Of extension types, only UUIDs keep
    their type, which literals then have, too.

    Raises `UsageError` if the schema has no such column, or several.
    """
    indices = schema.get_all_field_indices(name)
    if len(indices) != 1:
        from difflib import get_close_matches

        problem = f"{len(indices)} columns are named" if indices else "there is no column"
        near = get_close_matches(name, schema.names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near and not indices else ""
        raise UsageError(f"the filter is invalid: {problem} {name!r}{hint}")
    field_type, expression = schema.field(indices[0]).type, pc.field(name)
    if isinstance(field_type, pa.DictionaryType):
        return Operand(field_type.value_type, expression.cast(field_type.value_type, safe=False))
    if not isinstance(field_type, pa.UuidType):
        field_type = storage_type(field_type)
    return Operand(field_type, expression)


def literal(value: Any) -> Operand:
    """Return the operand of a Python value.

    Raises `UsageError` if Arrow has no type for it.
    """
    try:
        return Operand(pa.scalar(value).type, value=value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the filter is invalid: {error}") from None


def convert(value: Any, target: Any) -> Any:
    """Return a value as a ``pyarrow.Scalar`` of a type.

    Raises `UsageError` if the type has no such value.
    """
    try:
        if isinstance(target, pa.UuidType):
            number = value if isinstance(value, UUID) else UUID(value)
            return pa.scalar(number.bytes, target.storage_type)
        if isinstance(value, str) or not pa.types.is_temporal(target):
            return pa.scalar(value).cast(target)
        return pa.scalar(value, target)
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError):
        raise UsageError(
            f"the filter is invalid: {value!r} cannot be compared with a column of type {target}"
        ) from None


def compare(symbol: str, left: Operand, right: Operand) -> Any:
    """Return the expression that compares two operands, with a symbol of `COMPARISONS`.

    Raises `UsageError` if the types do not fit each other.
    """
    target = _common_type(left, right)
    return COMPARISONS[symbol](left.cast(target), right.cast(target))


def is_in(operand: Operand, values: Collection[Any]) -> Any:
    """Return the expression that is true for some values, and null for null.

    Raises `UsageError` if there are no values, or their types do not fit.
    """
    if not values:
        raise UsageError("the filter is invalid: the list of values after 'in' is empty")
    if len(values) <= _MAX_EQUALITIES:
        equalities = [compare("=", operand, literal(value)) for value in values]
        return combine(operator.or_, equalities)
    converted = [convert(value, operand.type).as_py() for value in values]
    array: Any = pa.array(converted, storage_type(operand.type))
    expression = operand.cast(operand.type)
    # Arrow's function is false for null. The comparison is null for null, and otherwise false.
    return expression.isin(array) | (expression < expression)


def combine(operation: Callable[[Any, Any], Any], expressions: Sequence[Any]) -> Any:
    """Return the expression that combines one or more others with an associative operation.

    Arrow's Substrait doubles in size with every level of nesting, so the levels are as few as
    possible.
    """
    if len(expressions) == 1:
        return expressions[0]
    half = len(expressions) // 2
    left, right = combine(operation, expressions[:half]), combine(operation, expressions[half:])
    return operation(left, right)


def _common_type(left: Operand, right: Operand) -> Any:
    if left.type.equals(right.type):
        return left.type
    for one, other in ((left, right), (right, left)):
        if one.expression is None and other.expression is not None:
            return _type_for_literal(other.type, one)
    if _are_numbers(left, right):
        return pa.float64() if _has_fraction(left, right) else pa.int64()
    return left.type


def _type_for_literal(column_type: Any, value: Operand) -> Any:
    """Return the type to compare a column and a literal with: the column's, if that is exact."""
    types = pa.types
    is_number = types.is_integer(column_type) or types.is_floating(column_type)
    if is_number and isinstance(value.value, (int, float)) and not isinstance(value.value, bool):
        try:
            exact = pa.scalar(value.value).cast(column_type).as_py() == value.value
        except pa.ArrowException:
            exact = False
        if not exact and types.is_integer(column_type):
            return pa.float64() if isinstance(value.value, float) else pa.int64()
    return column_type


def _are_numbers(*operands: Operand) -> bool:
    types = pa.types
    return all(types.is_integer(one.type) or types.is_floating(one.type) for one in operands)


def _has_fraction(*operands: Operand) -> bool:
    return any(pa.types.is_floating(operand.type) for operand in operands)
