"""Decoding of messages that depend on earlier ones: dictionaries, and foreign byte order."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from ...errors import LimitError
from ...formats.arrow.buffer_file import BufferFile
from ...formats.arrow.dictionaries import encode_empty_dictionary
from ...formats.arrow.message import HeaderType, read_batch_layout, read_message_info
from ...protocol.frames import ReceivedBody
from ...protocol.limits import Limits


class StatefulDecoder:
    """Decodes messages with one pyarrow stream reader, which lives as long as the stream.

    The reader keeps the dictionaries, merges deltas and swaps bytes. It reads the messages from a
    file in memory, whose buffers are the received bodies.

    pyarrow's reader requires every dictionary before the first record batch. The Arrow
    specification allows a stream to omit the dictionary of a column without values. An empty
    dictionary then takes its place.

    Parameters
    ----------
    metadata : bytes
        The FlatBuffer of the schema message.
    types : dict of int to DataType
        The value type of each dictionary, by its id.
    limits : Limits
        Bounds on the size of dictionaries.
    """

    def __init__(self, metadata: bytes, types: dict[int, pa.DataType], limits: Limits) -> None:
        self.missing = types
        """The dictionaries that have not arrived yet."""
        self._needs_placeholders = bool(types)
        self._pending_bytes = 0
        self._decoded_sizes: dict[int, int] = {}
        """The size of each dictionary once decoded, by its id, in bytes."""
        self._limits = limits
        self._file = BufferFile()
        self._file.add(metadata, None)
        self._reader = pa.ipc.open_stream(pa.PythonFile(cast(Any, self._file), mode="r"))
        self.schema: pa.Schema = self._reader.schema

    def decode(
        self, metadata: bytes, body: ReceivedBody, decoded_bytes: int
    ) -> pa.RecordBatch | None:
        """Return the record batch; None for a dictionary batch.

        Parameters
        ----------
        metadata, body
            The message.
        decoded_bytes : int
            The size of the body once decoded, in bytes. It counts for dictionary batches only.

        Raises
        ------
        LimitError
            If the dictionaries of the stream become larger than the limits allow.
        """
        if read_message_info(metadata).header_type is HeaderType.DICTIONARY_BATCH:
            self._add_dictionary(metadata, body, decoded_bytes)
            return None
        if self._needs_placeholders:
            self._needs_placeholders = False
            for dictionary_id, value_type in reversed(self.missing.items()):
                self._file.add(*encode_empty_dictionary(dictionary_id, value_type))
        self._file.add(metadata, body.payload())
        self._pending_bytes = 0
        return self._reader.read_next_batch()

    def _add_dictionary(self, metadata: bytes, body: ReceivedBody, decoded_bytes: int) -> None:
        """Keep a dictionary, which the reader reads before the next record batch."""
        self._pending_bytes += len(metadata) + body.nbytes
        if self._pending_bytes > self._limits.body_bytes:
            raise LimitError(
                f"{self._pending_bytes} bytes of dictionaries arrived without a record batch; "
                f"the limit is {self._limits.body_bytes}"
            )
        layout, sizes = read_batch_layout(metadata), self._decoded_sizes
        dictionary_id = layout.dictionary_id or 0
        earlier = sizes.get(dictionary_id, 0) if layout.is_delta else 0
        sizes[dictionary_id] = earlier + decoded_bytes
        total, limit = sum(sizes.values()), self._limits.decoded_bytes
        if total > limit:
            raise LimitError(
                f"the dictionaries of the stream decode to {total} bytes; the limit is {limit}"
            )
        self.missing.pop(dictionary_id, None)
        self._file.add(metadata, body.payload())
