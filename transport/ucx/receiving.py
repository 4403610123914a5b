"""The receiving half of a connection: bodies straight into their final memory."""

from __future__ import annotations

from typing import Any

from ...errors import LimitError, ProtocolError
from ...protocol.frames import (
    SMALL_BYTES,
    BodyArena,
    Incoming,
    ReceivedBody,
    make_received,
    make_untagged,
)
from ...protocol.limits import Limits
from ...protocol.tags import BodyType
from ..framing import check_sizes
from .fetching import Fetch
from .library import IN_PROGRESS, NULL, OK, ffi, status_of, ucp
from .registration import RemoteRegion
from .sending import FAREWELL, LAST
from .worker import Worker

_METADATA_HEADROOM = 8 - 5  # an encapsulated message's prefix replaces the protocol's
_MOST_HEADROOM = 64 << 10
_LEAST_UNDER_WAY, _MOST_UNDER_WAY = 2, 4
_MOST_BYTES_UNDER_WAY = 32 << 20
_FIELD_MEMORY_TYPE = 1 << 6
_TYPE_SHIFT = 56


class ReceiveError(Exception):
    """A message could not be received; `status` tells why."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Receiver:
    """Takes messages off a worker.

    A body is looked at first, for its tag and its size, then received into an allocation of
    its own. Two to four large ones are fetched at a time; the others wait at the peer.

    Parameters
    ----------
    worker : Worker
        The connection's worker.
    limits : Limits
        Bounds, held to before memory is allocated.
    server : bool
        Whether the peer is a reader; only a server says farewell.
    endpoint : object
        The connection's endpoint.
    region_tag : int, optional
        The tag of messages that hand regions over, where bodies of type 1 are asked for.
    """

    def __init__(
        self,
        worker: Worker,
        limits: Limits,
        *,
        server: bool,
        endpoint: Any,
        region_tag: int | None = None,
    ) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._region_tag = region_tag
        self._regions: list[RemoteRegion] = []
        self._fetches: list[Fetch] = []
        self.freed: list[int] = []
        """Offsets of what was read, for the server to take back."""
        self._limits = limits
        self._farewell = None if server else FAREWELL
        self._arena = BodyArena()
        self._headroom = 1024
        self._bodies: list[tuple[Any, int, ReceivedBody, RemoteRegion | None]] = []
        self._metadata: list[tuple[Any, bytearray, Any]] = []
        self._last: Any = None
        self._end: list[bytes] = []
        self._info = ffi.new("ucp_tag_recv_info_t *")
        self._param = ffi.new("ucp_request_param_t *")
        self._param.op_attr_mask = _FIELD_MEMORY_TYPE
        self.ended = False
        """Whether the peer has said that nothing follows."""
        self.bytes_received = 0
        """How many bytes of payload have arrived."""

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished message has arrived."""
        return not self._bodies and not self._metadata and not self._fetches

    @property
    def has_work(self) -> bool:
        """Whether `take` would do something."""
        events = self._worker.events
        check = ucp.ucp_request_check_status
        return bool(
            events.metadata
            or events.rendezvous
            or events.refused
            or any(check(body[0]) != IN_PROGRESS for body in self._bodies)
            or any(check(held[0]) != IN_PROGRESS for held in self._metadata)
            or any(fetch.status() != IN_PROGRESS for fetch in self._fetches)
            or (
                self._has_room
                and ucp.ucp_tag_probe_nb(self._worker.handle, 0, 0, 0, self._info) != NULL
            )
        )

    @property
    def _has_room(self) -> bool:
        """Whether another message may be begun: one is copied while the next is on its way."""
        count = len(self._bodies) + len(self._fetches)
        if count < _LEAST_UNDER_WAY:
            return True
        if count >= _MOST_UNDER_WAY:
            return False
        nbytes = sum(body.nbytes for _, _, body, _ in self._bodies)
        return nbytes + sum(fetch.nbytes for fetch in self._fetches) < _MOST_BYTES_UNDER_WAY

    def take(self, frames: list[Incoming], most: int) -> None:
        """Append what has come whole to `frames`, and begin to receive the rest.

        It stops when `bytes_received` is `most`: what has not been looked at waits.

        Raises
        ------
        LimitError
            If a message is larger than allowed; nothing has been allocated for it.
        ProtocolError
            If a body of type 1 is malformed, or lies outside of what was handed over.
        ReceiveError
            If a message cannot be received.
        """
        events = self._worker.events
        if self._fetches:
            self._finish_fetches(frames)
        if self._metadata:
            self._finish_metadata(frames)
        if self._bodies:
            self._finish_bodies(frames)
        metadata = events.metadata
        more = True
        while more and self.bytes_received < most:
            more = False
            if metadata:
                self._untagged(frames, metadata.popleft())
                more = True
            if self._has_room and self._next_body(frames):
                more = True
        while events.rendezvous:
            data, length = events.rendezvous.popleft()
            self._fetch_metadata(frames, data, length)
        if events.refused is not None:
            raise events.refused
        if self._end and not self._bodies and not self._fetches:
            frames.extend(make_untagged((payload,)) for payload in self._end)
            self._end.clear()
        if self._last is not None and self.at_boundary:
            # Only now: the server takes it that all before the farewell has arrived.
            self._discard(self._last)
            self._last = None
            self.ended = True

    def _discard(self, message: Any) -> None:
        """Match a message, and take nothing of it."""
        request = ucp.ucp_tag_msg_recv_nbx(self._worker.handle, NULL, 0, message, self._param)
        if status_of(request) == IN_PROGRESS:
            ucp.ucp_request_free(request)

    def _untagged(self, frames: list[Incoming], payload: bytes) -> None:
        self._headroom = len(payload) + _METADATA_HEADROOM
        self.bytes_received += len(payload)
        if payload and payload[0] in LAST:
            self._end.append(payload)  # it overtakes bodies that are still being fetched
        else:
            frames.append(make_untagged((payload,)))

    def _next_body(self, frames: list[Incoming]) -> bool:
        handle, info = self._worker.handle, self._info
        message = ucp.ucp_tag_probe_nb(handle, 0, 0, 1, info)
        if message == NULL:
            return False
        tag, nbytes = info.sender_tag, info.length
        if tag == self._farewell:
            self._last = message
            return True
        if nbytes > self._limits.body_bytes:
            self._discard(message)
            check_sizes(self._limits, tagged=nbytes, tag=tag)
        body = self._body(nbytes, tag)
        address = ffi.cast("void *", body.buffer.address + body.start)
        request = ucp.ucp_tag_msg_recv_nbx(handle, address, nbytes, message, self._param)
        region = self._regions[-1] if self._regions else None
        if request == NULL:
            self._tagged(frames, tag, body, region)
            return True
        status = status_of(request)
        if status != IN_PROGRESS:
            raise ReceiveError(status)
        self._bodies.append((request, tag, body, region))
        return True

    def _tagged(
        self, frames: list[Incoming], tag: int, body: ReceivedBody, region: RemoteRegion | None
    ) -> None:
        """Take in a tagged message that is there; `region` is the one that came before it."""
        self.bytes_received += body.nbytes
        if self._region_tag is None:
            frames.append(make_received((tag, body)))
        elif tag == self._region_tag:
            self._regions.append(RemoteRegion(self._endpoint, bytes(body)))
        elif tag >> _TYPE_SHIFT == BodyType.OFFSETS:
            if region is None:
                raise ProtocolError("a body of offsets before any region", tag=tag)
            self._fetch(frames, tag, body, region)
        else:
            frames.append(make_received((tag, body)))

    def _fetch(
        self, frames: list[Incoming], tag: int, body: ReceivedBody, region: RemoteRegion
    ) -> None:
        payload = body.view[body.start :]
        fetch = Fetch(tag, payload, region, self._limits, self._headroom)
        self._fetches.append(fetch)
        status = fetch.begin(self._endpoint, self._param)
        if status != OK:
            raise ReceiveError(status)
        if fetch.status() != IN_PROGRESS:
            self._finish_fetches(frames)

    def _finish_fetches(self, frames: list[Incoming]) -> None:
        left: list[Fetch] = []
        failed = OK
        for fetch in self._fetches:
            status = fetch.status()
            if status == OK:
                self.bytes_received += fetch.nbytes
                self.freed += fetch.offsets
                frames.append(make_received((fetch.tag, fetch.body())))
            else:
                left.append(fetch)
                if status != IN_PROGRESS:
                    failed = failed or status
        self._fetches = left
        if failed != OK:
            raise ReceiveError(failed)

    def _body(self, nbytes: int, tag: int) -> ReceivedBody:
        headroom = self._headroom
        if nbytes + headroom <= SMALL_BYTES:
            return self._arena.body(nbytes, headroom)
        if headroom > _MOST_HEADROOM and headroom > nbytes:
            headroom = 0
        try:
            return ReceivedBody(nbytes, headroom)
        except MemoryError:
            raise LimitError(f"no memory for a body of {nbytes} bytes", tag=tag) from None

    def _finish_bodies(self, frames: list[Incoming]) -> None:
        bodies, self._bodies = self._bodies, []
        failed = OK
        for item in bodies:
            request, tag, body, region = item
            status = ucp.ucp_request_check_status(request)
            if status == IN_PROGRESS:
                self._bodies.append(item)
                continue
            ucp.ucp_request_free(request)
            if status == OK and failed == OK:
                self._tagged(frames, tag, body, region)
            else:
                failed = failed or status
        if failed != OK:
            raise ReceiveError(failed)

    def _fetch_metadata(self, frames: list[Incoming], data: Any, length: int) -> None:
        memory = bytearray(length)
        target = ffi.from_buffer(memory)
        request = ucp.ucp_am_recv_data_nbx(self._worker.handle, data, target, length, self._param)
        status = status_of(request)
        if status == IN_PROGRESS:
            self._metadata.append((request, memory, target))
        elif status == OK:
            self._untagged(frames, bytes(memory))
        else:
            raise ReceiveError(status)

    def _finish_metadata(self, frames: list[Incoming]) -> None:
        left: list[tuple[Any, bytearray, Any]] = []
        failed = OK
        for item in self._metadata:
            request, memory, _ = item
            status = ucp.ucp_request_check_status(request)
            if status == IN_PROGRESS:
                left.append(item)
                continue
            ucp.ucp_request_free(request)
            if status == OK:
                self._untagged(frames, bytes(memory))
            else:
                failed = failed or status
        self._metadata = left
        if failed != OK:
            raise ReceiveError(failed)

    def drop(self) -> list[object]:
        """Give up what is being received; return the memory that may still be written to."""
        memory: list[object] = []
        if self._last is not None:
            self._discard(self._last)
            self._last = None
        for request, _, body, _ in self._bodies:
            ucp.ucp_request_free(request)
            memory.append(body)
        memory += [fetch.drop() for fetch in self._fetches]
        for region in self._regions:
            region.destroy()
        self._fetches.clear()
        self._regions.clear()
        for request, held, target in self._metadata:
            ucp.ucp_request_free(request)
            memory.append((held, target))
        self._bodies.clear()
        self._metadata.clear()
        return memory
