"""Converting record batches to their storage in Vortex, and restoring them.

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

Restoring needs the Arrow schema and, for dictionaries, a *template*: a batch without rows, whose
dictionary columns have the dictionaries. Data without an Arrow schema gets the types of
`find_plain_type`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import InvalidDataError
from ..arrow.data_types import is_text, list_fields, replace_fields
from ..arrow.nested_arrays import build_array, copy_validity, map_children, slice_values
from ..arrow.truncation import needs_truncation, truncate

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

    Raises `InvalidDataError`, which names the column, if a type has no storage.
    """
    fields: list[pa.Field[Any]] = []
    for field in schema:
        try:
            fields.append(pa.field(check_name(field), find_storage_type(field.type)))
        except InvalidDataError as error:
            raise InvalidDataError(
                f"the column {field.name!r} cannot be stored in Vortex: {error.message}; "
                "read it in the format 'arrow'"
            ) from None
    return pa.schema(fields)


def check_name(field: pa.Field[Any]) -> str:
    """Return the name of a field. Raises `InvalidDataError` for a NUL, at which Vortex cuts it."""
    if "\0" in field.name:
        raise InvalidDataError(f"Vortex has no names with a NUL, as in {field.name!r}")
    return field.name


def find_storage_type(data_type: Any) -> pa.DataType:
    """Return the storage type of a type; raises `InvalidDataError` if it has none."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        return find_storage_type(data_type.storage_type)
    if types.is_dictionary(data_type):
        return data_type.index_type
    if types.is_run_end_encoded(data_type):
        return find_storage_type(data_type.value_type)
    if not types.is_nested(data_type):
        return _find_flat(data_type)
    children = list_fields(data_type)
    fields = [pa.field(check_name(each), find_storage_type(each.type)) for each in children]
    if types.is_union(data_type):
        return pa.struct([pa.field(TYPE_CODE, pa.int8()), *fields])
    return replace_fields(data_type, fields)


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
    if types.is_interval(data_type):
        return False
    return types.is_primitive(data_type) or types.is_null(data_type) or is_text(data_type)


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
    if types.is_union(data_type):
        return data_type
    fields = [each.with_type(find_plain_type(each.type)) for each in list_fields(data_type)]
    if types.is_list_view(data_type):
        return pa.list_(fields[0])
    if types.is_large_list_view(data_type):
        return pa.large_list(fields[0])
    return replace_fields(data_type, fields)


_BITS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_INTERVAL_FIELDS = [("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")]


class StorageConverter:
    """Converts the record batches of one schema.

    Raises `InvalidDataError` if a column has a type that Vortex cannot hold.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.storage_schema = find_storage_schema(schema)
        """The schema of the storage."""
        self._truncates = needs_truncation(schema)

    def to_storage(self, batch: pa.RecordBatch) -> pa.StructArray:
        """Return the storage of a batch, without nulls at the top."""
        storage_type: Any = pa.struct(list(self.storage_schema))
        if not batch.num_rows:
            return pa.array([], storage_type)  # vortex-data panics on an empty slice
        if self._truncates:
            batch = truncate(batch)
        children = [_store(column) for column in batch.columns]
        return build_array(storage_type, batch.num_rows, [None], children)

    def restore(self, storage: Any, template: pa.RecordBatch | None) -> pa.RecordBatch:
        """Return the batch of a storage."""
        if not storage.type.equals(pa.struct(list(self.storage_schema))):
            raise InvalidDataError(
                f"the array has the type {storage.type}, which does not fit the schema"
            )
        _check_no_null_rows(storage)
        columns: list[Any] = []
        for index, field in enumerate(self._schema):
            example = None if template is None else template.column(index)
            try:
                columns.append(_restore(storage.field(index), field.type, example))
            except (InvalidDataError, pa.ArrowException, ValueError, IndexError) as error:
                reason = str(error).partition("\n")[0]
                raise InvalidDataError(
                    f"the column {field.name!r} cannot be restored: {reason}"
                ) from None
        return _make_batch(columns, len(storage), self._schema)


