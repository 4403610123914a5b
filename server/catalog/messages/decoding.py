"""Decoding of a source's messages to record batches, for a format other than Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from ....formats.arrow.buffer_file import BufferFile
from ....formats.arrow.dictionaries import encode_empty_dictionary, read_dictionary_types
from ....formats.arrow.message import read_batch_table
from ....formats.arrow.schema import read_schema
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import FileSpan


class MessageDecoder:
    """Decodes the messages of one source, in order.

    A dictionary that has not arrived before the first record batch is empty; the Arrow
    specification allows that for a column of nulls.

    Parameters
    ----------
    schema_metadata : bytes
        The FlatBuffer of the schema message of the source.

    Raises
    ------
    ProtocolError, pyarrow.ArrowException
        If the schema is malformed.
    """

    def __init__(self, schema_metadata: bytes) -> None:
        schema = read_schema(schema_metadata)
        self._missing = read_dictionary_types(schema_metadata, schema)
        self._has_begun = False
        self._file = BufferFile()
        self._file.add(schema_metadata, None)
        self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._file), mode="r"))
        self.schema: pa.Schema = self._reader.schema
        """The schema of the record batches, in the byte order of this machine."""

    def decode(
        self, message: SourceMessage
    ) -> tuple[pa.RecordBatch, Mapping[bytes, bytes] | None] | None:
        """Return a record batch and the custom metadata of its message; None for a dictionary.

        Raises
        ------
        pyarrow.ArrowException, OSError, ValueError
            If the message cannot be decoded.
        ProtocolError
            If its metadata is malformed.
        DatasetError
            If its body is in a file that has changed.
        """
        metadata = bytes(message.metadata)
        body = _join(message)
        dictionary_id = read_batch_table(metadata).dictionary_id
        if dictionary_id is not None:
            self._missing.pop(dictionary_id, None)
            self._file.add(metadata, body)
            return None
        if not self._has_begun:
            self._has_begun = True
            for missing_id, value_type in reversed(self._missing.items()):
                self._file.add(*encode_empty_dictionary(missing_id, value_type))
        self._file.add(metadata, body)
        reader: Any = self._reader
        batch, custom_metadata = reader.read_next_batch_with_custom_metadata()
        return batch, None if custom_metadata is None else dict(custom_metadata)


def _join(message: SourceMessage) -> pa.Buffer:
    """Return the body in one piece, without a copy if it is one in memory."""
    parts = [part for part in message.body or () if _size(part)]
    if len(parts) == 1 and not isinstance(parts[0], FileSpan):
        return pa.py_buffer(parts[0])
    memory = pa.allocate_buffer(sum(map(_size, parts)))
    target = memoryview(cast(Any, memory)).cast("B")
    end = 0
    for part in parts:
        begin, end = end, end + _size(part)
        if isinstance(part, FileSpan):
            part.read_into(target[begin:end])
        else:
            target[begin:end] = memoryview(part).cast("B")
    return memory


def _size(part: Any) -> int:
    return part.nbytes if isinstance(part, FileSpan) else memoryview(part).nbytes
