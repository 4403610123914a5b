"""The receiving half of a connection: each body goes straight into its final memory."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from ...errors import UsageError
from ...protocol.devices import DeviceAllocator, allocate_on_device
from ...protocol.frames import IncomingFrame, make_received_frame, make_untagged_frame
from ...protocol.limits import Limits
from ...protocol.memory import DEFAULT_ALLOCATOR, Allocator, BodyPool, ReceivedBody
from ...protocol.tags import TYPE_SHIFT, BodyType
from ..framing import check_body_size
from .ffi import (
    IN_PROGRESS,
    NULL,
    OK,
    REQUEST_FIELD_MEMORY_TYPE,
    StatusError,
    ffi,
    get_status,
    ucp,
)
from .memory import MEMORY_TYPES, AnnouncedRegion
from .remote_reads import RemoteReads
from .sending import END_TYPES, FAREWELL
from .worker import Worker

_METADATA_HEADROOM = 8 - 5  # an encapsulated message's prefix replaces the protocol's
_INITIAL_HEADROOM = 1024
_MIN_UNDER_WAY, _MAX_UNDER_WAY = 2, 16
_MAX_UNDER_WAY_WITH_DEVICE = 4
"""Lower, because those that arrive with the schema are received on the host."""
_MAX_BYTES_UNDER_WAY = 32 << 20
_PACKED_TAGS = 1 << 32
"""The number of tags of packed bodies, whose other bits are 0."""
_MIN_DEVICE_BYTES = 64 << 10
"""The size from which bodies are received on a device: the smallest block of its memory."""


class _PendingBody(NamedTuple):
    """A tagged message that is being received."""

    request: Any
    tag: int
    body: ReceivedBody
    region: AnnouncedRegion | None
    """The region that was announced last before it."""


class _PendingMetadata(NamedTuple):
    """A metadata message that is being received."""

    request: Any
    memory: bytearray
    target: Any
    """The library's view of `memory`, which keeps it in place."""


_P = TypeVar("_P", _PendingBody, _PendingMetadata)


