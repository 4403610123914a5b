"""A node of an array, with the content that it must have, for the rules of its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import InvalidDataError
from .array_table import ArrayNode, BufferEntry
from .dtype import DType, PType, TypeKind
from .protobuf import read_fields

_BOOL = DType(TypeKind.BOOL)
_INTEGERS = range(PType.U8, PType.F16)


class NodeContent(NamedTuple):
    """The content that a node must have."""

    dtype: DType | None
    """Its type; None if it is unknown."""
    rows: int | None
    """The number of its rows; None if it is unknown."""
    is_elements: bool = False
    """Whether its rows are the elements of lists, whose number the row count does not bound."""


class NodePlace:
    """A node with its content and its buffers, for the rules.

    Parameters
    ----------
    node : ArrayNode
        The node.
    content : NodeContent
        Its content.
    encoding : str
        The identifier of its encoding.
    path : str
        Its place in the tree, for errors.
    buffers : sequence of BufferEntry
        All buffers of the array.
    """

    def __init__(
        self,
        node: ArrayNode,
        content: NodeContent,
        encoding: str,
        path: str,
        buffers: Sequence[BufferEntry],
    ) -> None:
        self.node = node
        self.rows = content.rows
        self.dtype = content.dtype
        self._name = f"node {path} ({encoding})"
        self._buffers = buffers

    def fail(self, problem: str) -> InvalidDataError:
        """Return the error for a problem."""
        return InvalidDataError(f"{self._name} {problem}")

    def read_fields(self) -> dict[int, list[int | bytes]]:
        """Return the parameters, by their number."""
        try:
            return read_fields(self.node.metadata)
        except ValueError:
            raise self.fail("has malformed parameters: they are not a protobuf message") from None

    def read_numbers(self, *fields: int) -> tuple[int, ...]:
        """Return parameters that are numbers, 0 for an absent one."""
        found = self.read_fields()
        numbers: list[int] = []
        for field in fields:
            value = found.get(field, [0])[-1]
            if not isinstance(value, int):
                raise self.fail(f"has malformed parameters: field {field} is not a number")
            numbers.append(value)
        return tuple(numbers)

    def require_kind(self, *kinds: TypeKind) -> None:
        """Check the type."""
        if self.dtype is not None and self.dtype.kind not in kinds:
            raise self.fail(f"has the type {self.dtype}, which its encoding cannot have")

    def require_buffers(self, least: int, most: int | None = None) -> None:
        """Check the number of buffers."""
        count = len(self.node.buffers)
        most = least if most is None else most
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"has {count} buffers; expected {expected}")

    def require_size(self, index: int, nbytes: int, *, exact: bool = True) -> None:
        """Check the size of a buffer, unless it is compressed."""
        number = self.node.buffers[index]
        entry = self._buffers[number]
        if entry.is_compressed or (entry.length == nbytes if exact else entry.length >= nbytes):
            return
        least = "" if exact else "at least "
        raise self.fail(
            f"has {entry.length} bytes in buffer {number}; expected {least}{nbytes} for "
            f"{self.rows} rows"
        )

    def require_children(self, least: int, most: int | None = None) -> int:
        """Check the number of children, and return it."""
        count = len(self.node.children)
        most = least if most is None else most
        if not least <= count <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise self.fail(f"has {count} children; expected {expected}")
        return count

    def add_validity(self, children: list[NodeContent]) -> list[NodeContent]:
        """Return these children, and the validity if there is one more."""
        count = self.require_children(len(children), len(children) + 1)
        if count == len(children):
            return children
        if self.dtype is not None and not self.dtype.nullable:
            raise self.fail(f"has a validity, but its type {self.dtype} is not nullable")
        return [*children, NodeContent(_BOOL, self.rows)]

    def integer(self, number: int, field: str) -> DType:
        """Return the type of integers."""
        if number not in _INTEGERS:
            raise self.fail(f"has the {field} {number}; expected 0 to {_INTEGERS[-1]}")
        return DType(TypeKind.PRIMITIVE, True, PType(number))

    def more_rows(self, count: int) -> int | None:
        """Return the number of rows and some more."""
        return None if self.rows is None else self.rows + count
