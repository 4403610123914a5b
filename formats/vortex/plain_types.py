"""Arrow types for Vortex data that comes without an Arrow schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def find_plain_type(data_type: Any) -> pa.DataType:
    """Return a type with texts and binaries in place of views.

    vortex-data returns views. Most functions of Arrow, and many readers, lack them.
    """
    types = pa.types
    if data_type == pa.string_view():
        return pa.string()
    if data_type == pa.binary_view():
        return pa.binary()
    if isinstance(data_type, pa.BaseExtensionType) or not types.is_nested(data_type):
        return data_type
    if types.is_map(data_type):
        key: Any = _make_plain(data_type.key_field)
        item: Any = _make_plain(data_type.item_field)
        return pa.map_(key, item, data_type.keys_sorted)
    fields = [_make_plain(data_type.field(index)) for index in range(data_type.num_fields)]
    if types.is_struct(data_type):
        return pa.struct(fields)
    if types.is_fixed_size_list(data_type):
        return pa.list_(fields[0], data_type.list_size)
    if types.is_list(data_type) or types.is_list_view(data_type):
        return pa.list_(fields[0])
    if types.is_large_list(data_type) or types.is_large_list_view(data_type):
        return pa.large_list(fields[0])
    return data_type


def _make_plain(field: Any) -> Any:
    return field.with_type(find_plain_type(field.type))
