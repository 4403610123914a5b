"""Streams of record batches that a command reads, and the messages that they arrived in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ..client.stream.decoders import find_messages
from ..formats.arrow.conversion import BatchEncoder
from ..formats.arrow.encoder import MessageEncoder


class InputMessage(NamedTuple):
    """A record batch or dictionary batch."""

    metadata: bytes | memoryview
    """The FlatBuffer of the message."""
    body: Sequence[Any]
    """The parts of its body: bytes-like objects, or spans of files."""
    body_length: int
    """The size of all parts in bytes."""


class InputStream(Protocol):
    """An open input: a context manager and an iterator of record batches."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        ...

    @property
    def footer_metadata(self) -> Mapping[bytes, bytes] | None:
        """The custom metadata of the footer of the file; None if there is none."""
        ...

    @property
    def rows_received(self) -> int:
        """The number of rows read so far."""
        ...

    @property
    def bytes_received(self) -> int:
        """The number of bytes read so far."""
        ...

    @property
    def transport(self) -> str:
        """What carries the data: a scheme, or ``file``."""
        ...

    @property
    def schema_metadata(self) -> bytes | None:
        """The FlatBuffer of the schema message; None if there is none."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __enter__(self) -> InputStream: ...

    def __exit__(self, *arguments: object) -> None: ...


def read_schema_metadata(stream: InputStream) -> bytes:
    """Return the FlatBuffer of the schema message of a stream."""
    metadata = stream.schema_metadata
    if metadata is not None:
        return metadata
    encoder = MessageEncoder(stream.schema)
    encoder.close()
    return encoder.schema_message.metadata


def read_messages(stream: Any, schema_metadata: bytes) -> Iterator[InputMessage]:
    """Yield the messages of a stream, unchanged if possible.

    A batch that did not arrive as one message of this schema is encoded anew, with its
    dictionaries: the part of a batch that a limit leaves, or a part of a dataset whose schema
    message differs.

    Raises `SplitArrowError` if the stream fails.
    """
    if hasattr(stream, "messages"):
        yield from stream.messages()
        return
    stream.keep_messages()
    encoder = BatchEncoder(schema_metadata)
    for batch in stream:
        kept = find_messages(batch)
        if kept is not None and kept.schema_metadata == schema_metadata:
            for message in kept.messages:
                yield InputMessage(message.metadata, [message.body], message.body.size)
        else:
            for metadata, body, length in encoder.encode(batch):
                yield InputMessage(metadata, body, length)
