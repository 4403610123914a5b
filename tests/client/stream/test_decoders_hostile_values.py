"""Values that point outside of their buffers are refused, whatever their type."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from helpers.arrow_data import make_arrays_of_all_types
from helpers.streams import body_message, ipc_stream, schema_message, split_messages
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.errors import InvalidDataError
from splitarrow.formats.arrow.message import read_batch_layout
from splitarrow.protocol.limits import DEFAULT_LIMITS

HUGE, NEGATIVE = struct.pack("<i", (1 << 31) - 1), struct.pack("<i", -1)


@pytest.mark.parametrize(
    ("name", "buffer", "position", "value"),
    [
        ("string", 1, 4, HUGE),
        ("string", 1, 4, NEGATIVE),
        ("large_binary", 1, 12, HUGE),
        ("list", 1, 4, HUGE),
        ("map", 1, 4, HUGE),
        ("string_view", 1, 2 * 16 + 12, HUGE),  # the offset
        ("string_view", 1, 2 * 16 + 8, HUGE),  # the buffer
        ("string_view", 1, 2 * 16 + 8, NEGATIVE),
        ("string_view", 1, 2 * 16, HUGE),  # the length
        ("list_view", 1, 0, HUGE),
        ("list_view", 2, 0, NEGATIVE),
        ("sparse_union", 0, 0, b"\x7f"),
        ("sparse_union", 0, 0, b"\xff"),
        ("dense_union", 0, 0, b"\x7f"),
        ("dense_union", 1, 0, HUGE),
        ("dense_union", 1, 0, NEGATIVE),
        ("run_end_encoded by int32", 1, 0, NEGATIVE),
        ("run_end_encoded by int32", 1, 0, HUGE),
        ("dictionary by int8", 1, 0, b"\x7f"),
        ("dictionary by int8", 1, 0, b"\x80"),
    ],
)
def test_values_outside_of_their_buffers_are_refused(
    name: str, buffer: int, position: int, value: bytes
) -> None:
    batch = pa.record_batch([make_arrays_of_all_types()[name]], names=["x"])
    first, *messages = split_messages(ipc_stream([batch], batch.schema))
    decoder = open_decoder(schema_message(bytes(first.metadata)), DEFAULT_LIMITS, "full")
    last = len(messages) - 1
    for index, message in enumerate(messages):
        metadata = bytes(message.metadata)
        body = bytearray(b"".join(map(bytes, message.body or [])))
        if index < last:
            assert decoder.decode(body_message(metadata, bytes(body), index + 1)) is None
            continue
        at = read_batch_layout(metadata).buffers[buffer].offset + position
        body[at : at + len(value)] = value
        damaged = body_message(metadata, bytes(body), index + 1)
        with pytest.raises(InvalidDataError):
            decoder.decode(damaged)
