"""The fields inside of columns that requests can name: those of structs and of Variants.

``st.inner.x`` names the field ``x`` of the struct ``inner`` in the column ``st``. The names of
columns and fields may have dots. A column that has the whole name takes precedence. Otherwise the
longest name that begins the path is chosen: of a column first, and then of a field of each struct.

This module needs no NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..errors import UsageError
from .parquet.variant.arrow_fields import (
    FIELDS_KEY,
    MAX_STEPS,
    VariantField,
    is_variant_field,
    list_described_fields,
)


@dataclass(frozen=True, slots=True)
class StructField:
    """A field of a struct, or of a struct inside of it."""

    column: str
    """The column of structs."""
    steps: tuple[str, ...]
    """The names of the fields."""
    field: Any
    """The field of Arrow. It has the whole name, and is nullable if a struct around it is."""

    @property
    def path(self) -> str:
        """The path in the schema of a Parquet or an ORC file, if no name has a dot."""
        return ".".join((self.column, *self.steps))


NestedField = StructField | VariantField
"""A field that requests can name like a column."""


def choose_fields(schema: pa.Schema, names: Collection[str]) -> dict[str, NestedField]:
    """Return the fields that have some of the names, by name. Columns have no entries."""
    found: dict[str, NestedField] = {}
    others = [name for name in names if schema.get_field_index(name) < 0]
    if others and any(FIELDS_KEY in (each.metadata or {}) for each in schema):
        described = list_described_fields(schema)
        found.update({name: described[name] for name in others if name in described})
    for name in others:
        if name not in found and not schema.get_all_field_indices(name):
            path, rest = _follow(schema, name)
            if path and not rest and _can_be_null(path[-1]):
                found[name] = _make_field(name, path)
    return found


def extend_schema(schema: pa.Schema, fields: Mapping[str, NestedField]) -> pa.Schema:
    """Return a schema that is followed by fields inside of its columns."""
    if not fields:
        return schema
    metadata: Any = schema.metadata
    return pa.schema([*schema, *(each.field for each in fields.values())], metadata)


def select_schema(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns and fields, in order.

    Raises `UsageError` if one does not exist.
    """
    extended = extend_schema(schema, choose_fields(schema, names))
    for name in names:
        if len(extended.get_all_field_indices(name)) != 1:
            reason, others = explain_missing(schema, name)
            listed = f"; the columns are {', '.join(others)}" if others else ""
            raise UsageError(f"no column {name!r}{reason}{listed}")
    return pa.schema([extended.field(name) for name in names])


def extract_field(column: Any, field: NestedField) -> Any:
    """Return a field of a column, which is null where a struct around it is null.

    The column may lack other fields. Raises `InvalidDataError` if a Variant is invalid.
    """
    if isinstance(field, VariantField):
        from .parquet.variant_columns import find_field

        return find_field(column, field)
    import pyarrow.compute as pc

    for step in field.steps:
        column = pc.struct_field(column, [column.type.get_field_index(step)])
    return column


def explain_missing(schema: pa.Schema, name: str) -> tuple[str, list[str]]:
    """Return why no column or field has a name, as the end of a message, and similar names."""
    path, rest = _follow(schema, name)
    if not path:
        first = name if name in schema.names else name.partition(".")[0]
        count = schema.names.count(first)
        if count > 1:
            return f": {count} columns are named {first!r}", []
        return "", schema.names
    last = path[-1]
    kind = str(last.type).partition("<")[0]
    if not rest:
        parent = name.removesuffix(f".{last.name}")
        return f": values of the type {kind} cannot be null by themselves; select {parent!r}", []
    prefix = name.removesuffix("." + ".".join(rest))
    struct = _open_struct(last)
    if struct is not None:
        names = [struct.field(index).name for index in range(struct.num_fields)]
        number = f"{names.count(rest[0])} fields" if rest[0] in names else "no field"
        return f": {prefix!r} has {number} {rest[0]!r}", [f"{prefix}.{each}" for each in names]
    if is_variant_field(last):
        return f": {prefix!r} is a Variant without the shredded field {'.'.join(rest)!r}", []
    if pa.types.is_nested(last.type):
        return f": a field inside of the {kind} {prefix!r} has no name; select {prefix!r}", []
    return f": {prefix!r} has the type {kind}, which has no fields", []


def _follow(schema: pa.Schema, name: str) -> tuple[list[Any], list[str]]:
    """Return the fields that a name leads through, and the steps that lead nowhere."""
    path: list[Any] = []
    rest = name.split(".")
    within: Any = schema
    while within is not None and 0 < len(rest) <= MAX_STEPS:
        found = [
            (n, within.get_all_field_indices(".".join(rest[:n]))) for n in range(1, len(rest) + 1)
        ]
        length, indices = next((each for each in reversed(found) if each[1]), (0, []))
        if len(indices) != 1:
            break
        path.append(within.field(indices[0]))
        rest = rest[length:]
        within = _open_struct(path[-1])
    return path, rest


def _open_struct(field: Any) -> Any:
    """Return the type of a field if it is a struct, and not a Variant, or else None."""
    return field.type if pa.types.is_struct(field.type) and not is_variant_field(field) else None


def _can_be_null(field: Any) -> bool:
    """Return whether an array of a type says by itself which values are null."""
    return not (pa.types.is_union(field.type) or pa.types.is_run_end_encoded(field.type))


def _make_field(name: str, path: list[Any]) -> StructField:
    is_nullable = any(each.nullable for each in path)
    field = path[-1].with_name(name).with_nullable(is_nullable)
    column, *steps = (each.name for each in path)
    return StructField(column, tuple(steps), field)
