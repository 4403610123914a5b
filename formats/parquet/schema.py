"""The schema of a Parquet file: the tree of its elements, and the annotations that each may have.

The annotations follow "Logical Types", with its rules of LIST and MAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ...errors import InvalidDataError, LimitError
from .logical_types import (
    Converted,
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


INT96_BYTES = INTERVAL_BYTES = 12
MAX_DECIMAL_DIGITS = 76
"""The precision of Arrow's largest decimal type."""
_BYTE_ARRAYS = (Kind.STRING, Kind.ENUM, Kind.JSON, Kind.BSON, Kind.GEOMETRY, Kind.GEOGRAPHY)
_FIXED = {Kind.UUID: 16, Kind.FLOAT16: 2, Kind.INTERVAL: INTERVAL_BYTES}
_LONG_TIMESTAMP_BYTES = 12
"""The size of a TIMESTAMP that newer writers store in a FIXED_LEN_BYTE_ARRAY."""


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

    Raises `InvalidDataError` if an element is malformed, with its name, or the numbers of children
    do not fit, and `LimitError` if the schema is nested too deeply.
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


def has_converted_beside_unknown(element: Struct) -> bool:
    """Return whether an element has a ConvertedType beside the LogicalType UNKNOWN, which it beats.

    parquet-java writes both for an INTERVAL, which has no LogicalType.
    """
    if LOGICAL not in element or CONVERTED not in element:
        return False
    is_unknown = {*_get(element, LOGICAL, dict, {})} == {Kind.UNKNOWN.value}
    return is_unknown and element[CONVERTED].content in list(Converted)


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
    if LOGICAL in element and not has_converted_beside_unknown(element):
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
    # Readers skip a field of another type than the specification's, also of another size.
    if type(value.content) is not kind or (kind is int and value.type is not Type.I32):
        raise InvalidDataError(f"its field {number} has the wrong type")
    return value.content


def _get_member(members: type[IntEnum], element: Struct, number: int, name: str) -> Any:
    value = _get(element, number, int, None)
    try:
        return members(value)
    except ValueError:
        raise InvalidDataError(f"its {name} is {value}") from None


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
