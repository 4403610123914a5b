"""Encoding of record batches as Vortex messages and for Vortex files (extra ``vortex``).

A file has no Arrow schema beside it. It keeps all values, in the nearest type that Vortex has:
dictionaries and runs as their values, binaries of a fixed size as binaries, and extensions as their
storage. A type whose values would change is refused.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .decoder import call_library, encode_array, import_library
from .message import Message
from .storage import StorageConverter, find_run_of_rows, map_children

_KEPT_EXTENSIONS = ("arrow.uuid", "arrow.json")


class FileConverter:
    """Converts the record batches of one schema.

    Raises `InvalidDataError` if a Vortex file cannot have a column. The error names it.

    Attributes
    ----------
    schema : pyarrow.Schema
        The schema of the file.
    """

    def __init__(self, schema: pa.Schema) -> None:
        fields: list[pa.Field[Any]] = []
        for field in schema:
            try:
                fields.append(pa.field(field.name, find_file_type(field.type)))
            except InvalidDataError as error:
                raise InvalidDataError(f"the column {field.name!r}: {error.message}") from None
        self.schema = pa.schema(fields)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the schema of the file."""
        pairs = zip(batch.columns, self.schema, strict=True)
        columns = [_convert(column, field.type, None) for column, field in pairs]
        if not columns:
            return batch.replace_schema_metadata(None)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def find_file_type(data_type: Any) -> pa.DataType:
    """Return the type that a column has in a Vortex file.

    Raises `InvalidDataError` if it has none.
    """
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        if data_type.extension_name in _KEPT_EXTENSIONS:
            return data_type
        return find_file_type(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return find_file_type(data_type.value_type)
    if types.is_fixed_size_binary(data_type):
        return pa.binary()
    if types.is_union(data_type) or types.is_duration(data_type) or types.is_interval(data_type):
        raise InvalidDataError(f"Vortex has no type {data_type}")
    if not types.is_nested(data_type):
        return data_type
    if types.is_map(data_type):
        key: Any = pa.field(data_type.key_field.name, find_file_type(data_type.key_type), False)
        item: Any = _convert_field(data_type.item_field)
        return pa.map_(key, item, data_type.keys_sorted)
    fields = [_convert_field(data_type.field(index)) for index in range(data_type.num_fields)]
    if types.is_struct(data_type):
        return pa.struct(fields)
    if types.is_fixed_size_list(data_type):
        return pa.list_(fields[0], data_type.list_size)
    makers: dict[Any, Any] = {
        types.is_list: pa.list_,
        types.is_large_list: pa.large_list,
        types.is_list_view: pa.list_view,
        types.is_large_list_view: pa.large_list_view,
    }
    for is_kind, make in makers.items():
        if is_kind(data_type):
            return make(fields[0])
    raise InvalidDataError(f"Vortex has no type {data_type}")


def _convert_field(field: Any) -> Any:
    return pa.field(field.name, find_file_type(field.type))


def _convert(array: Any, data_type: Any, _template: Any) -> Any:
    types = pa.types
    if array.type.equals(data_type) and not types.is_nested(data_type):
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _convert(array.storage, data_type, None)
    if types.is_dictionary(array.type):
        values = _convert(array.dictionary, data_type, None)
        return values.take(array.indices)
    if types.is_run_end_encoded(array.type):
        return _convert(array.values, data_type, None).take(find_run_of_rows(array))
    if types.is_nested(data_type):
        return map_children(array, data_type, _convert)
    return array.cast(data_type)


class ArrayEncoder:
    """Encodes the record batches of one schema, each as one array.

    Raises `MissingExtraError` if vortex-data is not installed. Raises `InvalidDataError` if Vortex
    cannot hold a column. The error names it.

    Attributes
    ----------
    storage_schema : pyarrow.Schema
        The schema of the arrays; see `storage_types`.
    dtype_message : Message
        The message with the type of all arrays, which precedes them.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._vortex = import_library()
        self._converter = StorageConverter(schema)
        self.storage_schema = self._converter.storage_schema
        empty: Any = pa.array([], pa.struct(list(self.storage_schema)))
        array = call_library(lambda: self._vortex.Array.from_arrow(empty), "encoded")
        self.dtype_message = encode_array(array)[0]

    def encode(self, batch: pa.RecordBatch) -> Message:
        """Return the message of a batch, compressed as the library chooses.

        `batch`: its dictionaries are not part of the message. Raises `InvalidDataError` if Vortex
        refuses a value, such as a decimal with too many digits.
        """
        storage = self._converter.to_storage(batch)
        try:
            dtype, message = self._encode(storage)
        except InvalidDataError:
            dtype, message = self._encode(copy_rows(storage))
        if dtype.join_body() != self.dtype_message.join_body():
            raise InvalidDataError("Vortex has changed the type of the arrays")
        return message

    def _encode(self, storage: Any) -> tuple[Message, Message]:
        vortex = self._vortex
        compress = lambda: vortex.compress(vortex.Array.from_arrow(storage))  # noqa: E731
        return encode_array(call_library(compress, "encoded"))


def copy_rows(storage: Any) -> Any:
    """Return a copy of a struct array without slices, for some of which vortex-data fails."""
    batch: Any = pa.RecordBatch.from_struct_array(storage)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().to_struct_array()
