"""Which annotation a column or group may have ("Logical Types"), and the rules of LIST and MAP."""

from __future__ import annotations

from .logical_types import Converted, Kind, LogicalType
from .schema import Node, Physical, Repetition

INTERVAL_BYTES = 12
MAX_DECIMAL_DIGITS = 76
"""The precision of Arrow's largest decimal type."""
_BYTE_ARRAYS = (Kind.STRING, Kind.ENUM, Kind.JSON, Kind.BSON, Kind.GEOMETRY, Kind.GEOGRAPHY)
_FIXED = {Kind.UUID: 16, Kind.FLOAT16: 2, Kind.INTERVAL: INTERVAL_BYTES}
_LONG_TIMESTAMP_BYTES = 12
"""The size of a TIMESTAMP that newer writers store in a FIXED_LEN_BYTE_ARRAY."""


def mark_misplaced(root: Node) -> None:
    """Replace each annotation that its column or group must not have by a mark of it.

    Such a column is read as its physical type, like one whose annotation is unknown.
    """
    stack = [root]
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        logical = node.logical
        if logical is not None and not _is_allowed(node, logical):
            node.logical = LogicalType(Kind.FUTURE, mark=str(logical))


def list_element(node: Node) -> Node:
    """Return the field of a LIST that holds its elements ("Lists", the five rules).

    It is the repeated field itself, or the only field in it.
    """
    (repeated,) = node.children
    if repeated.physical is not None or len(repeated.children) != 1:
        return repeated
    (child,) = repeated.children
    if child.is_repeated or repeated.name in ("array", f"{node.name}_tuple"):
        return repeated
    return child


def map_entries(node: Node) -> Node:
    """Return the repeated group of a MAP, with a key and perhaps a value."""
    (entries,) = node.children
    return entries


def is_list_of_entries(node: Node) -> bool:
    """Return whether a MAP is read as a list, because its key is optional ("Maps")."""
    return map_entries(node).children[0].repetition is not Repetition.REQUIRED


def is_entries(node: Node) -> bool:
    """Return whether a group has the annotation that entries of a MAP once had."""
    return node.is_repeated and node.converted == Converted.MAP_KEY_VALUE


def _is_allowed(node: Node, logical: LogicalType) -> bool:
    kind = logical.kind
    if node.physical is None:
        return _is_allowed_on_group(node, kind)
    if kind in _BYTE_ARRAYS:
        return node.physical is Physical.BYTE_ARRAY
    if kind in _FIXED:
        return node.length == _FIXED[kind]
    if kind is Kind.DECIMAL:
        return _is_allowed_decimal(node, logical)
    if kind is Kind.UNKNOWN:  # required values are not null
        return node.repetition is Repetition.OPTIONAL
    if kind in (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.INT):
        return _is_allowed_number(node, logical)
    return kind is Kind.FUTURE


def _is_allowed_on_group(node: Node, kind: Kind) -> bool:
    (child, *others) = node.children or (None,)
    is_repeated = child is not None and child.is_repeated and not others
    if kind is Kind.LIST:
        return is_repeated
    if kind is Kind.MAP:
        if is_entries(node):
            return True
        return is_repeated and child is not None and 1 <= len(child.children) <= 2
    return kind in (Kind.VARIANT, Kind.FUTURE)


def _is_allowed_decimal(node: Node, logical: LogicalType) -> bool:
    precision = logical.precision
    if precision < 1 or not 0 <= logical.scale <= precision:
        return False
    if node.physical is Physical.INT32:
        return precision <= 9
    if node.physical is Physical.INT64:
        return precision <= 18
    if node.physical is Physical.FIXED_LEN_BYTE_ARRAY:
        # The largest number of n bytes has as many digits as 2 ** (8 n - 1), and fits one less.
        digits = len(str(1 << (8 * min(node.length, MAX_DECIMAL_DIGITS) - 1))) - 1
        return precision <= digits
    return node.physical is Physical.BYTE_ARRAY


def _is_allowed_number(node: Node, logical: LogicalType) -> bool:
    kind, unit = logical.kind, logical.unit
    if kind is Kind.INT and logical.bits not in (8, 16, 32, 64):
        return False
    if kind is Kind.TIMESTAMP and node.length == _LONG_TIMESTAMP_BYTES:
        return unit != "NANOS"  # more than 64 bits
    is_short = kind is Kind.DATE or (kind is Kind.TIME and unit == "MILLIS")
    is_short = is_short or (kind is Kind.INT and logical.bits < 64)
    return node.physical is (Physical.INT32 if is_short else Physical.INT64)