def restore_rows(array: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch of an array that has the types of the schema."""
    _check_no_null_rows(array)
    columns = [array.field(index) for index in range(array.type.num_fields)]
    return _make_batch(columns, len(array), schema)


def _check_no_null_rows(array: Any) -> None:
    if array.null_count:
        raise InvalidDataError(f"the array has {array.null_count} rows that are null")


def _make_batch(columns: list[Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    if not columns:
        whole: Any = build_array(pa.struct([]), rows, [None], [])
        batch = pa.RecordBatch.from_struct_array(whole)
        return batch.replace_schema_metadata(schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_type(array: Any, data_type: Any) -> Any:
    """Return a fixed-width array with the same buffers and another type."""
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers(), array.null_count, array.offset
    )


def _numbers(array: Any, buffer: int, dtype: Any) -> NDArray[Any]:
    """Return a buffer of an array as numbers, limited to its slice."""
    if not len(array):
        return np.empty(0, dtype)
    data = array.buffers()[buffer]
    return np.frombuffer(data, dtype, array.offset + len(array))[array.offset :]


# Storing.


def _store(array: Any) -> Any:
    """Return the storage of an array."""
    data_type, types = array.type, pa.types
    if is_own_storage(data_type):
        _check_keys(array)
        return array
    if isinstance(data_type, pa.BaseExtensionType):
        return _store(array.storage)
    if types.is_dictionary(data_type):
        return array.indices
    if types.is_run_end_encoded(data_type):
        return _store(array.values).take(find_run_of_rows(array))
    if types.is_union(data_type):
        return _store_union(array)
    if types.is_nested(data_type):
        return map_children(array, find_storage_type(data_type), lambda child, *_: _store(child))
    if types.is_fixed_size_binary(data_type):
        data = slice_values(array)
        values = build_array(pa.uint8(), len(array) * data_type.byte_width, [None, data])
        return build_array(
            find_storage_type(data_type), len(array), [copy_validity(array)], [values]
        )
    if data_type == pa.month_day_nano_interval():
        fields = np.frombuffer(slice_values(array), _INTERVAL_FIELDS)
        children = [pa.array(np.ascontiguousarray(fields[name])) for name, _ in _INTERVAL_FIELDS]
        return build_array(INTERVAL, len(array), [copy_validity(array)], children)
    return _with_type(array, find_storage_type(data_type))


def _check_keys(array: Any) -> None:
    """Refuse maps with null keys, which Vortex would change."""
    data_type = array.type
    if pa.types.is_map(data_type):
        if array.keys.null_count:
            raise InvalidDataError("a map has a key that is null")
        _check_keys(array.keys)
        _check_keys(array.items)
    elif pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            _check_keys(array.field(index))
    elif pa.types.is_nested(data_type):
        _check_keys(array.values)


def find_run_of_rows(array: Any) -> Any:
    """Return the index of the run of each row of a run-end encoded array."""
    ends = array.run_ends.to_numpy(zero_copy_only=False)
    rows = np.arange(array.offset, array.offset + len(array))
    return pa.array(np.searchsorted(ends, rows, side="right"))


def _store_union(array: Any) -> Any:
    data_type = array.type
    codes = _numbers(array, 1, np.int8)
    is_dense = data_type.mode == "dense"
    offsets = _numbers(array, 2, np.int32) if is_dense else np.arange(len(array))
    children = [build_array(pa.int8(), len(array), [None, pa.py_buffer(codes.tobytes())])]
    for index, code in enumerate(data_type.type_codes):
        rows: Any = pa.array(offsets, mask=codes != code)
        children.append(_store(array.field(index)).take(rows))
    return build_array(find_storage_type(data_type), len(array), [None], children)


# Restoring.


def _restore(array: Any, data_type: Any, template: Any) -> Any:
    """Return the array of a storage."""
    types = pa.types
    if is_own_storage(data_type):
        return array
    if isinstance(data_type, pa.BaseExtensionType):
        inner = None if template is None else template.storage
        return pa.ExtensionArray.from_storage(
            data_type, _restore(array, data_type.storage_type, inner)
        )
    if types.is_dictionary(data_type):
        if template is None:
            raise InvalidDataError("its dictionary has not arrived")
        dictionary = template.dictionary
        return pa.DictionaryArray.from_arrays(array, dictionary, ordered=data_type.ordered)
    if types.is_run_end_encoded(data_type):
        return _restore_runs(array, data_type, template)
    if types.is_union(data_type):
        return _restore_union(array, data_type, template)
    if types.is_nested(data_type):
        return map_children(array, data_type, _restore, template)
    if types.is_fixed_size_binary(data_type):
        width = data_type.byte_width
        values = array.values.slice(array.offset * width, len(array) * width)
        if values.null_count:
            raise InvalidDataError("a value of fixed size has a byte that is null")
        return build_array(data_type, len(array), [copy_validity(array), slice_values(values)])
    if data_type == pa.month_day_nano_interval():
        fields = np.zeros(len(array), _INTERVAL_FIELDS)
        for index, (name, dtype) in enumerate(_INTERVAL_FIELDS):
            fields[name] = _numbers(array.field(index), 1, dtype)
        return build_array(
            data_type, len(array), [copy_validity(array), pa.py_buffer(fields.tobytes())]
        )
    return _with_type(array, data_type)


def _restore_runs(array: Any, data_type: Any, template: Any) -> Any:
    ends_type, inner = data_type.run_end_type, None if template is None else template.values
    if not len(array):
        values = _restore(array, data_type.value_type, inner)
        return pa.RunEndEncodedArray.from_arrays(pa.array([], ends_type), values, data_type)
    ends, values = _find_runs(array, ends_type)
    values = _restore(values, data_type.value_type, inner)
    return pa.RunEndEncodedArray.from_arrays(ends, values, data_type)


def _find_runs(array: Any, ends_type: Any) -> tuple[Any, Any]:
    """Return the end of each run and its value. A run has values of equal bits."""
    comparable = array
    if pa.types.is_floating(array.type):
        comparable = _with_type(array, _BITS[array.type.bit_width])
    compute: Any = pc
    try:
        runs: Any = compute.run_end_encode(comparable, run_end_type=ends_type)
    except pa.ArrowNotImplementedError:
        return pa.array(np.arange(1, len(array) + 1)).cast(ends_type), array
    if comparable is array:
        return runs.run_ends, runs.values
    return runs.run_ends, _with_type(runs.values, array.type)


def _restore_union(array: Any, data_type: Any, template: Any) -> Any:
    codes_array = array.field(0)
    if codes_array.null_count or array.null_count:
        raise InvalidDataError("a union has a type code that is null")
    codes = _numbers(codes_array, 1, np.int8)
    if not np.isin(codes, data_type.type_codes).all():
        raise InvalidDataError("a union has an unknown type code")
    is_dense = data_type.mode == "dense"
    offsets = np.zeros(len(codes), np.int32)
    children: list[Any] = []
    for index, code in enumerate(data_type.type_codes):
        child, is_child = array.field(index + 1), codes == code
        if is_dense:
            child = child.filter(pa.array(is_child))
            offsets[is_child] = np.arange(len(child))
        inner = None if template is None else template.field(index)
        children.append(_restore(child, list(data_type)[index].type, inner))
    buffers = [None, pa.py_buffer(codes.tobytes())]
    if is_dense:
        buffers.append(pa.py_buffer(offsets.tobytes()))
    return build_array(data_type, len(array), buffers, children)
