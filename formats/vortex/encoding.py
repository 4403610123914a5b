"""Encoding of record batches as Vortex messages. It needs the extra ``vortex``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...errors import InvalidDataError
from .decoding import call_library, encode_array, import_library
from .message import Message
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
        self._vortex = import_library()
        self._converter = StorageConverter(schema)
        self.storage_schema = self._converter.storage_schema
        empty: Any = pa.array([], pa.struct(list(self.storage_schema)))
        array = call_library(lambda: self._vortex.Array.from_arrow(empty), "encoded")
        self.dtype_message = encode_array(array)[0]

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
