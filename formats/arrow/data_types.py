"""Walks through Arrow types, with all types that pyarrow nests in others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_TEXTS = {
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
}


def is_text(data_type: Any) -> bool:
    """Return whether values are strings or binaries of any length."""
    return data_type in _TEXTS


def list_child_types(data_type: Any) -> list[pa.DataType]:
    """Return the storage of an extension, the values of a dictionary, or the types of children."""
    if isinstance(data_type, pa.BaseExtensionType):
        return [data_type.storage_type]
    if isinstance(data_type, pa.DictionaryType):
        return [data_type.value_type]
    return [data_type.field(index).type for index in range(data_type.num_fields)]


def list_fields(data_type: Any) -> list[Any]:
    """Return the child fields of a type. A map has one: the struct of its keys and items."""
    return [data_type.field(index) for index in range(data_type.num_fields)]


def replace_fields(data_type: Any, fields: list[Any]) -> pa.DataType:
    """Return a type of the same kind with other child fields."""
    types = pa.types
    if types.is_struct(data_type):
        return pa.struct(fields)
    if types.is_union(data_type):
        make_union: Any = pa.union
        return make_union(fields, data_type.mode, data_type.type_codes)
    if types.is_run_end_encoded(data_type):
        return pa.run_end_encoded(fields[0].type, fields[1].type)
    if types.is_map(data_type):
        key, item = list_fields(fields[0].type)
        make_map: Any = pa.map_  # its stubs do not accept fields
        return make_map(key.with_nullable(False), item, keys_sorted=data_type.keys_sorted)
    (field,) = fields
    if types.is_fixed_size_list(data_type):
        return pa.list_(field, data_type.list_size)
    if types.is_large_list(data_type):
        return pa.large_list(field)
    if types.is_list_view(data_type):
        return pa.list_view(field)
    if types.is_large_list_view(data_type):
        return pa.large_list_view(field)
    return pa.list_(field)


def has_dictionaries(data_type: Any) -> bool:
    """Return whether a type is or contains a dictionary type."""
    is_dictionary = isinstance(data_type, pa.DictionaryType)
    return is_dictionary or any(map(has_dictionaries, list_child_types(data_type)))


def has_old_forms(schema: pa.Schema) -> bool:
    """Return whether Arrow reads all columns in the other byte order and in older versions."""
    return all(_has_old_forms(field.type) for field in schema)


def _has_old_forms(data_type: Any) -> bool:
    types = pa.types
    is_view = types.is_string_view(data_type) or types.is_binary_view(data_type)
    if is_view or types.is_run_end_encoded(data_type):
        return False
    return all(map(_has_old_forms, list_child_types(data_type)))


def has_unions(schema: pa.Schema) -> bool:
    """Return whether a column is or contains a union.

    Arrow's reader omits the buffers of an empty union, and its writer crashes without them when it
    compresses. `truncation.truncate` adds them.
    """
    return any(_contains_union(field.type) for field in schema)


def _contains_union(data_type: Any) -> bool:
    return pa.types.is_union(data_type) or any(map(_contains_union, list_child_types(data_type)))
