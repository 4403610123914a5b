"""Vortex messages for tests: what vortex-data encodes, and arrays of many encodings."""

from __future__ import annotations

import datetime
import decimal
import struct
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import vortex
import vortex.io
from vortex.serde import decode_ipc_array_buffers, encode_ipc_array_buffers

from splitarrow.formats.vortex.array_body import BUFFER, read_array_body
from splitarrow.formats.vortex.message import (
    FramedHeader,
    HeaderReader,
    Message,
    MessageKind,
    VortexLimits,
    build_message,
    encode_message,
    read_parts,
)


def make_columns() -> dict[str, pa.Array]:
    """Return columns that vortex-data encodes in different ways once they are compressed."""
    rows = range(1500)
    return {
        "int": pa.array(rows, pa.int64()),
        "null": pa.nulls(len(rows)),
        "small int": pa.array([(7 * i) % 13 - 5 for i in rows], pa.int32()),
        "nullable int": pa.array([None if i % 5 == 0 else i % 97 for i in rows], pa.uint16()),
        "constant": pa.array([4] * len(rows), pa.int8()),
        "float": pa.array([i / 100 for i in rows]),
        "random": pa.array([(i * 2654435761) % (1 << 63) for i in rows], pa.uint64()),
        "bool": pa.array([None if i % 11 == 0 else i % 3 == 0 for i in rows]),
        "runs": pa.array([i // 100 for i in rows], pa.int32()),
        "low": pa.array([("red", "green", None, "a colour with a long name")[i % 4] for i in rows]),
        "high": pa.array([f"https://example.org/{i * 7919}/page" for i in rows]),
        "binary": pa.array([bytes([i % 256]) * (i % 20) for i in rows]),
        "list": pa.array([list(range(i % 4)) if i % 7 else None for i in rows]),
        "fixed list": pa.array([[i, i + 1] for i in rows], pa.list_(pa.int32(), 2)),
        "struct": pa.array([{"a": i, "b": str(i % 9)} if i % 6 else None for i in rows]),
        "decimal": pa.array([decimal.Decimal(i) / 100 for i in rows], pa.decimal128(9, 2)),
        "timestamp": pa.array([i * 1_000_003 for i in rows], pa.timestamp("us", "UTC")),
        "date": pa.array([datetime.date(2020, 1, 1 + i % 28) for i in rows]),
        "empty": pa.array([], pa.int32()),
        "nested": pa.array([[{"x": [str(i)] * (i % 3)}] for i in rows]),
    }


def make_file(column: pa.Array | pa.Table) -> bytes:
    """Return a ``.vortex`` file with one column."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.vortex"
        table = column if isinstance(column, pa.Table) else pa.table({"x": column})
        vortex.io.write(vortex.array(table), str(path))
        return path.read_bytes()


def read_stream(
    data: bytes, limits: VortexLimits | None = None
) -> list[tuple[FramedHeader, Message]]:
    """Return the messages of a stream, and their places."""
    reader = HeaderReader(
        lambda at, nbytes: data[at : at + nbytes], len(data), limits or VortexLimits()
    )
    found: list[tuple[FramedHeader, Message]] = []
    while (place := reader.next_header()) is not None:
        body = data[place.body_offset : place.end]
        found.append((place, Message(place.metadata, place.header, (body,))))
    return found


def encode(array: Any) -> tuple[Message, Message]:
    """Return the dtype message and the array message of an array of vortex-data."""
    parts, dtype_parts = encode_ipc_array_buffers(array)
    return read_parts(dtype_parts), read_parts(parts)


def encode_arrow(array: pa.Array | pa.Table, *, compress: bool = True) -> tuple[Message, Message]:
    """Return the messages of Arrow data."""
    found = vortex.array(array)
    return encode(vortex.compress(found) if compress else found)


def make_messages() -> dict[str, tuple[Message, Message]]:
    """Return the messages of all columns, compressed and not."""
    made: dict[str, tuple[Message, Message]] = {}
    for name, column in make_columns().items():
        made[name] = encode_arrow(column, compress=False)
        made[f"{name}, compressed"] = encode_arrow(column)
    return made


def decode_with_library(dtype: Message, message: Message) -> pa.Array:
    """Return the array that vortex-data's own functions decode from two messages."""
    array = decode_ipc_array_buffers(
        [b"".join(encode_message(message))], [b"".join(encode_message(dtype))]
    )
    return array.to_arrow_array()


def write_stream(*messages: Message) -> bytes:
    """Return a stream in which bodies are aligned."""
    data = b""
    for message in messages:
        data += b"".join(encode_message(message, len(data)))
    return data


def with_body(message: Message, pieces: list[Any]) -> Message:
    """Return an array message with another body."""
    header = message.header
    return build_message(
        MessageKind.ARRAY, pieces, row_count=header.row_count, encodings=header.encodings
    )


def put_table_first(message: Message) -> Message:
    """Return an array message in the order of the specification's text."""
    body = message.join_body()
    (length,) = struct.unpack("<I", body[-4:])
    table = body[-4 - length : -4]
    found = read_array_body(body, len(message.header.encodings))
    return with_body(message, [table, body[: found.table.buffer_bytes]])


def compress_buffers(message: Message, compress: Any, *, every: int = 1) -> Message:
    """Return an array message some of whose buffers are compressed."""
    found = read_array_body(message.join_body(), len(message.header.encodings))
    table = bytearray(found.table_data)
    pieces: list[bytes] = []
    for number, entry in enumerate(found.table.buffers):
        data = bytes(found.find_buffer(number))
        packed = number % every == 0
        if packed:
            data = compress(data)
        at = found.table.entries_offset + number * BUFFER.size
        BUFFER.pack_into(table, at, 0, entry.alignment_exponent, packed, len(data))
        pieces.append(data)
    return with_body(message, [*pieces, bytes(table), struct.pack("<I", len(table))])