class Receiver:
    """Takes messages off a worker.

    For each body, the receiver first looks at the tag and the size, and then receives into a
    buffer of that size. It receives two to 16 bodies at a time. Further large bodies wait at the
    peer.

    A server sends a farewell before it closes. Raises `UsageError` if the allocator does not supply
    host memory.
    """

    def __init__(
        self,
        worker: Worker,
        endpoint: Any,
        limits: Limits,
        *,
        expects_farewell: bool,
        announcement_tag: int | None = None,
        allocator: Allocator = DEFAULT_ALLOCATOR,
        device: DeviceAllocator | None = None,
    ) -> None:
        if not allocator.is_host:
            raise UsageError("ucx:// receives bodies into host memory; use a host allocator")
        self._worker = worker
        self._limits = limits
        self._farewell_tag = FAREWELL if expects_farewell else None
        self._pool = BodyPool(allocator)
        self._headroom = _INITIAL_HEADROOM
        self._bodies: list[_PendingBody] = []
        self._metadata: list[_PendingMetadata] = []
        self._farewell: Any = None
        self._end: list[bytes] = []
        self._info = ffi.new("ucp_tag_recv_info_t *")
        self._param = ffi.new("ucp_request_param_t *")
        self._param.op_attr_mask = REQUEST_FIELD_MEMORY_TYPE
        self._device = device
        self._device_param = ffi.new("ucp_request_param_t *")
        self._device_param.op_attr_mask = REQUEST_FIELD_MEMORY_TYPE
        self._device_param.memory_type = 0 if device is None else MEMORY_TYPES[device.type_code]
        self.uses_device = False
        """Whether packed bodies of some size are received into the memory of the device."""
        self._remote_reads: RemoteReads | None = None
        if announcement_tag is not None:
            self._remote_reads = RemoteReads(
                endpoint, limits, self._pool, announcement_tag, self._param
            )
        self.ends: list[bytes] = []
        """The messages that ended a stream, in the order in which they were taken."""
        self.has_ended = False
        """Whether the peer has sent its farewell: nothing follows."""
        self.bytes_received = 0
        """The bytes of payload that have arrived."""

    @property
    def at_boundary(self) -> bool:
        """Whether no message has arrived in part."""
        return not self._bodies and not self._metadata and not self._is_reading

    @property
    def has_farewell(self) -> bool:
        """Whether the peer closes the connection."""
        return self.has_ended or self._farewell is not None

    @property
    def _is_reading(self) -> bool:
        return self._remote_reads is not None and self._remote_reads.count > 0

    @property
    def has_work(self) -> bool:
        """Whether `take` would do something."""
        events, remote_reads = self._worker.events, self._remote_reads
        check = ucp.ucp_request_check_status
        return bool(
            events.metadata
            or events.rendezvous
            or events.refusal
            or any(check(pending.request) != IN_PROGRESS for pending in self._bodies)
            or any(check(pending.request) != IN_PROGRESS for pending in self._metadata)
            or (remote_reads is not None and remote_reads.has_completed)
            or (
                self._has_room
                and ucp.ucp_tag_probe_nb(self._worker.handle, 0, 0, 0, self._info) != NULL
            )
        )

    @property
    def _has_room(self) -> bool:
        """Whether another body may be received: one is copied while the next is on its way."""
        count, remote_reads = len(self._bodies), self._remote_reads
        if remote_reads is not None:
            count += remote_reads.count
        if count < _MIN_UNDER_WAY:
            return True
        if count >= (_MAX_UNDER_WAY if self._device is None else _MAX_UNDER_WAY_WITH_DEVICE):
            return False
        nbytes = sum(pending.body.nbytes for pending in self._bodies)
        if remote_reads is not None:
            nbytes += remote_reads.nbytes
        return nbytes < _MAX_BYTES_UNDER_WAY

    def take_freed(self) -> list[int]:
        """Remove and return the offsets of remote bodies that have been read."""
        if self._remote_reads is None or not self._remote_reads.freed:
            return []
        freed, self._remote_reads.freed = self._remote_reads.freed, []
        return freed

    def take(self, frames: list[IncomingFrame], limit: int) -> None:
        """Append complete messages to `frames`, and start to receive others, up to `limit` bytes.

        Raises `LimitError` if a message is too large, before memory is allocated for it. Raises
        `ProtocolError` if a remote body is malformed, or outside the announced region. Raises
        `StatusError` if a message cannot be received.
        """
        events, metadata = self._worker.events, self._worker.events.metadata
        self._take_pending(frames)
        found = True
        while found and self.bytes_received < limit:
            found = False
            if metadata:
                self._add_untagged(frames, metadata.popleft())
                found = True
            if self._has_room and self._receive_body(frames):
                found = True
        while events.rendezvous:
            data, length = events.rendezvous.popleft()
            self._receive_metadata(frames, data, length)
        if events.refusal is not None:
            raise events.refusal
        if self._end and not self._bodies and not self._is_reading:
            frames.extend(make_untagged_frame((payload,)) for payload in self._end)
            self.ends += self._end
            self._end.clear()
        if self._farewell is not None and self.at_boundary:
            # The match tells the server that everything before the farewell has arrived.
            self._discard(self._farewell)
            self._farewell = None
            self.has_ended = True

    def _take_pending(self, frames: list[IncomingFrame]) -> None:
        """Append the pending messages that have arrived."""
        if self._is_reading:
            self._take_remote_reads(frames)
        if self._metadata:
            self._take_pending_metadata(frames)
        if self._bodies:
            self._take_pending_bodies(frames)

    # Metadata messages.

    def _add_untagged(self, frames: list[IncomingFrame], payload: bytes) -> None:
        self._headroom = len(payload) + _METADATA_HEADROOM
        self.bytes_received += len(payload)
        if payload and payload[0] in END_TYPES:
            self._end.append(payload)  # it may have overtaken bodies that are still under way
        else:
            frames.append(make_untagged_frame((payload,)))

    def _receive_metadata(self, frames: list[IncomingFrame], data: Any, length: int) -> None:
        memory = bytearray(length)
        target = ffi.from_buffer(memory)
        request = ucp.ucp_am_recv_data_nbx(self._worker.handle, data, target, length, self._param)
        status = get_status(request)
        if status == IN_PROGRESS:
            self._metadata.append(_PendingMetadata(request, memory, target))
        elif status == OK:
            self._add_untagged(frames, bytes(memory))
        else:
            raise StatusError(status)

    def _take_pending_metadata(self, frames: list[IncomingFrame]) -> None:
        completed, self._metadata, failed = _partition(self._metadata)
        for pending in completed:
            self._add_untagged(frames, bytes(pending.memory))
        if failed != OK:
            raise StatusError(failed)

    # Tagged messages.

    def _receive_body(self, frames: list[IncomingFrame]) -> bool:
        """Start to receive the next tagged message; return False if there is none."""
        handle, info = self._worker.handle, self._info
        message = ucp.ucp_tag_probe_nb(handle, 0, 0, 1, info)
        if message == NULL:
            return False
        tag, nbytes = info.sender_tag, info.length
        if tag == self._farewell_tag:
            self._farewell = message
            return True
        if nbytes > self._limits.body_bytes:
            self._discard(message)
            check_body_size(nbytes, self._limits, tag)
        body, address, param = self._allocate(nbytes, tag)
        target = ffi.cast("void *", address)
        request = ucp.ucp_tag_msg_recv_nbx(handle, target, nbytes, message, param)
        region = None if self._remote_reads is None else self._remote_reads.latest_region
        if request == NULL:
            self._add_tagged(frames, tag, body, region)
            return True
        status = get_status(request)
        if status != IN_PROGRESS:
            raise StatusError(status)
        self._bodies.append(_PendingBody(request, tag, body, region))
        return True

    def _allocate(self, nbytes: int, tag: int) -> tuple[ReceivedBody, int, Any]:
        """Return memory for a body, its address, and the parameters to receive into it."""
        device = self._device
        if (
            device is not None
            and self.uses_device
            and tag < _PACKED_TAGS
            and nbytes >= _MIN_DEVICE_BYTES
        ):
            on_device = allocate_on_device(device, nbytes, tag)
            return on_device, on_device.address, self._device_param
        body = self._pool.allocate(nbytes, self._headroom, tag)
        return body, body.buffer.address + body.start, self._param

    def _take_pending_bodies(self, frames: list[IncomingFrame]) -> None:
        completed, self._bodies, failed = _partition(self._bodies)
        for pending in completed:
            self._add_tagged(frames, pending.tag, pending.body, pending.region)
        if failed != OK:
            raise StatusError(failed)

    def _add_tagged(
        self,
        frames: list[IncomingFrame],
        tag: int,
        body: ReceivedBody,
        region: AnnouncedRegion | None,
    ) -> None:
        """Append a tagged message, or start to read it if it is a remote body."""
        self.bytes_received += body.nbytes
        remote_reads = self._remote_reads
        if remote_reads is not None:
            if tag == remote_reads.announcement_tag:
                remote_reads.add_region(bytes(body))
                return
            if tag >> TYPE_SHIFT == BodyType.OFFSETS:
                remote_reads.start(tag, body.view[body.start :], region, self._headroom)
                if remote_reads.has_completed:
                    self._take_remote_reads(frames)
                return
        frames.append(make_received_frame((tag, body)))

    def _take_remote_reads(self, frames: list[IncomingFrame]) -> None:
        assert self._remote_reads is not None
        self.bytes_received += self._remote_reads.take(frames)

    def _discard(self, message: Any) -> None:
        """Match a message without receiving its payload."""
        request = ucp.ucp_tag_msg_recv_nbx(self._worker.handle, NULL, 0, message, self._param)
        if get_status(request) == IN_PROGRESS:
            ucp.ucp_request_free(request)

    def abandon(self) -> list[object]:
        """Abandon pending messages and return the memory that they may still write to."""
        if self._farewell is not None:
            self._discard(self._farewell)
            self._farewell = None
        memory: list[object] = []
        for pending in self._bodies:
            ucp.ucp_request_free(pending.request)
            memory.append(pending.body)
        for pending in self._metadata:
            ucp.ucp_request_free(pending.request)
            memory.append(pending)
        self._bodies.clear()
        self._metadata.clear()
        if self._remote_reads is not None:
            memory += self._remote_reads.abandon()
        return memory


def _partition(pending: list[_P]) -> tuple[list[_P], list[_P], int]:
    """Return the messages that have arrived, those under way, and the status of a failure or OK."""
    completed: list[_P] = []
    under_way: list[_P] = []
    failed = OK
    for message in pending:
        status = ucp.ucp_request_check_status(message.request)
        if status == IN_PROGRESS:
            under_way.append(message)
            continue
        ucp.ucp_request_free(message.request)
        if status == OK:
            completed.append(message)
        else:
            failed = failed or status
    return completed, under_way, failed
