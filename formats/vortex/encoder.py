"""Encoding of record batches as Vortex messages and for Vortex files (extra ``vortex``).

A file has no Arrow schema beside it. It keeps all values, in the nearest type that Vortex has:
dictionaries and runs as their values, binaries of a fixed size as binaries, and extensions as their
storage. A type whose values would change is refused.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from ..arrow.data_types import list_fields, replace_fields
from ..arrow.nested_arrays import map_children
from ..arrow.supported_types import SupportedTypes, is_short_interval
from .decoder import call_library, encode_array, import_library
from .message import Message
from .storage import StorageConverter, check_name, find_run_of_rows

_KEPT_EXTENSIONS = ("arrow.uuid", "arrow.json")


class FileConverter:
    """Converts the record batches of one schema.

    Raises `InvalidDataError`, which names the column, if a Vortex file cannot have a type.
    """

    def __init__(self, schema: pa.Schema) -> None:
        fields: list[pa.Field[Any]] = []
        self._types = SupportedTypes(schema)
        for field, supported in zip(schema, self._types.schema, strict=True):
            try:
                find_file_type(field.type)  # an error names this type
                fields.append(pa.field(check_name(field), find_file_type(supported.type)))
            except InvalidDataError as error:
                raise InvalidDataError(f"the column {field.name!r}: {error.message}") from None
        self.schema = pa.schema(fields)
        """The schema of the file."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the schema of the file."""
        pairs = zip(self._types.convert(batch).columns, self.schema, strict=True)
        columns = [_convert(column, field.type, None) for column, field in pairs]
        if not columns:
            return batch.replace_schema_metadata(None)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def find_file_type(data_type: Any) -> pa.DataType:
    """Return the type of a column in a Vortex file; raises `InvalidDataError` if it has none."""
    types = pa.types
    if isinstance(data_type, pa.BaseExtensionType):
        if data_type.extension_name in _KEPT_EXTENSIONS:
            return data_type
        return find_file_type(data_type.storage_type)
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return find_file_type(data_type.value_type)
    if types.is_fixed_size_binary(data_type):
        return pa.binary()
    if (
        types.is_union(data_type)
        or types.is_duration(data_type)
        or types.is_interval(data_type)
        or is_short_interval(data_type)
    ):
        raise InvalidDataError(f"Vortex has no type {data_type}")
    if not types.is_nested(data_type):
        return data_type
    children = list_fields(data_type)
    fields = [pa.field(check_name(each), find_file_type(each.type)) for each in children]
    return replace_fields(data_type, fields)


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

    Raises `InvalidDataError`, which names the column, if Vortex cannot hold a type.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._vortex = import_library()
        self._converter = StorageConverter(schema)
        self.storage_schema = self._converter.storage_schema
        """The schema of the arrays; see `storage`."""
        empty: Any = pa.array([], pa.struct(list(self.storage_schema)))
        array = call_library(lambda: self._vortex.Array.from_arrow(empty), "encoded")
        self.dtype_message = encode_array(array)[0]
        """The message with the type of all arrays, which precedes them."""

    def encode(self, batch: pa.RecordBatch) -> Message:
        """Return the message of a batch, without its dictionaries, compressed by the library.

        Raises `InvalidDataError` if Vortex refuses a value, such as a decimal with too many digits.
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
        array = call_library(lambda: vortex.compress(vortex.Array.from_arrow(storage)), "encoded")
        return encode_array(array)


def copy_rows(storage: Any) -> Any:
    """Return a copy of a struct array without slices, for some of which vortex-data fails."""
    batch: Any = pa.RecordBatch.from_struct_array(storage)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().to_struct_array()
