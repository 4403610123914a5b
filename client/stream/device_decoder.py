"""Decoding of messages whose bodies are in the memory of a device.

A transport has received them there, or they are in memory of the server that this process has
opened.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from ...errors import InvalidDataError, ProtocolError
from ...formats.arrow.body_layout import check_buffer_lengths, plan_packed_body
from ...formats.arrow.decoding import DECODING_ERRORS
from ...formats.arrow.message import read_batch_layout
from ...memory.device_batch import DeviceBatch
from ...memory.device_bodies import BodyDecoder, DeviceBodies, can_decode_on_device
from ...memory.device_region import DeviceRegion
from ...protocol.devices import DeviceBody, StagingAllocator
from ...protocol.frames import MessageRun
from ...protocol.limits import Limits
from ...protocol.memory import ReceivedBody
from ...protocol.messages import Message
from ...protocol.payloads import parse_spans
from ...protocol.regions import RemoteBody
from ...protocol.tags import BodyType
from ...transport.base import Channel
from ..arguments import Validation
from .batch_decoder import BatchDecoder
from .decoders import Decoder
from .remote_bodies import RemoteBodies


class DeviceDecoder:
    """Decodes the messages of one stream, whose bodies may be in the memory of a device."""

    def __init__(
        self,
        decoder: BatchDecoder,
        bodies: DeviceBodies,
        channel: Channel,
        limits: Limits,
        validate: Validation,
        stream: str | None,
        remote_bodies: RemoteBodies | None,
    ) -> None:
        self.schema = decoder.schema
        self._decoder = decoder
        self._device = bodies.device
        self._limits = limits
        self._stream = stream
        self._remote_bodies = remote_bodies
        fully = validate in ("full", "strict")
        self._bodies: BodyDecoder | None = None
        if decoder.is_stateless and can_decode_on_device(decoder.schema, fully=fully):
            validates = validate != "off"
            self._bodies = BodyDecoder(
                decoder.schema, self._device, validates=validates, fully=fully
            )
        self._channel: Any = None
        """The channel, if it can receive packed bodies into the memory of the device."""
        if not channel.capabilities.offset_bodies and self._bodies is not None:
            self._channel = channel
            self._channel.receive_on_device(enabled=True)

    def decode(self, message: Message) -> Any:
        """Return a `DeviceBatch` if the body is on the device; otherwise as `BatchDecoder`."""
        body = message.body
        try:
            if isinstance(body, DeviceBody):
                return self._decode_received(message, body)
            if isinstance(body, RemoteBody) and isinstance(body.region, DeviceRegion):
                return self._decode_shared(message, body, body.region)
        except ProtocolError as error:
            error.stream, error.sequence = self._stream, message.sequence
            raise
        except DECODING_ERRORS as error:
            reason = f"the data is invalid: {error}"
            raise InvalidDataError(reason, stream=self._stream, sequence=message.sequence) from None
        return self._decoder.decode(message)

    def _decode_received(self, message: Message, body: DeviceBody) -> Any:
        """Decode a packed body that the transport has received on the device."""
        bodies, begin = self._bodies, body.address
        if bodies is not None and bodies.accepts(message.metadata):
            blocks = (cast("Any", body.owner),)
            return bodies.decode(message.metadata, body.nbytes, lambda at: begin + at, blocks)
        # Decompression, and the checks of other messages, need the values.
        if self._channel is not None:
            self._channel.receive_on_device(enabled=False)
        return self._decode_copy(message, message.metadata, body.nbytes, {0: (begin, body.nbytes)})

    def _decode_shared(self, message: Message, body: RemoteBody, region: DeviceRegion) -> Any:
        """Decode a body in memory of the server. The batch keeps the memory leased."""
        metadata = message.metadata
        layout = read_batch_layout(metadata, max_buffers=self._limits.buffers)
        spans = parse_spans(
            body.view[body.start :],
            region_size=region.size,
            expected=len(layout.buffers),
            sequence=message.sequence,
        )
        check_buffer_lengths(layout.buffers, spans)
        location, targets = plan_packed_body(metadata, spans)
        places = {
            target: (region.locate(offset, length), length)
            for (target, length), (offset, _) in zip(targets, spans, strict=True)
            if length
        }
        lease: object = None
        if self._remote_bodies is not None:
            offsets = tuple(offset for offset, length in spans if length)
            lease = self._remote_bodies.lease(offsets, sum(length for _, length in spans))
        block, bodies = region.lease(lease), self._bodies
        if bodies is not None and bodies.accepts(location.metadata):
            size = location.nbytes
            batch = bodies.decode(
                location.metadata, size, lambda at: places[at][0], (block,), is_shared=True
            )
            if batch.is_aligned:
                return batch
        return self._decode_copy(message, location.metadata, location.nbytes, places)

    def _decode_copy(
        self, message: Message, metadata: bytes, nbytes: int, places: dict[int, tuple[int, int]]
    ) -> DeviceBatch | pa.RecordBatch | None:
        """Decode a message from a copy of its body on the host.

        The places are the address and the size of each part on the device, by its offset.
        """
        copy = pa.allocate_buffer(nbytes)
        memoryview(copy).cast("B")[:] = bytes(nbytes)
        for offset, (address, length) in places.items():
            self._device.copy_out(copy.address + offset, address, length)
        body = ReceivedBody.wrap(copy)
        packed = Message(message.sequence, metadata, body, BodyType.PACKED, message.message_type)
        return self._decoder.decode(packed)

    def decode_run(self, run: MessageRun, batches: list[pa.RecordBatch]) -> bool:
        """Decode a run, unless its bodies are on the device; see `Decoder.decode_run`."""
        if isinstance(run.region, DeviceRegion):
            return False
        return self._decoder.decode_run(run, batches)


def decode_on_device(
    decoder: Decoder,
    allocator: StagingAllocator,
    channel: Channel,
    limits: Limits,
    validate: Validation,
    stream: str | None,
    remote_bodies: RemoteBodies | None,
) -> Decoder:
    """Return a decoder for a connection whose bodies may be in the memory of a device."""
    bodies = allocator.device
    if (
        isinstance(bodies, DeviceBodies)
        and bodies.type_code in channel.capabilities.devices
        and isinstance(decoder, BatchDecoder)
    ):
        return DeviceDecoder(decoder, bodies, channel, limits, validate, stream, remote_bodies)
    return decoder
