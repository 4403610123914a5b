"""Encoding of record batches as Vortex messages. It needs the extra ``vortex``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .library import import_vortex, translate_errors
from .message import Message, read_parts
from .storage import StorageConverter


class ArrayEncoder:
    """Encodes the record batches of one schema, each as one array.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the batches.

    Raises
    ------
    MissingExtraError
        If vortex-data is not installed.
    InvalidDataError
        If Vortex cannot hold a column. The error names it.

    Attributes
    ----------
    storage_schema : pyarrow.Schema
        The schema of the arrays; see `storage_types`.
    dtype_message : Message
        The message with the type of all arrays, which precedes them.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._vortex = import_vortex()
        self._converter = StorageConverter(schema)
        self.storage_schema = self._converter.storage_schema
        empty: Any = pa.array([], pa.struct(list(self.storage_schema)))
        with translate_errors("hold the schema"):
            _, parts = self._serialize(self._vortex.Array.from_arrow(empty))
        self._dtype_parts = [bytes(part) for part in parts]
        self.dtype_message = read_parts(parts)

    def encode(self, batch: pa.RecordBatch) -> Message:
        """Return the message of a batch, compressed as the library chooses.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            A valid batch, with the schema. Its dictionaries are not part of the message.

        Raises
        ------
        InvalidDataError
            If Vortex refuses a value, such as a decimal with too many digits.
        """
        storage = self._converter.to_storage(batch)
        with translate_errors("encode the record batch"):
            array = self._vortex.compress(self._import(storage))
            parts, dtype_parts = self._serialize(array)
        if [bytes(part) for part in dtype_parts] != self._dtype_parts:
            raise InvalidDataError(f"Vortex has changed the type of the arrays to {array.dtype}")
        return read_parts(parts)

    def _import(self, storage: Any) -> Any:
        from_arrow = self._vortex.Array.from_arrow
        try:
            with translate_errors("hold the record batch"):
                return from_arrow(storage)
        except InvalidDataError:
            # The library fails for some slices. A copy has none.
            return from_arrow(_copy(storage))

    def _serialize(self, array: Any) -> tuple[list[bytes], list[bytes]]:
        return self._vortex.serde.encode_ipc_array_buffers(array)


def _copy(storage: Any) -> Any:
    batch: Any = pa.RecordBatch.from_struct_array(storage)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().to_struct_array()
