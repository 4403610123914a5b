"""From the messages of a stream of tensors to tensors, without copying a body."""

from __future__ import annotations

import pyarrow as pa

from ...errors import ProtocolError, SplitArrowError
from ...formats.arrow.schema import is_native_endian
from ...formats.arrow.tensors.decoding import decode_tensor, make_tensor
from ...formats.arrow.tensors.parsing import read_tensor_layout
from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ...protocol.limits import Limits
from ...protocol.messages import Message, MetadataType
from ...protocol.tags import BodyType
from .batch_decoder import refuse_format
from .options import Validation
from .remote_bodies import RemoteBodies


class TensorDecoder:
    """Decodes the messages of one stream of tensors, in order.

    The tensors share the memory of the received bodies, or of the server's regions, and keep it
    alive.

    Parameters
    ----------
    schema : pyarrow.Schema
        The schema of the stream, which has no fields.
    schema_message : Message
        The first message of the stream. It declares the byte order.
    limits : Limits
        Bounds on the size of tensors whose bytes are swapped.
    validate : {"strict", "full", "cheap", "off"}
        Whether to check the indices of sparse tensors: all but ``off`` do.
    stream : str, optional
        The name of the stream, for errors.
    remote_bodies : RemoteBodies, optional
        Resolves bodies of offsets. Without it, they are a protocol error.
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
        """Return the tensor of a message.

        Raises
        ------
        ProtocolError
            If the message is invalid. `LimitError` and `InvalidDataError` are subclasses.
        DatasetError
            If the body is in a file that has changed.
        """
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
