"""Corrections of schemas that pyarrow reads wrongly or refuses.

A corrected schema describes the same bytes. `columns` then gives the arrays their real types.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .annotations import MAX_DECIMAL_DIGITS, is_entries, is_list_of_entries
from .footer import Footer
from .logical_types import Converted, Kind, LogicalType
from .schema import CONVERTED, LENGTH, LOGICAL, TYPE, Node, Physical, annotate
from .thrift import Struct, Type, Value

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
    """Return SchemaElements that pyarrow reads without loss; None if those of the file are."""
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
    if not keeps_annotation(node) or kind in (Kind.GEOMETRY, Kind.GEOGRAPHY, Kind.UNKNOWN):
        return annotate(element, None)
    if kind is Kind.ENUM:
        return annotate(element, LogicalType(Kind.STRING))
    if kind is Kind.MAP:
        return _correct_map(node, element)
    if LOGICAL in element and CONVERTED in element and _is_unknown(element):
        return {number: value for number, value in element.items() if number != CONVERTED}
    return None


def _correct_map(node: Node, element: Struct) -> Struct | None:
    """Correct a group with the annotation MAP, or its repeated group, which once had one, too."""
    if is_entries(node):
        return None
    if is_list_of_entries(node):
        return annotate(element, LogicalType(Kind.LIST))
    if node.converted == Converted.MAP_KEY_VALUE:
        return annotate(element, LogicalType(Kind.MAP))
    return None


def _is_unknown(element: Struct) -> bool:
    """Return whether the ConvertedType beside a LogicalType has an unknown number."""
    return element[CONVERTED].content not in list(Converted)
