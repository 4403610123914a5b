"""Arrow IPC streams cut into messages, and the ways of messages through the protocol."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa

from splitarrow.client.decoder import BatchDecoder, Validation
from splitarrow.formats.arrow.message import message_facts, parse_prefix
from splitarrow.protocol.frames import (
    Incoming,
    Outgoing,
    ReceivedBody,
    Run,
    TaggedReceived,
    Untagged,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.messages import Message, single_messages
from splitarrow.protocol.reassembler import Reassembler
from splitarrow.protocol.splitter import SourceMessage, Splitter
from splitarrow.protocol.tags import BodyType
from splitarrow.protocol.uri import StreamKind
from splitarrow.transport.framing import PREFACE, encode


def ipc_stream(batches: Iterable[pa.RecordBatch], schema: pa.Schema, **options: object) -> bytes:
    """Write an Arrow IPC stream with pyarrow."""
    sink = io.BytesIO()
    write_options = pa.ipc.IpcWriteOptions(**options)  # pyright: ignore[reportArgumentType]
    with pa.ipc.new_stream(sink, schema, options=write_options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def cut(stream: bytes) -> list[SourceMessage]:
    """Cut an Arrow IPC stream into its messages; the end marker is left out."""
    messages: list[SourceMessage] = []
    position = 0
    while position < len(stream):
        prefix = parse_prefix(stream[position : position + 8])
        if prefix.metadata_length == 0:
            break
        position += prefix.nbytes
        metadata = stream[position : position + prefix.metadata_length]
        position += prefix.metadata_length
        facts = message_facts(metadata)
        body = stream[position : position + facts.body_length]
        position += facts.body_length
        parts = [body] if facts.header_type.has_body else None
        messages.append(SourceMessage(metadata, parts, len(body)))
    return messages


def frames_of(
    messages: Iterable[SourceMessage], splitter: Splitter | None = None
) -> list[Outgoing]:
    """Split a whole stream, its end included."""
    splitter = splitter or Splitter()
    return splitter.split(messages) + splitter.end()


def arrived(frames: Iterable[Outgoing], headroom: int = 0) -> list[Incoming]:
    """Turn frames as they are sent into frames as they are received."""
    incoming: list[Incoming] = []
    for frame in frames:
        if isinstance(frame, Untagged):
            incoming.append(frame)
        else:
            payload = b"".join(bytes(part) for part in frame.parts)
            incoming.append(TaggedReceived(frame.tag, ReceivedBody.copy_of(payload, headroom)))
    return incoming


def on_the_wire(frames: Iterable[Outgoing]) -> bytes:
    """Return the bytes of one direction of a connection that carries the frames."""
    return PREFACE + b"".join(bytes(part) for part in encode(frames))


def take_in(
    reassembler: Reassembler,
    frames: Iterable[Incoming],
    ready: list[Message],
    origin: StreamKind = StreamKind.BOTH,
) -> None:
    """Hand frames to a reassembler; the messages of runs come out one by one."""
    received: list[Message | Run] = []
    try:
        reassembler.feed(frames, received, origin)
    finally:
        ready.extend(single_messages(received))


def reassembled(frames: Iterable[Incoming], limits: Limits = DEFAULT_LIMITS) -> list[Message]:
    """Put a whole stream together; fail unless its end is proven."""
    reassembler, ready = Reassembler(limits), list[Message]()
    take_in(reassembler, frames, ready)
    assert reassembler.finished, reassembler.missing()
    return ready


def decoded(
    messages: Sequence[Message],
    limits: Limits = DEFAULT_LIMITS,
    validate: Validation = "full",
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Decode the messages of a stream; return its schema and its record batches."""
    decoder = BatchDecoder(messages[0], limits, validate)
    batches = [decoder.decode(message) for message in messages[1:]]
    return decoder.schema, [batch for batch in batches if batch is not None]


def whole_way(
    messages: Iterable[SourceMessage], headroom: int = 0
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Split, receive, reassemble and decode a stream."""
    return decoded(reassembled(arrived(frames_of(messages), headroom)))


def schema_message(metadata: bytes, sequence: int = 0) -> Message:
    """Return a message without a body, as the reassembler hands it over."""
    return Message(sequence, metadata, None, BodyType.PACKED)


def body_message(metadata: bytes, body: bytes, sequence: int = 1, headroom: int = 0) -> Message:
    """Return a message with a packed body, as the reassembler hands it over."""
    return Message(sequence, metadata, ReceivedBody.copy_of(body, headroom), BodyType.PACKED)


def small_stream(batches: int = 3, rows: int = 4) -> list[SourceMessage]:
    """Return the messages of a stream of one int64 column; batch k holds k, k + 1, ..."""
    schema = pa.schema([("n", pa.int64())])
    made = [
        pa.record_batch([pa.array(range(k, k + rows), pa.int64())], schema=schema)
        for k in range(batches)
    ]
    return cut(ipc_stream(made, schema))
