"""Damaged messages and footers for the checker, and for the decoders behind it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from helpers.arrow_data import make_arrays_of_all_types
from helpers.damage import damaged
from helpers.streams import ipc_stream, split_messages
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.errors import ProtocolError
from splitarrow.formats.arrow.checker import MessageChecker
from splitarrow.formats.arrow.decoding import validate_memory
from splitarrow.formats.arrow.file_scan import FileScan
from splitarrow.formats.arrow.message import HeaderType, read_message_info
from splitarrow.formats.arrow.schema import read_dictionary_types, read_schema
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.tags import BodyType
from splitarrow.server.uploads.upload import UploadDecoder

LIMITS = Limits(decoded_bytes=1 << 24)
KINDS = ("schema", "record batch", "dictionary batch", "compressed batch", "footer")
_DECODED = 10
"""One of as many messages is decoded after the check, by the client and by a server's upload."""


class Stream(NamedTuple):
    """A valid stream of one batch: its schema message, its dictionaries and the batch."""

    schema: bytes
    dictionaries: list[tuple[bytes, bytes]]
    batch: tuple[bytes, bytes]
    checker: MessageChecker


def _make_streams(compression: str | None) -> list[Stream]:
    made: list[Stream] = []
    for name, array in make_arrays_of_all_types().items():
        batch = pa.record_batch([array, pa.array(range(len(array)))], names=[name, "n"])
        data = ipc_stream([batch], batch.schema, compression=compression)
        first, *rest = split_messages(data)
        metadata = bytes(first.metadata)
        messages = [(bytes(m.metadata), b"".join(map(bytes, m.body or []))) for m in rest]
        schema = read_schema(metadata)
        checker = MessageChecker(
            schema,
            read_dictionary_types(metadata, schema),
            max_decoded_bytes=LIMITS.decoded_bytes,
        )
        made.append(Stream(metadata, messages[:-1], messages[-1], checker))
    return made


def _make_files() -> list[bytes]:
    files: list[bytes] = []
    for name in ("int32", "dictionary by int8"):
        batch = pa.record_batch([make_arrays_of_all_types()[name]], names=[name])
        sink = io.BytesIO()
        new_file: Any = pa.ipc.new_file
        with new_file(sink, batch.schema, metadata={"key": "value"}) as writer:
            writer.write_batch(batch)
        files.append(sink.getvalue())
    return files


def make_checker_case() -> Callable[[random.Random], None]:
    """Return a function that damages one message or footer, checks it, and decodes what passes."""
    plain = _make_streams(None)
    packed = [*_make_streams("lz4"), *_make_streams("zstd")]
    encoded = [stream for stream in (*plain, *packed) if stream.dictionaries]
    files = _make_files()

    def run(rng: random.Random) -> None:
        kind = KINDS[rng.randrange(len(KINDS))]
        if kind == "schema":
            _check_schema(damaged(rng.choice(plain).schema, rng))
        elif kind == "footer":
            _check_file(rng.choice(files), rng)
        elif kind == "dictionary batch":
            stream = rng.choice(encoded)
            index = rng.randrange(len(stream.dictionaries))
            _check_message(stream, rng, index)
        else:
            _check_message(rng.choice(plain if kind == "record batch" else packed), rng, None)

    return run


def _check_schema(metadata: bytes) -> None:
    schema = read_schema(metadata)
    read_dictionary_types(metadata, schema)


def _check_file(data: bytes, rng: random.Random) -> None:
    size = int.from_bytes(data[-10:-6], "little") + 10
    data = data[:-size] + damaged(data[-size:], rng, keep_length=rng.random() < 0.8)
    scan = FileScan(lambda offset, nbytes: data[offset : offset + nbytes], len(data))
    for found in scan.messages():
        message = found.message
        assert 8 <= message.offset < message.body_offset <= message.end <= len(data)
    if scan.defects:
        raise ProtocolError(scan.defects[0].problem)


def _check_message(stream: Stream, rng: random.Random, dictionary: int | None) -> None:
    metadata, body = stream.batch if dictionary is None else stream.dictionaries[dictionary]
    if rng.random() < 0.8:
        metadata = damaged(metadata, rng, keep_length=rng.random() < 0.9)
    elif body:
        body = damaged(body, rng, keep_length=rng.random() < 0.9)
    checked = stream.checker.check(metadata, memoryview(body))
    assert checked.decoded_bytes <= LIMITS.decoded_bytes or not checked.compressed
    if rng.randrange(_DECODED):
        return
    messages = list(stream.dictionaries)
    if dictionary is None:
        messages.append((metadata, body))
    else:
        messages[dictionary] = (metadata, body)
        messages.append(stream.batch)
    _decode(stream.schema, messages)
    _upload(stream.schema, messages)


def _decode(schema: bytes, messages: list[tuple[bytes, bytes]]) -> None:
    """Decode a stream as a client does."""
    decoder = open_decoder(Message(0, schema, None, BodyType.PACKED), LIMITS, "full", "s")
    for sequence, (metadata, data) in enumerate(messages, 1):
        body = ReceivedBody.wrap(pa.py_buffer(data))
        batch = decoder.decode(Message(sequence, metadata, body, BodyType.PACKED))
        if batch is not None:
            validate_memory(batch)
            batch.serialize()


def _upload(schema: bytes, messages: list[tuple[bytes, bytes]]) -> None:
    """Decode a stream as a server does that receives it."""
    decoder = UploadDecoder(schema, DEFAULT_LIMITS)
    for metadata, data in messages:
        decoded = decoder.decode(memoryview(metadata), pa.py_buffer(data))
        is_batch = read_message_info(metadata).header_type is HeaderType.RECORD_BATCH
        assert (decoded is not None) == is_batch
