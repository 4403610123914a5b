"""Variant columns of a Parquet file in Arrow: unshredded, or one shredded field alone."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError
from .annotations import list_element
from .corrections import ReadOptions
from .logical_types import Kind
from .schema import Node, Physical, Repetition
from .variant.storage import FIELDS_KEY, STORAGE_TYPE, variant_field


def plan_variant(node: Node, column: Any) -> tuple[Any, Any]:
    """Return the field of a group with the annotation VARIANT, and the conversion of its arrays.

    Parameters
    ----------
    node : Node
        The group.
    column : pyarrow.Field
        The field that pyarrow reads, a struct.
    """
    metadata = {key: value for key, value in (column.metadata or {}).items() if key != FIELDS_KEY}
    planned = variant_field(column.name, nullable=column.nullable, metadata=metadata)
    return planned, partial(_convert, find_problem(node), node.path)


def find_problem(node: Node) -> str | None:
    """Return what is wrong with the schema of a Variant, or None.

    What Arrow's types do not show is checked here, and `unshred` checks the rest.
    """
    try:
        return _find_problem(node)
    except InvalidDataError as error:  # a LIST without a repeated field
        return error.message


def _find_problem(node: Node) -> str | None:
    children = {child.name: child for child in node.children}
    metadata = children.get("metadata")
    if metadata is None or metadata.repetition is Repetition.REPEATED:
        return "it has no field metadata"
    for child in node.children:
        if child.is_repeated or (child.name != "typed_value" and not _is_plain_binary(child)):
            return f"its field {child.name!r} is not a plain binary"
    return _find_typed_problem(children["typed_value"]) if "typed_value" in children else None


def _is_plain_binary(node: Node) -> bool:
    return node.physical is Physical.BYTE_ARRAY and node.logical is None


def _find_typed_problem(node: Node) -> str | None:
    if node.physical is not None:
        logical = "" if node.logical is None else f" ({node.logical})"
        problem = f"{node.physical.name}{logical} is not a type of shredded Variants"
        return None if _is_shredded_type(node) else f"{problem}, in {node.path!r}"
    groups = node.children
    if node.kind is Kind.LIST:
        groups = [list_element(node)]
    elif node.logical is not None:
        return f"the group {node.path!r} has an annotation"
    for group in groups:
        if group.physical is not None or group.is_repeated:
            return f"{group.path!r} is not a group of value and typed_value"
        for child in group.children:
            problem = _find_typed_problem(child) if child.name == "typed_value" else None
            if problem is not None:
                return problem
    return None


_PLAIN: Final = (
    Physical.BOOLEAN,
    Physical.INT32,
    Physical.INT64,
    Physical.FLOAT,
    Physical.DOUBLE,
    Physical.BYTE_ARRAY,
)


def _is_shredded_type(node: Node) -> bool:
    """Return whether a column has one of the types of Variant Shredding, "Shredded Value Types"."""
    logical = node.logical
    if node.is_repeated:
        return False
    if logical is None:
        return node.physical in _PLAIN
    if logical.kind is Kind.TIME:
        return not logical.utc
    kinds = (Kind.INT, Kind.DECIMAL, Kind.DATE, Kind.TIMESTAMP, Kind.STRING, Kind.UUID)
    return logical.kind in kinds


def _convert(problem: str | None, path: str, array: Any, options: ReadOptions) -> Any:
    """Return a column of Variants, unshredded."""
    if problem is not None:
        raise InvalidDataError(f"the Variant {path!r} is malformed: {problem}")
    from .variant.columns import unshred_column
    from .variant.unshredding import check_shredded_type, is_shredded

    try:
        check_shredded_type(array.type)
        if is_shredded(array.type):
            array = unshred_column(array)
    except InvalidDataError as error:
        raise InvalidDataError(f"the Variant {path!r}: {error.message}") from None
    metadata, value = array.field("metadata"), array.field("value")
    return make_variants(array, metadata, value)


def make_variants(array: Any, metadata: Any, value: Any) -> Any:
    """Return metadata and values as Variants, which are null where an array is null."""
    if value.null_count > array.null_count:  # a value that is missing is the Variant null
        value = pc.coalesce(value, pa.scalar(b"\0", value.type))
    mask = array.is_null() if array.null_count else None
    fields = [STORAGE_TYPE.field(index) for index in range(2)]
    children = [metadata.cast(pa.binary()), value.cast(pa.binary())]
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
