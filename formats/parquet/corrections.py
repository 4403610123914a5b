"""Corrections of schemas that pyarrow reads wrongly or refuses.

A corrected schema describes the same bytes. `columns` then gives the arrays their real types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...errors import InvalidDataError
from .footer import Footer
from .logical_types import Converted, Kind, LogicalType
from .schema import CONVERTED, LENGTH, LOGICAL, TYPE, Node, Physical, Repetition, annotate
from .thrift import Struct, Type, Value

MAX_DECIMAL_DIGITS = 76
"""The precision of Arrow's largest decimal type."""
INT96_BYTES = 12


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read values for which the specification leaves a choice."""

    int96: Literal["microseconds", "exact"] = "microseconds"
    """Whether digits of an INT96 below a microsecond are cut off, or are an error."""
    duplicate_keys: Literal["last", "keep"] = "last"
    """Whether the last value of a key of a MAP wins, or all entries are kept."""


DEFAULT_OPTIONS = ReadOptions()


def correct_schema(footer: Footer) -> tuple[Struct, ...] | None:
    """Return SchemaElements that pyarrow reads without loss; None if those of the file are.

    Raises
    ------
    InvalidDataError
        If a MAP has no repeated group.
    """
    elements = list(footer.elements)
    changed = False
    stack = list(footer.root.children)
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        corrected = _correct(node, elements[node.index])
        if corrected is not None:
            elements[node.index] = corrected
            changed = True
    return tuple(elements) if changed else None


def list_element(node: Node) -> Node:
    """Return the field of a LIST that holds its elements ("Lists", the five rules).

    It is the repeated field itself, or the only field in it.

    Raises
    ------
    InvalidDataError
        If the group does not have exactly one field, which is repeated.
    """
    repeated = node.children[0] if len(node.children) == 1 else None
    if repeated is None or not repeated.is_repeated:
        raise InvalidDataError(f"the LIST {node.path!r} does not have exactly one repeated field")
    if repeated.physical is not None or len(repeated.children) != 1:
        return repeated
    (child,) = repeated.children
    if child.is_repeated or repeated.name in ("array", f"{node.name}_tuple"):
        return repeated
    return child


def is_list_of_entries(node: Node) -> bool:
    """Return whether a MAP is read as a list, because its key is optional ("Maps")."""
    key = map_entries(node).children[0]
    return key.repetition is not Repetition.REQUIRED


def map_entries(node: Node) -> Node:
    """Return the repeated group of a MAP.

    Raises
    ------
    InvalidDataError
        If the MAP does not have one repeated group of a key and perhaps a value.
    """
    entries = node.children[0] if len(node.children) == 1 else None
    if entries is None or not entries.is_repeated or not 1 <= len(entries.children) <= 2:
        raise InvalidDataError(
            f"the MAP {node.path!r} does not have one repeated group of a key and perhaps a value"
        )
    return entries


def keeps_annotation(node: Node) -> bool:
    """Return whether Arrow has a type for the annotation of a column."""
    logical = node.logical
    if logical is None or logical.kind is Kind.FUTURE:
        return logical is None
    return logical.kind is not Kind.DECIMAL or logical.precision <= MAX_DECIMAL_DIGITS


def _correct(node: Node, element: Struct) -> Struct | None:
    kind = node.kind
    if node.physical is Physical.INT96:
        plain = annotate(element, None)
        fixed = Value(Type.I32, int(Physical.FIXED_LEN_BYTE_ARRAY))
        return plain | {TYPE: fixed, LENGTH: Value(Type.I32, INT96_BYTES)}
    if not keeps_annotation(node) or kind in (Kind.GEOMETRY, Kind.GEOGRAPHY):
        return annotate(element, None)
    if kind is Kind.ENUM and node.physical is Physical.BYTE_ARRAY:
        return annotate(element, LogicalType(Kind.STRING))
    if kind is Kind.MAP:
        return _correct_map(node, element)
    if LOGICAL in element and CONVERTED in element and _is_unknown(element):
        return {number: value for number, value in element.items() if number != CONVERTED}
    return None


def _correct_map(node: Node, element: Struct) -> Struct | None:
    """Correct a group with the annotation MAP, or its repeated group, which once had one, too."""
    if node.is_repeated and node.converted == Converted.MAP_KEY_VALUE:
        return None
    if is_list_of_entries(node):
        return annotate(element, LogicalType(Kind.LIST))
    if node.converted == Converted.MAP_KEY_VALUE:
        return annotate(element, LogicalType(Kind.MAP))
    return None


def _is_unknown(element: Struct) -> bool:
    """Return whether the ConvertedType beside a LogicalType has an unknown number."""
    return element[CONVERTED].content not in list(Converted)
