"""Lengths of lists, and of strings and binaries in bytes: computing and encoding them.

The lengths in a shard are encoded as Arrow IPC streams of one column each. The metadata of their
schemas has the key ``splitarrow:lengths`` with a header in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InvalidDataError
from .checker import MessageChecker
from .data_types import is_text
from .decoding import DECODING_ERRORS

MAX_LENGTHS = 1 << 19
"""The largest number of lengths in one stream. They take 2 MiB before compression."""
_KEY = b"splitarrow:lengths"
_SCHEMA = pa.schema([("length", pa.int32())])


def has_lengths(data_type: Any) -> bool:
    """Return whether values are lists, or strings or binaries with offsets."""
    types = pa.types
    return (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
        or (is_text(data_type) and data_type not in (pa.string_view(), pa.binary_view()))
    )


def measure_lengths(values: Any) -> Any:
    """Return the length of each value as int32; null for null. It does not read what is in lists.

    Raises ``pyarrow.ArrowInvalid`` if a length is negative, as those of invalid offsets are, or
    does not fit.

    Examples
    --------
    >>> measure_lengths(pa.array([[1, 2], None, []])).to_pylist()
    [2, None, 0]
    """
    measure: Any = pc.binary_length if is_text(values.type) else pc.list_value_length
    lengths = measure(values).cast(pa.int32())
    if (pc.min(lengths).as_py() or 0) < 0:
        raise pa.ArrowInvalid("the offsets of a list decrease")
    return lengths


def encode_lengths(
    header: Mapping[str, Any], batches: Iterable[Any]
) -> Generator[bytes, None, None]:
    """Yield the lengths in the record batches of a shard as streams; there is at least one.

    The header of the last one has the number of lengths of each record batch, too, as ``rows``.
    """
    rows: list[int] = []
    parts: list[Any] = []
    count = 0
    for lengths in batches:
        rows.append(len(lengths))
        for begin in range(0, len(lengths), MAX_LENGTHS):
            part = lengths.slice(begin, MAX_LENGTHS)
            if count + len(part) > MAX_LENGTHS:
                yield _encode(header, parts)
                parts, count = [], 0
            parts.append(part)
            count += len(part)
    yield _encode({**header, "rows": rows}, parts)


def _encode(header: Mapping[str, Any], parts: list[Any]) -> bytes:
    schema = _SCHEMA.with_metadata({_KEY: json.dumps(header).encode()})
    lengths: Any = pa.chunked_array(parts, pa.int32()).combine_chunks()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(pa.record_batch([lengths], schema=schema))
    return sink.getvalue().to_pybytes()


def decode_lengths(stream: bytes) -> tuple[Any, Any]:
    """Return the header and the lengths in a stream of `encode_lengths`.

    Raises `ProtocolError` if it is malformed.
    """
    try:
        messages: list[Any] = list(pa.ipc.MessageReader.open_stream(stream))
        schema_message, message = messages
        schema = pa.ipc.read_schema(schema_message)
        header = json.loads((schema.metadata or {})[_KEY])
        if schema.remove_metadata() != _SCHEMA:
            raise InvalidDataError(f"the lengths have the schema {schema}")
        checker = MessageChecker(schema, {}, max_decoded_bytes=8 * MAX_LENGTHS)
        checker.check(message.metadata.to_pybytes(), memoryview(message.body))
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (*DECODING_ERRORS, RecursionError) as error:
        raise InvalidDataError(f"the lengths are malformed: {error}") from None
    return header, batch.column(0)
