"""The Arrow types that Vortex holds, and the storage of every other type.

A record batch is stored in Vortex as its *storage*: a batch whose types Vortex returns exactly. A
type has one storage type. Most types are their own:

========================= ==================================================================
type                      storage
========================= ==================================================================
fixed-size binary of n    fixed-size list of n unsigned bytes
duration                  int64
month-day-nano interval   struct of the three numbers
union                     struct of the type code and all children; null where not selected
dictionary                its indices; the dictionary itself travels as an Arrow message
run-end encoded           its values, one for each row
extension                 the storage of its own storage type
timestamp of a time zone  timestamp of the time zone UTC, which is the same instant
decimal, scale > digits   decimal of scale 0 with the same digits
========================= ==================================================================

Nested types keep their shape. All fields become nullable, because Vortex drops the nulls of others,
and lose their metadata. The Arrow schema beside the storage has what is lost.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError

TYPE_CODE = "type_code"
"""The name of the first child of the storage of a union."""
INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())])
"""The storage of a month-day-nano interval."""
_MAX_DIGITS: dict[int, int] = {32: 9, 64: 18, 128: 38, 256: 76}
_DECIMALS: dict[int, Any] = {
    32: pa.decimal32,
    64: pa.decimal64,
    128: pa.decimal128,
    256: pa.decimal256,
}


def find_storage_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the storage of record batches.

    Raises
    ------
    InvalidDataError
        If a column has a type without storage. The error names the column.
    """
    fields: list[pa.Field[Any]] = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, find_storage_type(field.type)))
        except InvalidDataError as error:
            raise InvalidDataError(
                f"the column {field.name!r} cannot be stored in Vortex: {error.message}; "
                "read it in the format 'arrow'"
            ) from None
    return pa.schema(fields)


def find_storage_type(data_type: Any) -> pa.DataType:
    """Return the storage type of a type.

    Raises
    ------
    InvalidDataError
        If it has none.
    """
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return find_storage_type(data_type.storage_type)
    if types.is_dictionary(data_type):
        return data_type.index_type
    if types.is_run_end_encoded(data_type):
        return find_storage_type(data_type.value_type)
    if types.is_union(data_type):
        children = [
            pa.field(field.name, find_storage_type(field.type)) for field in list_fields(data_type)
        ]
        return pa.struct([pa.field(TYPE_CODE, pa.int8()), *children])
    if types.is_nested(data_type):
        return _find_nested(data_type)
    return _find_flat(data_type)


def list_fields(data_type: Any) -> list[Any]:
    """Return the child fields of a type."""
    return [data_type.field(index) for index in range(data_type.num_fields)]


def _find_flat(data_type: Any) -> pa.DataType:
    types = pa.types
    if types.is_fixed_size_binary(data_type):
        return pa.list_(pa.field("item", pa.uint8(), False), data_type.byte_width)
    if types.is_duration(data_type):
        return pa.int64()
    if data_type == pa.month_day_nano_interval():
        return INTERVAL
    if types.is_timestamp(data_type):
        has_other_zone = data_type.tz not in (None, "UTC")
        return pa.timestamp(data_type.unit, "UTC") if has_other_zone else data_type
    if types.is_decimal(data_type):
        if data_type.scale <= data_type.precision:
            return data_type
        return _DECIMALS[data_type.bit_width](_MAX_DIGITS[data_type.bit_width], 0)
    if _is_held(data_type):
        return data_type
    raise InvalidDataError(f"the type {_describe(data_type)} has no form in Vortex")


def _is_held(data_type: Any) -> bool:
    types = pa.types
    return bool(
        types.is_primitive(data_type)
        or types.is_null(data_type)
        or types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    ) and not types.is_interval(data_type)


def _find_nested(data_type: Any) -> pa.DataType:
    types = pa.types
    if types.is_map(data_type):
        key: Any = pa.field(data_type.key_field.name, find_storage_type(data_type.key_type), False)
        item: Any = pa.field(data_type.item_field.name, find_storage_type(data_type.item_type))
        return pa.map_(key, item, data_type.keys_sorted)
    fields = [pa.field(each.name, find_storage_type(each.type)) for each in list_fields(data_type)]
    if types.is_struct(data_type):
        return pa.struct(fields)
    if types.is_fixed_size_list(data_type):
        return pa.list_(fields[0], data_type.list_size)
    if types.is_list(data_type):
        return pa.list_(fields[0])
    if types.is_large_list(data_type):
        return pa.large_list(fields[0])
    if types.is_list_view(data_type):
        return pa.list_view(fields[0])
    if types.is_large_list_view(data_type):
        return pa.large_list_view(fields[0])
    raise InvalidDataError(f"the type {_describe(data_type)} has no form in Vortex")


def is_own_storage(data_type: Any) -> bool:
    """Return whether arrays of a type are stored unchanged."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType) or types.is_dictionary(data_type):
        return False
    if types.is_run_end_encoded(data_type) or types.is_union(data_type):
        return False
    if types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return is_own_storage(key.type) and key.metadata is None and _is_plain(item)
    if types.is_nested(data_type):
        return all(map(_is_plain, list_fields(data_type)))
    return _find_flat(data_type) == data_type


def _is_plain(field: Any) -> bool:
    return field.nullable and field.metadata is None and is_own_storage(field.type)


def _describe(data_type: Any) -> str:
    try:
        return str(data_type)
    except (KeyError, ValueError):  # pyarrow lacks a class for two types of intervals
        return "interval"
