"""The sending half of a connection: frames posted to UCX, within a window."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from ...errors import DatasetError, ProtocolError, UsageError
from ...protocol.frames import Handover, Outgoing, Tagged, Untagged
from ...protocol.messages import MetadataType
from ..regions import FileRegion, RegionFile
from ..shm.mapping import MappedRegion
from .library import IN_PROGRESS, NULL, OK, ffi, status_of, ucp
from .worker import METADATA_ID, Worker

WINDOW_BYTES = 8 << 20
"""How many bytes may be under way, and not known to have been taken, on one connection."""
WINDOW_LEAST = 2
"""How many messages may be under way whatever their size, so that the next waits ready."""
WINDOW_MOST = 512
"""How many messages may be under way at most."""
SYNC_BYTES = 64 << 10
"""After how many bytes of bodies one is sent so that UCX tells when the peer has matched it."""
FAREWELL = 0x00FF_FFFF_FFFF_FFFF
"""The tag of the empty message by which a server that closes learns that all was taken."""
_JOINED_BYTES = 4096
_DATATYPE_IOV = 2
_FIELD_DATATYPE, _FIELD_MEMORY_TYPE = 1 << 3, 1 << 6
LAST = (MetadataType.END_OF_STREAM, MetadataType.FAILED)
"""The types of metadata messages that end a stream."""


Mapped = Callable[[RegionFile], MappedRegion | None]
"""Finds where a file lies in this process."""


class SendError(Exception):
    """A message could not be sent; `status` tells why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Sender:
    """Posts frames as far as the window allows, and keeps their memory until they have left.

    Small messages are copied by UCX at once, large ones wait for the peer to fetch them. To
    know that small ones do not pile up at a peer that takes none, each body that completes
    another `SYNC_BYTES` bytes is sent *synchronously*: it stays under way until it is matched.

    Parameters
    ----------
    worker : Worker
        The connection's worker.
    endpoint : object
        The connection's endpoint.
    mapped : callable, optional
        Returns the mapping of a file; None if it cannot be mapped. Files are read without it.
    """

    def __init__(self, worker: Worker, endpoint: Any, mapped: Mapped | None = None) -> None:
        self._worker = worker
        self._mapped = mapped
        self._endpoint = endpoint
        self._queue: deque[Outgoing] = deque()
        self._under_way: deque[tuple[Any, int, object]] = deque()
        self._bytes = 0
        self._unsynced = 0
        self._flush = False
        self._whole = ffi.new("ucp_request_param_t *")
        self._whole.op_attr_mask = _FIELD_MEMORY_TYPE
        self._gathered = ffi.new("ucp_request_param_t *")
        self._gathered.op_attr_mask = _FIELD_MEMORY_TYPE | _FIELD_DATATYPE
        self._gathered.datatype = _DATATYPE_IOV
        self._detected = ffi.new("ucp_request_param_t *")
        self._detected_gathered = ffi.new("ucp_request_param_t *")
        self._detected_gathered.op_attr_mask = _FIELD_DATATYPE
        self._detected_gathered.datatype = _DATATYPE_IOV
        self.bytes_sent = 0
        """How many bytes of payload were handed to UCX."""

    def add(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames. Nothing at all, or the end of a stream, waits for all before it."""
        last: Outgoing | None = None
        for last in frames:
            self._queue.append(last)
        ends = isinstance(last, Untagged) and last.payload[:1] and last.payload[0] in LAST
        self._flush = last is None or bool(ends)

    @property
    def done(self) -> bool:
        """Whether nothing more is to be waited for."""
        return not self._queue and not (self._flush and self._under_way)

    @property
    def settled(self) -> bool:
        """Whether everything that was handed over has left."""
        return not self._under_way

    @property
    def may_go_on(self) -> bool:
        """Whether the oldest message under way has left meanwhile."""
        return bool(self._under_way) and (
            ucp.ucp_request_check_status(self._under_way[0][0]) != IN_PROGRESS
        )

    def post(self, most: int) -> bool:
        """Post what the window allows, about `most` bytes; tell whether that bound was met."""
        until = self.bytes_sent + most
        queue = self._queue
        while queue:
            frame = queue[0]
            nbytes = len(frame.payload) if isinstance(frame, Untagged) else frame.nbytes
            if not self._has_room(nbytes):
                return False
            if isinstance(frame, Untagged):
                self._post_metadata(frame.payload)
            else:
                self._post_tagged(frame)
            queue.popleft()
            self.bytes_sent += nbytes
            if self.bytes_sent >= until:
                return bool(queue)
        return False

    def _has_room(self, nbytes: int) -> bool:
        count = len(self._under_way)
        if count < WINDOW_LEAST:
            return True
        return count < WINDOW_MOST and self._bytes + nbytes <= WINDOW_BYTES

    def _post_metadata(self, payload: bytes) -> None:
        data = ffi.from_buffer(payload)
        request = ucp.ucp_am_send_nbx(
            self._endpoint, METADATA_ID, NULL, 0, data, len(payload), self._whole
        )
        if request != NULL:
            self._keep(request, len(payload), data)

    def free(self, tag: int, payload: bytes) -> None:
        """Send a ``free_data`` message at once."""
        self._post_tagged(Tagged(tag, len(payload), (payload,)))

    def _post_tagged(self, frame: Tagged) -> None:
        nbytes = frame.nbytes
        self._unsynced += nbytes
        send: Any = ucp.ucp_tag_send_nbx
        if self._unsynced >= SYNC_BYTES:
            self._unsynced = 0
            send = ucp.ucp_tag_send_sync_nbx
        kept = [self._in_memory(part) for part in frame.parts]
        # Where memory may be of a device, the library looks for itself.
        on_host = not any(map(lies_on_device, kept))
        if len(kept) > 1 and nbytes <= _JOINED_BYTES and on_host:
            kept = [b"".join(memoryview(part) for part in kept)]
        places = [place(part) for part in kept]
        vector = None
        if len(places) <= 1:
            address, size = places[0] if places else (NULL, 0)
            param = self._whole if on_host else self._detected
            request = send(self._endpoint, address, size, frame.tag, param)
        else:
            vector = ffi.new("ucp_dt_iov_t[]", places)
            param = self._gathered if on_host else self._detected_gathered
            request = send(self._endpoint, vector, len(places), frame.tag, param)
        if request != NULL:
            self._keep(request, nbytes, (frame.parts, kept, places, vector))

    def _in_memory(self, part: Any) -> Any:
        """Return a part as memory: a region of a file is mapped, or read where it cannot be."""
        if isinstance(part, Handover):
            return part.payload
        if not isinstance(part, FileRegion):
            return part
        region = None if self._mapped is None else self._mapped(part.file)
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
        part.file.check()  # it may have been written to while it was read
        return memory

    def farewell(self) -> None:
        """Send the message that is matched when the peer has taken all before it."""
        self._queue.clear()
        request = ucp.ucp_tag_send_sync_nbx(self._endpoint, NULL, 0, FAREWELL, self._whole)
        if request != NULL:
            self._keep(request, 0, None)

    def _keep(self, request: Any, nbytes: int, memory: object) -> None:
        status = status_of(request)
        if status != IN_PROGRESS:
            raise SendError(status)
        self._under_way.append((request, nbytes, memory))
        self._bytes += nbytes

    def reap(self) -> None:
        """Let go of what has left.

        Raises
        ------
        SendError
            If a message could not be sent.
        """
        under_way = self._under_way
        while under_way:
            request, nbytes, _ = under_way[0]
            status = ucp.ucp_request_check_status(request)
            if status == IN_PROGRESS:
                return
            under_way.popleft()
            self._bytes -= nbytes
            ucp.ucp_request_free(request)
            if status != OK:
                raise SendError(status)

    def drop(self) -> list[object]:
        """Forget everything; return the memory that the peer may still be reading."""
        self._queue.clear()
        memory: list[object] = []
        for request, _, kept in self._under_way:
            ucp.ucp_request_free(request)
            memory.append(kept)
        self._under_way.clear()
        self._bytes = 0
        return memory


def lies_on_device(part: Any) -> bool:
    """Tell whether a part says itself where it lies, as arrays of devices do."""
    return hasattr(part, "__cuda_array_interface__")


def place(part: Any) -> tuple[Any, int]:
    """Return where a part lies, and its size in bytes.

    Parameters
    ----------
    part : pyarrow.Buffer, bytes-like, or an object with ``__cuda_array_interface__``
        What says where it is. An array has to be contiguous.

    Raises
    ------
    UsageError
        If an array is not contiguous.
    """
    if isinstance(part, pa.Buffer):
        return ffi.cast("void *", part.address), part.size
    if lies_on_device(part):
        interface = part.__cuda_array_interface__
        nbytes = int(interface["typestr"][2:]) * math.prod(interface["shape"])
        if interface.get("strides") is not None:
            raise UsageError("an array that is sent has to be contiguous")
        return ffi.cast("void *", interface["data"][0]), nbytes
    data = ffi.from_buffer(part)
    return data, len(data)
