"""The sending half of a connection: frames posted to UCX, within a window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, ProtocolError, UsageError
from ...protocol.frames import OutgoingFrame, TaggedFrame, UntaggedFrame
from ...protocol.memory import DeviceSpan
from ...protocol.messages import MetadataType
from ...protocol.regions import RegionAnnouncement
from ..base import FileMapper
from ..memory.files import FileSpan
from .ffi import (
    IN_PROGRESS,
    NULL,
    OK,
    REQUEST_FIELD_DATATYPE,
    REQUEST_FIELD_MEMORY_TYPE,
    StatusError,
    ffi,
    get_status,
    ucp,
)
from .memory import MEMORY_TYPES
from .worker import METADATA_ID, Worker

WINDOW_BYTES, NETWORK_WINDOW_BYTES = 8 << 20, 32 << 20
"""The bytes that may be under way on a connection within a host and to another one: posted, and not
known to be received."""
MIN_WINDOW_MESSAGES = 2
"""The messages that may be under way whatever their size, so that the next one is ready."""
MAX_WINDOW_MESSAGES = 512
"""The messages that may be under way at most."""
SYNC_BYTES = 64 << 10
"""The bytes of bodies after which one is sent synchronously, so that UCX reports its match."""
FAREWELL = 0x00FF_FFFF_FFFF_FFFF
"""The tag of the empty message by which a closing server learns that all was received."""
END_TYPES = (MetadataType.END_OF_STREAM, MetadataType.FAILURE)
"""The types of metadata messages that end a stream."""
_MAX_JOINED_BYTES = 4096
_DATATYPE_IOV = 2


class Sender:
    """Posts frames within the window, and keeps their memory until they have left.

    UCX copies small messages at once, and large ones wait until the peer fetches them. Small ones
    must not pile up at a peer that matches none. So each body that completes another `SYNC_BYTES`
    is sent *synchronously*: it stays under way until the peer has matched it.

    Files are read without `map_file`, and where it returns None.
    """

    def __init__(
        self,
        worker: Worker,
        endpoint: Any,
        map_file: FileMapper | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._map_file = map_file
        self._window_bytes = window_bytes
        self._queue: deque[OutgoingFrame] = deque()
        self._under_way: deque[tuple[Any, int, object]] = deque()
        self._bytes_under_way = 0
        self._unsynced_bytes = 0
        self._must_flush = False
        self._contiguous = _send_params()
        self._gathered = _send_params(gathered=True)
        self.bytes_sent = 0
        """The bytes of payload that were handed to UCX."""

    def add(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames. `is_done` waits for all of them if the last one ends a stream.

        It also does after adding no frames at all.
        """
        last: OutgoingFrame | None = None
        for last in frames:
            self._queue.append(last)
        ends_stream = (
            isinstance(last, UntaggedFrame) and last.payload[:1] and last.payload[0] in END_TYPES
        )
        self._must_flush = last is None or bool(ends_stream)

    @property
    def is_done(self) -> bool:
        """Whether the caller need not wait any longer for what it has added."""
        return not self._queue and not (self._must_flush and self._under_way)

    @property
    def is_idle(self) -> bool:
        """Whether no message is under way."""
        return not self._under_way

    @property
    def has_completed(self) -> bool:
        """Whether the oldest message under way has left, which makes room in the window."""
        return bool(self._under_way) and (
            ucp.ucp_request_check_status(self._under_way[0][0]) != IN_PROGRESS
        )

    def post(self, limit: int) -> bool:
        """Post frames within the window; return whether it stopped because of `limit`.

        Raises `StatusError` if a message cannot be sent. Raises `DatasetError` if a file cannot be
        read or has changed.
        """
        stop = self.bytes_sent + limit
        queue = self._queue
        while queue:
            frame = queue[0]
            nbytes = len(frame.payload) if isinstance(frame, UntaggedFrame) else frame.nbytes
            if not self._has_room(nbytes):
                return False
            if isinstance(frame, UntaggedFrame):
                self._post_metadata(frame.payload)
            else:
                self._post_tagged(frame)
            queue.popleft()
            self.bytes_sent += nbytes
            if self.bytes_sent >= stop:
                return bool(queue)
        return False

    def _has_room(self, nbytes: int) -> bool:
        count = len(self._under_way)
        if count < MIN_WINDOW_MESSAGES:
            return True
        return count < MAX_WINDOW_MESSAGES and self._bytes_under_way + nbytes <= self._window_bytes

    def _post_metadata(self, payload: bytes) -> None:
        data = ffi.from_buffer(payload)
        request = ucp.ucp_am_send_nbx(
            self._endpoint, METADATA_ID, NULL, 0, data, len(payload), self._contiguous
        )
        if request != NULL:
            self._track(request, len(payload), data)

    def _post_tagged(self, frame: TaggedFrame) -> None:
        nbytes = frame.nbytes
        self._unsynced_bytes += nbytes
        send: Any = ucp.ucp_tag_send_nbx
        if self._unsynced_bytes >= SYNC_BYTES:
            self._unsynced_bytes = 0
            send = ucp.ucp_tag_send_sync_nbx
        buffers = [self._resolve(part) for part in frame.buffers]
        on_host = not any(map(is_on_device, buffers))
        if len(buffers) > 1 and nbytes <= _MAX_JOINED_BYTES and on_host:
            buffers = [b"".join(memoryview(buffer) for buffer in buffers)]
        spans = [get_address(buffer) for buffer in buffers]
        vector = None
        if len(spans) <= 1:
            address, size = spans[0] if spans else (NULL, 0)
            param = self._contiguous if on_host else _device_params(buffers, gathered=False)
            request = send(self._endpoint, address, size, frame.tag, param)
        else:
            vector = ffi.new("ucp_dt_iov_t[]", spans)
            param = self._gathered if on_host else _device_params(buffers, gathered=True)
            request = send(self._endpoint, vector, len(spans), frame.tag, param)
        if request != NULL:
            self._track(request, nbytes, (frame.buffers, buffers, spans, vector))

    def _resolve(self, part: Any) -> Any:
        """Return a part as memory: a span of a file is mapped, or read if it cannot be."""
        if isinstance(part, RegionAnnouncement):
            return part.payload
        if not isinstance(part, FileSpan):
            return part
        region = None if self._map_file is None else self._map_file(part.file)
        if region is not None:
            try:
                memory = region.buffer(part.offset, part.nbytes, None)
            except (DatasetError, ProtocolError):  # it is changing, or has become shorter
                pass
            else:
                region.populate(part.offset, part.nbytes)
                return memory
        memory = pa.allocate_buffer(part.nbytes)
        part.read_into(memoryview(memory).cast("B"))
        part.file.check()  # another process may have written to it during the read
        return memory

    def send_free_data(self, tag: int, payload: bytes) -> None:
        """Post a message of freed offsets ahead of the queue."""
        self._post_tagged(TaggedFrame(tag, len(payload), (payload,)))

    def send_farewell(self) -> None:
        """Drop the queue, and post the message that is matched after all that was posted."""
        self._queue.clear()
        request = ucp.ucp_tag_send_sync_nbx(self._endpoint, NULL, 0, FAREWELL, self._contiguous)
        if request != NULL:
            self._track(request, 0, None)

    def _track(self, request: Any, nbytes: int, memory: object) -> None:
        status = get_status(request)
        if status != IN_PROGRESS:
            raise StatusError(status)
        self._under_way.append((request, nbytes, memory))
        self._bytes_under_way += nbytes

    def reap(self) -> None:
        """Release the memory of messages that have left; raise `StatusError` if one could not."""
        under_way = self._under_way
        while under_way:
            request, nbytes, _ = under_way[0]
            status = ucp.ucp_request_check_status(request)
            if status == IN_PROGRESS:
                return
            under_way.popleft()
            self._bytes_under_way -= nbytes
            ucp.ucp_request_free(request)
            if status != OK:
                raise StatusError(status)

    def abandon(self) -> list[object]:
        """Abandon all messages and return the memory that the peer may still read."""
        self._queue.clear()
        memory: list[object] = []
        for request, _, buffers in self._under_way:
            ucp.ucp_request_free(request)
            memory.append(buffers)
        self._under_way.clear()
        self._bytes_under_way = 0
        return memory


