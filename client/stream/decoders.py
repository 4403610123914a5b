"""The decoder of a stream, chosen from the stream's first message.

It returns record batches, arrays or tensors. It can keep the encapsulated messages of batches for a
caller that passes them on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError, SplitArrowError, UsageError
from ...formats.arrow.decoding import DECODING_ERRORS
from ...formats.arrow.message import summarize_message
from ...formats.arrow.schema import is_native_endian, read_schema
from ...formats.arrow.tensors.decoding import decode_tensor, make_tensor
from ...formats.arrow.tensors.labels import is_tensor_content
from ...formats.arrow.tensors.layout import read_tensor_layout
from ...formats.arrow.tensors.tensor import AnyTensor
from ...formats.vortex.message import is_marked, summarize_header
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.messages import Message, MessageFormat, MetadataType
from ...protocol.tags import BodyType
from ..arguments import Validation
from .batch_decoder import BatchDecoder, refuse_format
from .remote_bodies import RemoteBodies


class TensorDecoder:
    """Decodes the messages of one stream of tensors, in order.

    The tensors share the memory of the received bodies, or of the server's regions, and keep it
    alive. Without `remote_bodies`, a body of offsets is a protocol error.
    """

    def __init__(
        self,
        schema: pa.Schema,
        schema_message: Message,
        limits: Limits,
        validate: Validation = "full",
        stream: str | None = None,
        remote_bodies: RemoteBodies | None = None,
    ) -> None:
        self.schema = schema
        """The schema of the stream."""
        self._limits = limits
        self._checks_values = validate != "off"
        self._stream = stream
        self._remote_bodies = remote_bodies
        self._swaps_bytes = not is_native_endian(schema_message.metadata)

    def decode(self, message: Message) -> AnyTensor:
        """Return the tensor of a message."""
        try:
            return self._decode(message)
        except SplitArrowError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise

    def _decode(self, message: Message) -> AnyTensor:
        if message.message_type != MetadataType.ARROW:
            raise refuse_format(message, self._stream)
        metadata, body, limit = message.metadata, message.body, self._limits.decoded_bytes
        if message.body_type is BodyType.OFFSETS and self._remote_bodies is not None:
            layout = read_tensor_layout(metadata)
            buffers = self._remote_bodies.resolve_buffers(message, layout.buffers)
            return make_tensor(
                metadata,
                layout,
                buffers,
                swap_bytes=self._swaps_bytes,
                check_values=self._checks_values,
                max_swapped_bytes=limit,
            )
        if body is None or message.body_type is not BodyType.PACKED:
            raise ProtocolError("a tensor needs a packed body")
        return decode_tensor(
            metadata,
            body.payload(),
            swap_bytes=self._swaps_bytes,
            check_values=self._checks_values,
            max_swapped_bytes=limit,
        )


FORMATS: Mapping[MetadataType, MessageFormat] = {
    MetadataType.ARROW: summarize_message,
    MetadataType.VORTEX: summarize_header,
}
"""The message formats that a reader accepts, by the metadata type that announces each."""


ARROW, VORTEX = "arrow", "vortex"
"""The names of the formats of record batches."""
SCHEMA_MARK = b"splitarrow:"
"""How the keys begin that a server adds to a schema message. Most schemas have none."""


class Decoder(Protocol):
    """Decodes the messages of one stream of record batches, in order; see `BatchDecoder`."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        ...

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message, or None if the message completes none."""
        ...

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Decode the messages of a run and append their record batches, also before an error.

        Return False, and append none, to have the messages decoded one by one.
        """
        ...


def open_decoder(
    first: Message,
    limits: Limits,
    validate: Validation = "full",
    stream: str | None = None,
    remote_bodies: RemoteBodies | None = None,
) -> Decoder:
    """Return the decoder for a stream of record batches. Refuse a stream of tensors."""
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
    """Return the decoder for a stream of record batches or of tensors."""
    try:
        schema = read_schema(
            first.metadata, max_nesting=limits.nesting, max_bytes=limits.metadata_bytes
        )
        make_decoder = BatchDecoder
        if SCHEMA_MARK in first.metadata:
            if is_tensor_content(schema):
                make_decoder = TensorDecoder
            elif is_marked(first.metadata):
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


_KEPT: dict[int, tuple[weakref.ref[pa.RecordBatch], KeptMessages]] = {}


class KeptMessage(NamedTuple):
    """A message as it arrived."""

    metadata: bytes
    """The FlatBuffer of the message."""
    body: pa.Buffer
    """Its packed body. It keeps the memory that it arrived in alive."""


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """The messages that a record batch was decoded from."""

    schema_metadata: bytes
    """The FlatBuffer of the schema message of the stream."""
    messages: tuple[KeptMessage, ...]
    """The dictionaries that arrived before the batch, and the batch itself."""


def find_messages(batch: pa.RecordBatch) -> KeptMessages | None:
    """Return the messages of a received batch; None if the stream keeps none.

    A slice of a batch has none either.
    """
    found = _KEPT.get(id(batch))
    return None if found is None else found[1]


class KeepingDecoder:
    """A decoder that keeps the messages of each batch until the batch is garbage collected."""

    def __init__(
        self, decoder: Decoder, schema_metadata: bytes, remote_bodies: RemoteBodies | None = None
    ) -> None:
        self._decoder = decoder
        self._schema_metadata = schema_metadata
        self._remote_bodies = remote_bodies
        self._pending: list[KeptMessage] = []

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches."""
        return self._decoder.schema

    def decode(self, message: Message) -> pa.RecordBatch | None:
        """Return the record batch of a message; see `Decoder.decode`."""
        if message.body_type is BodyType.OFFSETS and self._remote_bodies is not None:
            message = self._remote_bodies.resolve(message)
        batch = self._decoder.decode(message)
        body = message.body
        if body is not None:
            self._pending.append(KeptMessage(message.metadata, body.payload()))
        if batch is not None:
            kept = KeptMessages(self._schema_metadata, tuple(self._pending))
            self._pending.clear()
            key = id(batch)
            reference = weakref.ref(batch, lambda _: _KEPT.pop(key, None))
            _KEPT[key] = (reference, kept)
        return batch

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Return False: each message of a run is decoded on its own, to keep it."""
        del run, batches
        return False
