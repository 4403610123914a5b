"""The decoder of a stream, chosen from the stream's first message.

The first message of every stream is an Arrow schema message. Its custom metadata may name what
the stream carries, under the key ``splitarrow:content``. `DECODERS` maps that name to the class
that decodes such streams. Without the key, a stream carries record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError
from ...formats.arrow.buffer_file import DECODING_ERRORS
from ...formats.arrow.message import summarize_message
from ...formats.arrow.schema import read_schema
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.messages import Message, MessageFormat, MetadataType
from .batch_decoder import BatchDecoder
from .options import Validation
from .remote_bodies import RemoteBodies

CONTENT_KEY = b"splitarrow:content"
"""The key of the schema's custom metadata whose value names the content of the stream."""

FORMATS: Mapping[MetadataType, MessageFormat] = {MetadataType.ARROW: summarize_message}
"""The message formats that a reader accepts, by the metadata type that announces each."""


class Decoder(Protocol):
    """Decodes the messages of one stream, in order.

    The record batches that it returns share the memory of the message bodies and keep that
    memory alive.
    """

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        ...

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message, or None if the message completes none.

        Raises
        ------
        ProtocolError
            If the message is invalid. `LimitError` and `InvalidDataError` are subclasses.
        """
        ...

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Decode the messages of a run and append their record batches to `batches`.

        Returns
        -------
        bool
            False if decoding would allocate memory. Nothing was decoded then, and the caller
            decodes the messages one by one.

        Raises
        ------
        ProtocolError
            As for `decode`. The record batches before the error have been appended.
        """
        ...


DecoderFactory = Callable[
    [pa.Schema, Message, Limits, Validation, str | None, RemoteBodies | None], Decoder
]
"""Makes a decoder from the schema, the first message and the arguments of `open_decoder`."""

DECODERS: dict[bytes, DecoderFactory] = {}
"""The decoders of content other than record batches, by the value under `CONTENT_KEY`."""


def open_decoder(
    first: Message,
    limits: Limits,
    validate: Validation = "full",
    stream: str | None = None,
    remote_bodies: RemoteBodies | None = None,
) -> Decoder:
    """Return the decoder for the stream that begins with `first`.

    Parameters
    ----------
    first : Message
        Message 0 of the stream, which carries the schema.
    limits : Limits
        Bounds on nesting, buffers and decompressed sizes.
    validate : {"strict", "full", "cheap", "off"}
        How thoroughly the decoder checks record batches.
    stream : str, optional
        The name of the stream, for errors.
    remote_bodies : RemoteBodies, optional
        Resolves bodies of type 1. Without it, the decoder refuses them.

    Raises
    ------
    InvalidDataError
        If the schema is malformed or unknown to pyarrow.
    LimitError
        If the schema nests too deep or becomes too large.
    """
    try:
        schema = read_schema(
            first.metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
        )
        content = (schema.metadata or {}).get(CONTENT_KEY, b"")
        make_decoder = DECODERS.get(content, BatchDecoder)
        return make_decoder(schema, first, limits, validate, stream, remote_bodies)
    except ProtocolError as error:
        error.stream, error.sequence = stream, first.sequence
        raise
    except DECODING_ERRORS as error:
        raise InvalidDataError(
            f"the schema cannot be decoded: {error}", stream=stream, sequence=first.sequence
        ) from None