def _send_params(*, gathered: bool = False, memory_type: int | None = 0) -> Any:
    """Return the parameters of send requests.

    Naming the type of the memory, which is the host's by default, spares the library a look-up.
    For `None`, it finds the type itself.
    """
    params = ffi.new("ucp_request_param_t *")
    if memory_type is not None:
        params.op_attr_mask |= REQUEST_FIELD_MEMORY_TYPE
        params.memory_type = memory_type
    if gathered:
        params.op_attr_mask |= REQUEST_FIELD_DATATYPE
        params.datatype = _DATATYPE_IOV
    return params


def _device_params(buffers: list[Any], *, gathered: bool) -> Any:
    """Return the parameters to send from the memory of a device, which all buffers share."""
    codes = {getattr(buffer, "type_code", None) for buffer in buffers}
    if len(codes) > 1:
        raise UsageError("a body has buffers in different memory")
    code = codes.pop()
    memory_type = None if code is None else MEMORY_TYPES.get(code)
    return _send_params(gathered=gathered, memory_type=memory_type)


def is_on_device(buffer: Any) -> bool:
    """Return whether a buffer is a `DeviceSpan`, or describes its own memory."""
    return isinstance(buffer, DeviceSpan) or hasattr(buffer, "__cuda_array_interface__")


def get_address(buffer: Any) -> tuple[Any, int]:
    """Return the address and the size in bytes of a buffer; raise `UsageError` if it is strided."""
    if isinstance(buffer, pa.Buffer):
        return ffi.cast("void *", buffer.address), buffer.size
    if isinstance(buffer, DeviceSpan):
        return ffi.cast("void *", buffer.address), buffer.nbytes
    if is_on_device(buffer):
        interface = buffer.__cuda_array_interface__
        nbytes = int(interface["typestr"][2:]) * math.prod(interface["shape"])
        if interface.get("strides") is not None:
            raise UsageError("cannot send a strided array; make it contiguous first")
        return ffi.cast("void *", interface["data"][0]), nbytes
    data = ffi.from_buffer(buffer)
    return data, len(data)
