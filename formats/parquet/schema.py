"""The schema of a Parquet file: the tree of its elements and their annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ...errors import InvalidDataError, LimitError
from .logical_types import (
    Kind,
    LogicalType,
    encode_logical_type,
    find_converted_type,
    parse_converted_type,
    parse_logical_type,
)
from .thrift import Struct, Type, Value

MAX_NESTING = 100
"""The largest number of groups inside each other."""
TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED, SCALE, PRECISION, FIELD_ID, LOGICAL = range(
    1, 11
)
"""The field numbers of SchemaElement."""


class Physical(IntEnum):
    """The physical types ("Types")."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


class Repetition(IntEnum):
    """How often a field occurs in its parent."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


@dataclass(slots=True)
class Node:
    """A field of a schema: a column or a group."""

    index: int
    """The index of the element in the list of all elements."""
    name: str
    """The name."""
    path: str
    """The names from the top, separated by dots. Empty for the root."""
    repetition: Repetition
    """How often it occurs in its parent. The root is required."""
    physical: Physical | None
    """The physical type of a column. None for a group."""
    length: int
    """The length of the values of a FIXED_LEN_BYTE_ARRAY in bytes; otherwise 0."""
    logical: LogicalType | None
    """The annotation, also if the file has only a ConvertedType. None if there is none."""
    converted: int | None = None
    """The ConvertedType of the file, or None."""
    children: list[Node] = field(default_factory=list["Node"])
    """The fields of a group."""

    @property
    def kind(self) -> Kind | None:
        """The kind of the annotation, or None."""
        return None if self.logical is None else self.logical.kind

    @property
    def is_repeated(self) -> bool:
        """Whether the field is repeated."""
        return self.repetition is Repetition.REPEATED

    @property
    def leaves(self) -> int:
        """The number of columns in this field."""
        if self.physical is not None:
            return 1
        return sum(child.leaves for child in self.children)


def build_tree(elements: Sequence[Struct]) -> Node:
    """Return the root of a schema.

    Parameters
    ----------
    elements : sequence of Struct
        The SchemaElements, depth first.

    Raises
    ------
    InvalidDataError
        If an element is malformed, or the numbers of children do not fit. The error names the
        element.
    LimitError
        If the schema is nested too deeply.
    """
    if not elements:
        raise InvalidDataError("the schema has no elements")
    root, count = _make_node(elements[0], 0, None)
    stack = [(root, count)]
    for index in range(1, len(elements)):
        while stack and len(stack[-1][0].children) == stack[-1][1]:
            stack.pop()
        if not stack:
            raise InvalidDataError(f"element {index} of the schema belongs to no group")
        parent = stack[-1][0]
        node, count = _make_node(elements[index], index, parent)
        parent.children.append(node)
        if count:
            if len(stack) >= MAX_NESTING:
                raise LimitError(f"{node.path!r} is nested more than {MAX_NESTING} levels deep")
            stack.append((node, count))
    for node, count in reversed(stack):
        if len(node.children) != count:
            raise InvalidDataError(
                f"the schema ends after {len(node.children)} of the {count} fields of {node.name!r}"
            )
    return root


def annotate(element: Struct, logical: LogicalType | None) -> Struct:
    """Return a SchemaElement with another annotation, or with none.

    It gets the LogicalType and the ConvertedType that the specification demands.
    """
    changed = {
        number: value
        for number, value in element.items()
        if number not in (CONVERTED, SCALE, PRECISION, LOGICAL)
    }
    if logical is None:
        return changed
    converted = find_converted_type(logical)
    if converted is not None:
        changed[CONVERTED] = Value(Type.I32, int(converted))
    if logical.kind is Kind.DECIMAL:
        changed[SCALE] = Value(Type.I32, logical.scale)
        changed[PRECISION] = Value(Type.I32, logical.precision)
    union = encode_logical_type(logical)
    if union is not None:
        changed[LOGICAL] = Value(Type.STRUCT, union)
    return changed


def _make_node(element: Struct, index: int, parent: Node | None) -> tuple[Node, int]:
    """Return the node of an element, without its children, and their number."""
    place = f"element {index} of the schema"
    try:
        name = _get(element, NAME, bytes, b"").decode()
    except UnicodeDecodeError:
        raise InvalidDataError(f"the name of {place} is not UTF-8") from None
    path = name if parent is None or not parent.path else f"{parent.path}.{name}"
    place = f"{place}, {name!r}," if name else place
    try:
        count = _get(element, CHILDREN, int, 0)
        if count < 0:
            raise InvalidDataError(f"it has {count} fields")
        physical, length = _read_physical(element, count)
        repetition = Repetition.REQUIRED
        if parent is not None:
            repetition = _get_member(Repetition, element, REPETITION, "repetition")
        logical = _read_logical(element)
    except InvalidDataError as error:
        raise InvalidDataError(f"{place} is malformed: {error.message}") from None
    converted = _get(element, CONVERTED, int, None)
    path = "" if parent is None else path
    return Node(index, name, path, repetition, physical, length, logical, converted), count


def _read_physical(element: Struct, count: int) -> tuple[Physical | None, int]:
    if count or TYPE not in element:
        return None, 0
    physical = _get_member(Physical, element, TYPE, "physical type")
    if physical is not Physical.FIXED_LEN_BYTE_ARRAY:
        return physical, 0
    length = _get(element, LENGTH, int, 0)
    if length <= 0:
        raise InvalidDataError(f"the length of its values is {length}")
    return physical, length


def _read_logical(element: Struct) -> LogicalType | None:
    if LOGICAL in element:
        return parse_logical_type(_get(element, LOGICAL, dict, {}))
    if CONVERTED in element:
        return parse_converted_type(
            _get(element, CONVERTED, int, 0),
            _get(element, PRECISION, int, None),
            _get(element, SCALE, int, None),
        )
    return None


def _get(element: Struct, number: int, kind: type, default: Any) -> Any:
    value = element.get(number)
    if value is None:
        return default
    if type(value.content) is not kind:
        raise InvalidDataError(f"its field {number} has the wrong type")
    return value.content


def _get_member(members: type[IntEnum], element: Struct, number: int, name: str) -> Any:
    value = _get(element, number, int, None)
    try:
        return members(value)
    except ValueError:
        raise InvalidDataError(f"its {name} is {value}") from None
