"""Variant columns of a Parquet file in Arrow: unshredded, or one shredded field alone (``v.a.b``).

The names of the fields follow the name of the Variant, with dots between them. A field that is
shredded as a primitive type has this type; a value that does not fit it is null. Any other field is
a Variant.

pyarrow cannot annotate Variant columns. `annotate_variants` does it in the footers of written
files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError, UsageError
from .conversions import ParquetOptions
from .footer import Footer
from .logical_types import Kind, LogicalType
from .schema import Node, Physical, Repetition, annotate, list_element
from .variant.arrow_fields import (
    FIELDS_KEY,
    MAX_FIELDS,
    MAX_STEPS,
    STORAGE_TYPE,
    VariantField,
    is_field_type,
    is_variant_field,
    variant_field,
)


def plan_variant(node: Node, column: Any) -> tuple[Any, Any]:
    """Return the field of a group with the annotation VARIANT, and the conversion of its arrays."""
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


def _convert(problem: str | None, path: str, array: Any, options: ParquetOptions) -> Any:
    """Return a column of Variants, unshredded."""
    if problem is not None:
        raise InvalidDataError(f"the Variant {path!r} is malformed: {problem}")
    from .variant.functions import unshred_column
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


def list_shredded_fields(root: Node, schema: pa.Schema) -> dict[str, VariantField]:
    """Return the shredded fields of the Variant columns of a file, by their names."""
    names = schema.names
    found: dict[str, VariantField] = {}
    if len(set(names)) < len(names) or any("." in name for name in names):
        return found
    for node, column in zip(root.children, schema, strict=True):
        if node.kind is not Kind.VARIANT or find_problem(node) is not None:
            continue
        for number, each in enumerate(_walk_fields(node, column.type, node.name, ())):
            if number >= MAX_FIELDS:
                break
            found[each.name] = each
    return found


def _walk_fields(
    node: Node, data_type: Any, column: str, steps: tuple[str, ...]
) -> Iterator[VariantField]:
    """Yield the fields of a group of value and typed_value, and those inside of them."""
    typed = next((child for child in node.children if child.name == "typed_value"), None)
    is_object = typed is not None and typed.physical is None and typed.kind is None
    if typed is None or not is_object or len(steps) >= MAX_STEPS:
        return
    typed_type: Any = data_type.field("typed_value").type
    for child in typed.children:
        if "." in child.name or not child.name:
            continue
        inner: Any = typed_type.field(child.name).type
        position = inner.get_field_index("typed_value")
        leaf = None if position < 0 else inner.field(position).type
        path = (*steps, child.name)
        name = ".".join((column, *path))
        yield VariantField(name, column, path, child.path, leaf if is_field_type(leaf) else None)
        yield from _walk_fields(child, inner, column, path)


def fit_fields(
    fields: Mapping[str, VariantField], shredded: Mapping[str, VariantField]
) -> dict[str, VariantField]:
    """Return fields with the paths at which a file has them; empty if it does not shred them."""
    return {
        name: replace(each, path=shredded[name].path if name in shredded else "")
        for name, each in fields.items()
    }


def physical_names(field: VariantField) -> list[str]:
    """Return the names by which pyarrow reads what a field of a Variant needs."""
    if not field.path:
        return [field.column]
    if field.data_type is not None:
        return [field.path]
    return [f"{field.column}.metadata", field.path]


def extract_field(column: Any, field: VariantField) -> Any:
    """Return a shredded field of a Variant column.

    Raises `InvalidDataError` if a value is invalid, or ``value`` and ``typed_value`` contradict
    each other.
    """
    from .variant.unshredding import read_typed, read_variants

    group = column
    for step in field.steps:
        group = _child(_child(group, "typed_value"), step)
    if field.data_type is not None:
        return read_typed(group, field.data_type)
    metadata = column.field("metadata")
    return read_variants(metadata, group).cast(STORAGE_TYPE)


def find_field(column: Any, field: VariantField) -> Any:
    """Return a field of an unshredded Variant column. A value that does not fit is null.

    Raises `InvalidDataError` if a value is invalid.
    """
    from .variant.functions import get

    return get(column, field.steps, field.data_type, strict=False, ordered=False)


def _child(array: Any, name: str) -> Any:
    """Return a field of a struct, which is null where the struct is."""
    return array.flatten()[array.type.get_field_index(name)]


_LOCAL_TIME = LogicalType(Kind.TIME, utc=False, unit="MICROS")


def annotate_variants(data: bytes, paths: list[str]) -> bytes:
    """Return a footer in which some groups have the annotation VARIANT.

    Times inside of them become local times, as Variant Shredding demands; pyarrow writes all times
    as adjusted to UTC.

    Raises `UsageError` if the file has no such group, or it is not a Variant.
    """
    footer = Footer.parse(data)
    elements = list(footer.elements)
    nodes = {node.path: node for node in _walk_nodes(footer.root)}
    for path in paths:
        node = nodes.get(path)
        if node is None or node.physical is not None:
            raise UsageError(f"the file has no group {path!r}")
        for child in _walk_nodes(node):
            if child.kind is Kind.TIME:
                elements[child.index] = annotate(elements[child.index], _LOCAL_TIME)
        elements[node.index] = annotate(elements[node.index], LogicalType(Kind.VARIANT))
    changed = footer.with_elements(elements)
    _require_variants(changed, paths)
    return changed


def _require_variants(data: bytes, paths: list[str]) -> None:
    """Check the changed footer by reading it."""
    nodes = {node.path: node for node in _walk_nodes(Footer.parse(data).root)}
    for path in paths:
        problem = find_problem(nodes[path])
        if problem is not None:
            raise UsageError(f"the group {path!r} is not a Variant: {problem}")


def _walk_nodes(node: Node) -> Iterator[Node]:
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
