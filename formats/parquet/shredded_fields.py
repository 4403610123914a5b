"""Shredded fields of Variant columns as columns of their own: ``v.a.b``.

The names of the fields follow the name of the Variant, with dots between them. A field that is
shredded as a primitive type has this type; a value that does not fit it is null. Any other field is
a Variant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from .field_descriptions import MAX_FIELDS, MAX_STEPS, VariantField, is_field_type
from .logical_types import Kind
from .schema import Node
from .variant.storage import STORAGE_TYPE
from .variant_columns import find_problem


def list_shredded_fields(root: Node, schema: pa.Schema) -> dict[str, VariantField]:
    """Return the shredded fields of the Variant columns of a file, by their names.

    Parameters
    ----------
    root : Node
        The schema of the file.
    schema : pyarrow.Schema
        The schema that pyarrow reads.
    """
    names = schema.names
    found: dict[str, VariantField] = {}
    if len(set(names)) < len(names) or any("." in name for name in names):
        return found
    for node, column in zip(root.children, schema, strict=True):
        if node.kind is not Kind.VARIANT or find_problem(node) is not None:
            continue
        for number, each in enumerate(_walk(node, column.type, node.name, ())):
            if number >= MAX_FIELDS:
                break
            found[each.name] = each
    return found


def _walk(
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
        yield from _walk(child, inner, column, path)


def fit_fields(
    fields: Mapping[str, VariantField], shredded: Mapping[str, VariantField]
) -> dict[str, VariantField]:
    """Return fields with the paths at which a file has them; empty if it does not shred them.

    Parameters
    ----------
    fields : mapping of str to VariantField
        The fields to read.
    shredded : mapping of str to VariantField
        The shredded fields of the file; see `list_shredded_fields`.
    """
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

    Parameters
    ----------
    column : pyarrow.StructArray
        The column as pyarrow reads it, with at least what `physical_names` selects.
    field : VariantField
        The field, with its path.

    Raises
    ------
    InvalidDataError
        If a value is invalid, or ``value`` and ``typed_value`` contradict each other.
    """
    from .variant.fields import read_typed, read_variants

    group = column
    for step in field.steps:
        group = _child(_child(group, "typed_value"), step)
    if field.data_type is not None:
        return read_typed(group, field.data_type)
    metadata = column.field("metadata")
    return read_variants(metadata, group).cast(STORAGE_TYPE)


def find_field(column: Any, field: VariantField) -> Any:
    """Return a field of an unshredded Variant column. A value that does not fit is null.

    Raises
    ------
    InvalidDataError
        If a value is invalid.
    """
    from .variant.columns import get

    return get(column, field.steps, field.data_type, strict=False, ordered=False)


def _child(array: Any, name: str) -> Any:
    """Return a field of a struct, which is null where the struct is."""
    return array.flatten()[array.type.get_field_index(name)]
