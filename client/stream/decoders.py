"""The decoder of a stream, chosen from the stream's first message.

The first message of every stream is an Arrow schema message. Its custom metadata may name what
the stream carries, under the key ``splitarrow:content``: ``tensor`` means tensors. Without the key,
a stream carries record batches. The custom metadata of the message may name the format of the
record batches, under the key ``splitarrow:format``: ``vortex`` means Vortex arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError, UsageError
from ...formats.arrow.buffer_file import DECODING_ERRORS
from ...formats.arrow.message import summarize_message
from ...formats.arrow.schema import read_schema
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.vortex.message import summarize_header
from ...formats.vortex.schema_message import is_marked
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.messages import Message, MessageFormat, MetadataType
from .batch_decoder import BatchDecoder
from .options import Validation
from .remote_bodies import RemoteBodies
from .tensor_decoder import TensorDecoder

FORMATS: Mapping[MetadataType, MessageFormat] = {
    MetadataType.ARROW: summarize_message,
    MetadataType.VORTEX: summarize_header,
}
"""The message formats that a reader accepts, by the metadata type that announces each."""


ARROW, VORTEX = "arrow", "vortex"
"""The names of the formats of record batches."""


class Decoder(Protocol):
    """Decodes the messages of one stream of record batches, in order.

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


def open_decoder(
    first: Message,
    limits: Limits,
    validate: Validation = "full",
    stream: str | None = None,
    remote_bodies: RemoteBodies | None = None,
) -> Decoder:
    """Return the decoder for a stream of record batches; see `open_content_decoder`.

    Raises
    ------
    UsageError
        If the stream carries tensors.
    """
    decoder = open_content_decoder(first, limits, validate, stream, remote_bodies)
    if isinstance(decoder, TensorDecoder):
        raise UsageError(
            "the stream carries tensors, not record batches; fetch it into a file whose name ends "
            "in .tensor or .npy, or read it with read_tensor()",
            stream=stream,
        )
    return decoder


def open_content_decoder(
    first: Message,
    limits: Limits,
    validate: Validation = "full",
    stream: str | None = None,
    remote_bodies: RemoteBodies | None = None,
) -> Decoder | TensorDecoder:
    """Return the decoder for a stream of record batches or of tensors.

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
        make_decoder = TensorDecoder if is_tensor_content(schema) else BatchDecoder
        if is_marked(first.metadata):
            from .vortex_decoder import VortexDecoder

            make_decoder = VortexDecoder
        return make_decoder(schema, first, limits, validate, stream, remote_bodies)
    except ProtocolError as error:
        error.stream, error.sequence = stream, first.sequence
        raise
    except DECODING_ERRORS as error:
        raise InvalidDataError(
            f"the schema cannot be decoded: {error}", stream=stream, sequence=first.sequence
        ) from None


def find_item_decoder(
    decoder: Decoder | TensorDecoder,
) -> tuple[str, Callable[[Message], Any] | None]:
    """Return the format of a decoder's stream, and what decodes its tensors or Vortex arrays."""
    decode_array = getattr(decoder, "decode_array", None)
    if decode_array is not None:
        return VORTEX, decode_array
    return ARROW, decoder.decode if isinstance(decoder, TensorDecoder) else None
