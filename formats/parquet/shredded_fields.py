"""Shredded fields of Variant columns as columns of their own: ``v.a.b``.

The names of the fields follow the name of the Variant, with dots between them. A field that is
shredded as a primitive type has this type; a value that does not fit it is null. Any other field is
a Variant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from .logical_types import Kind
from .schema import Node
from .variant.storage import FIELDS_KEY, STORAGE_TYPE, is_variant_field, variant_field
from .variant_columns import find_problem

MAX_FIELDS: Final = 1000
"""The largest number of shredded fields of one column that have names of their own."""
_SIMPLE_TYPES: Final = {
    str(each): each
    for each in (
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("ns"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns", "UTC"),
        pa.string(),
        pa.binary(),
    )
}
_DECIMAL: Final = re.compile(r"decimal128\((\d{1,2}), (\d{1,2})\)")


@dataclass(frozen=True, slots=True)
class ShreddedField:
    """A shredded field of a Variant column."""

    name: str
    """The name of the column and those of the fields, with dots between them."""
    column: str
    """The Variant column."""
    steps: tuple[str, ...]
    """The names of the fields."""
    path: str
    """The path of its group in the schema of the file."""
    data_type: Any
    """The Arrow type of its values; None for Variants."""

    @property
    def field(self) -> Any:
        """The field of Arrow."""
        if self.data_type is None:
            return variant_field(self.name)
        return pa.field(self.name, self.data_type)


def list_shredded_fields(root: Node, schema: pa.Schema) -> dict[str, ShreddedField]:
    """Return the shredded fields of the Variant columns of a file, by their names.

    Parameters
    ----------
    root : Node
        The schema of the file.
    schema : pyarrow.Schema
        The schema that pyarrow reads.
    """
    names = schema.names
    found: dict[str, ShreddedField] = {}
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
) -> Iterator[ShreddedField]:
    """Yield the fields of a group of value and typed_value, and those inside of them."""
    typed = next((child for child in node.children if child.name == "typed_value"), None)
    if typed is None or typed.physical is not None or typed.kind is not None:
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
        yield ShreddedField(name, column, path, child.path, leaf if _is_plain(leaf) else None)
        yield from _walk(child, inner, column, path)


def _is_plain(data_type: Any) -> bool:
    return data_type is not None and _parse_type(str(data_type)) == data_type


def _parse_type(text: str) -> Any:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return _SIMPLE_TYPES.get(text)
    precision, scale = int(match[1]), int(match[2])
    return pa.decimal128(precision, scale) if 0 < precision <= 38 and scale <= precision else None


def describe_fields(schema: pa.Schema, fields: Mapping[str, ShreddedField]) -> pa.Schema:
    """Return a schema whose Variant fields name the typed fields inside of them.

    Clients need their types for filters.
    """
    described: list[Any] = []
    for field in schema:
        types = {
            each.name[len(field.name) + 1 :]: str(each.data_type)
            for each in fields.values()
            if each.column == field.name and each.data_type is not None
        }
        if types:
            former: Any = field.metadata or {}
            field = field.with_metadata({**former, FIELDS_KEY: json.dumps(types).encode()})
        described.append(field)
    metadata: Any = schema.metadata
    return pa.schema(described, metadata=metadata)


def drop_description(schema: pa.Schema) -> pa.Schema:
    """Return a schema without what `describe_fields` adds."""
    fields: list[Any] = []
    for field in schema:
        former: Any = field.metadata or {}
        if FIELDS_KEY in former:
            kept = {key: value for key, value in former.items() if key != FIELDS_KEY}
            field = field.with_metadata(kept)
        fields.append(field)
    metadata: Any = schema.metadata
    return pa.schema(fields, metadata=metadata)


def filter_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema for filters on columns and on the fields that `describe_fields` names.

    Variants have no metadata inside of their type then, which Substrait cannot express.
    """
    fields: list[Any] = []
    added: list[Any] = []
    for field in schema:
        if not is_variant_field(field):
            fields.append(field)
            continue
        plain = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
        fields.append(pa.field(field.name, plain))
        added += _parse_description(field)
    if len(fields) == len(schema) and not added and fields == list(schema):
        return schema
    names = set(schema.names)
    metadata: Any = schema.metadata
    return pa.schema([*fields, *(each for each in added if each.name not in names)], metadata)


def _parse_description(field: Any) -> list[Any]:
    text = (field.metadata or {}).get(FIELDS_KEY)
    try:
        types = json.loads(text or b"{}")
        parsed = {f"{field.name}.{name}": _parse_type(types[name]) for name in types}
    except (ValueError, TypeError):
        return []
    return [pa.field(name, each) for name, each in parsed.items() if each is not None]


def physical_names(field: ShreddedField) -> list[str]:
    """Return the names by which pyarrow reads what a shredded field needs."""
    if field.data_type is not None:
        return [field.path]
    return [f"{field.column}.metadata", field.path]


def extract_field(column: Any, field: ShreddedField) -> Any:
    """Return a shredded field of a Variant column.

    Parameters
    ----------
    column : pyarrow.StructArray
        The column as pyarrow reads it, with at least what `physical_names` selects.
    field : ShreddedField
        The field.

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


def _child(array: Any, name: str) -> Any:
    """Return a field of a struct, which is null where the struct is."""
    return array.flatten()[array.type.get_field_index(name)]
