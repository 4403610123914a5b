"""Footers of Parquet files that have Variant columns, which pyarrow cannot annotate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...errors import UsageError
from .footer import Footer
from .logical_types import Kind, LogicalType
from .schema import Node, annotate
from .variant.storage import is_variant_field
from .variant_columns import find_problem

_LOCAL_TIME = LogicalType(Kind.TIME, utc=False, unit="MICROS")


def annotate_variants(data: bytes, paths: list[str]) -> bytes:
    """Return a footer in which some groups have the annotation VARIANT.

    Times inside of them become local times, as Variant Shredding demands; pyarrow writes all times
    as adjusted to UTC.

    Parameters
    ----------
    data : bytes
        The footer, as pyarrow writes it.
    paths : list of str
        The paths of the groups in the schema of the file, with dots between the names.

    Raises
    ------
    UsageError
        If the file has no such group, or it is not a Variant.
    """
    footer = Footer.parse(data)
    elements = list(footer.elements)
    nodes = {node.path: node for node in _walk(footer.root)}
    for path in paths:
        node = nodes.get(path)
        if node is None or node.physical is not None:
            raise UsageError(f"the file has no group {path!r}")
        for child in _walk(node):
            if child.kind is Kind.TIME:
                elements[child.index] = annotate(elements[child.index], _LOCAL_TIME)
        elements[node.index] = annotate(elements[node.index], LogicalType(Kind.VARIANT))
    changed = footer.with_elements(elements)
    _require_variants(changed, paths)
    return changed


def _require_variants(data: bytes, paths: list[str]) -> None:
    """Check the changed footer by reading it."""
    nodes = {node.path: node for node in _walk(Footer.parse(data).root)}
    for path in paths:
        problem = find_problem(nodes[path])
        if problem is not None:
            raise UsageError(f"the group {path!r} is not a Variant: {problem}")


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)


def find_variant_paths(schema: Any) -> list[str]:
    """Return where a file that pyarrow writes with a schema has unshredded Variants.

    The result is for `annotate_variants`.
    """
    return [path for field in schema for path in _find(field, field.name)]


def _find(field: Any, path: str) -> Iterator[str]:
    data_type: Any = field.type
    if is_variant_field(field):
        yield path
    elif isinstance(data_type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        yield from _find(data_type.value_field, f"{path}.list.element")
    elif isinstance(data_type, pa.MapType):
        yield from _find(data_type.key_field, f"{path}.key_value.key")
        yield from _find(data_type.item_field, f"{path}.key_value.value")
    elif isinstance(data_type, pa.StructType):
        for index in range(data_type.num_fields):
            child = data_type.field(index)
            yield from _find(child, f"{path}.{child.name}")
