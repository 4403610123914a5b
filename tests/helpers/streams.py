"""Arrow IPC streams as messages and frames, and their way through the protocol."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa

from splitarrow.client.arguments import Validation
from splitarrow.client.stream.decoders import FORMATS, open_decoder
from splitarrow.formats.arrow.message import parse_prefix, read_message_info
from splitarrow.protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message, expand_messages
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.tags import BodyType
from splitarrow.protocol.uri import Streams
from splitarrow.transport.framing import PREFACE, encode_frames


def ipc_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema, **options: object) -> bytes:
    """Write an Arrow IPC stream with pyarrow."""
    sink = io.BytesIO()
    write_options = pa.ipc.IpcWriteOptions(**options)  # pyright: ignore[reportArgumentType]
    with pa.ipc.new_stream(sink, schema, options=write_options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def split_messages(stream: bytes) -> list[SourceMessage]:
    """Return the messages of an Arrow IPC stream, without the end marker."""
    messages: list[SourceMessage] = []
    position = 0
    while position < len(stream):
        prefix = parse_prefix(stream[position : position + 8])
        if prefix.metadata_length == 0:
            break
        position += prefix.nbytes
        metadata = stream[position : position + prefix.metadata_length]
        position += prefix.metadata_length
        facts = read_message_info(metadata)
        body = stream[position : position + facts.body_length]
        position += facts.body_length
        parts = [body] if facts.header_type.has_body else None
        messages.append(SourceMessage(metadata, parts, len(body)))
    return messages


def list_frames(
    messages: Iterable[SourceMessage], splitter: Splitter | None = None
) -> list[OutgoingFrame]:
    """Return the frames of a whole stream, including its end."""
    splitter = splitter or Splitter()
    return [*splitter.split(messages), *splitter.end()]


def receive_frames(frames: Iterable[OutgoingFrame], headroom: int = 0) -> list[IncomingFrame]:
    """Return sent frames as received frames."""
    incoming: list[IncomingFrame] = []
    for frame in frames:
        if isinstance(frame, UntaggedFrame):
            incoming.append(frame)
        else:
            payload = b"".join(bytes(part) for part in frame.buffers)
            incoming.append(ReceivedFrame(frame.tag, ReceivedBody.copy(payload, headroom)))
    return incoming


def encode_wire_bytes(frames: Iterable[OutgoingFrame]) -> bytes:
    """Return the bytes of one direction of a connection that carries the frames."""
    return PREFACE + b"".join(bytes(part) for part in encode_frames(frames))


def feed_frames(
    reassembler: Reassembler,
    frames: Iterable[IncomingFrame],
    ready: list[Message],
    origin: Streams = Streams.BOTH,
) -> None:
    """Feed frames to a reassembler and return its messages, with runs expanded."""
    received: list[Message | MessageRun] = []
    try:
        reassembler.feed(frames, received, origin)
    finally:
        ready.extend(expand_messages(received))


def reassembled(frames: Iterable[IncomingFrame], limits: Limits = DEFAULT_LIMITS) -> list[Message]:
    """Reassemble a whole stream. Fail unless its end is proven."""
    reassembler, ready = Reassembler(FORMATS, limits), list[Message]()
    feed_frames(reassembler, frames, ready)
    assert reassembler.finished, reassembler.missing()
    return ready


def decode_messages(
    messages: Sequence[Message],
    limits: Limits = DEFAULT_LIMITS,
    validate: Validation = "full",
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Decode the messages of a stream and return its schema and its record batches."""
    decoder = open_decoder(messages[0], limits, validate)
    batches = [decoder.decode(message) for message in messages[1:]]
    return decoder.schema, [batch for batch in batches if batch is not None]


def send_through_protocol(
    messages: Iterable[SourceMessage], headroom: int = 0
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Split, receive, reassemble and decode a stream."""
    return decode_messages(reassembled(receive_frames(list_frames(messages), headroom)))


def schema_message(metadata: bytes, sequence: int = 0) -> Message:
    """Return a message without a body, like the reassembler."""
    return Message(sequence, metadata, None, BodyType.PACKED)


def body_message(metadata: bytes, body: bytes, sequence: int = 1, headroom: int = 0) -> Message:
    """Return a message with a packed body, like the reassembler."""
    return Message(sequence, metadata, ReceivedBody.copy(body, headroom), BodyType.PACKED)


def small_stream(batches: int = 3, rows: int = 4) -> list[SourceMessage]:
    """Return the messages of a stream of one int64 column; batch k contains k, k + 1, ..."""
    schema = pa.schema([("n", pa.int64())])
    made = [
        pa.record_batch([pa.array(range(k, k + rows), pa.int64())], schema=schema)
        for k in range(batches)
    ]
    return split_messages(ipc_stream(made, schema))


def source_messages(table: pa.Table) -> list[SourceMessage]:
    """Return the messages of a table, each body in one part."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    messages: list[SourceMessage] = []
    for message in pa.ipc.MessageReader.open_stream(sink.getvalue()):
        body = None if message.type == "schema" else message.body
        parts = None if body is None else (body,)
        size = 0 if body is None else body.size
        messages.append(SourceMessage(message.metadata.to_pybytes(), parts, size))
    return messages
