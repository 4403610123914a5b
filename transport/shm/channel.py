"""A connection over a Unix socket that passes the descriptors of regions."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterable
from typing import Any

from ...errors import LimitError, ProtocolError, TransportError
from ...protocol.devices import DeviceAllocator
from ...protocol.frame_run import FrameRun
from ...protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
)
from ...protocol.limits import Limits
from ...protocol.regions import DeviceHandles, Region, RegionAnnouncement, RemoteBody
from ...protocol.tags import BodyType
from ..base import Capabilities
from ..framing import HEADER, TAGGED
from ..memory.mapped_region import MappedRegion
from ..socket_channel import SocketChannel
from .announcement import (
    find_device_tag,
    is_device_announcement,
    pack_announcement,
    pack_device_announcement,
    parse_announcement,
    parse_device_announcement,
)

_MAX_DESCRIPTORS = 2
"""The descriptors of one announcement: the region, and its revocation socket."""
_MAX_PENDING = 16
"""The announcements whose descriptors may wait until their message is complete."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
_CREDENTIALS = struct.Struct("iII")
_BODY_TYPE_SHIFT = 56
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC, which the module socket lacks


def get_peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Return the process ID and the user ID at the other end, as the kernel reports them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


class _AnnouncementPart:
    """An announcement in the send queue: its bytes, and the descriptors that go with the first."""

    def __init__(self, frame: TaggedFrame, announcement: RegionAnnouncement) -> None:
        header = HEADER.pack(TAGGED, announcement.nbytes, frame.tag)
        self.view = memoryview(header + announcement.payload)
        self.descriptors = announcement.descriptors

    def close(self) -> None:
        """Close the revocation socket, which only the peer needs."""
        for revocation in self.descriptors[1:]:
            revocation.close()


class ShmChannel(SocketChannel):
    """One end of a connection over a Unix socket.

    Parameters
    ----------
    sock : socket.socket
        The connected socket. The channel owns it.
    limits : Limits
        Limits on received frames.
    server : bool
        Whether this is the server's end.
    peer : str
        The other end, for logs and errors.
    region_tag : int, optional
        The tag of announcements: the reader's ``want_data``.
    handle : bytes, optional
        The identifier of the listener's regions: the URI's ``remote_handle``.
    staging : int
        The size of the receive buffer, in bytes.
    device : DeviceAllocator, optional
        The device that the reader copies bodies to. Regions are page-locked for it.
    """

    capabilities = Capabilities(offset_bodies=True)

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        *,
        server: bool,
        peer: str,
        region_tag: int | None = None,
        handle: bytes | None = None,
        staging: int = 64 << 10,
        device: DeviceAllocator | None = None,
    ) -> None:
        super().__init__(sock, limits, server=server, peer=peer, is_local=True, staging=staging)
        self.user = get_peer_credentials(sock)[1]
        """The user ID at the other end."""
        self._region_tag = region_tag
        self._handle = handle
        self._device = device
        self._descriptors: deque[list[int]] = deque()
        self._region: Region | None = None
        self._device_tag: int | None = None
        if region_tag is not None and handle is not None:
            self._device_tag = find_device_tag(region_tag, handle)
        self.opens_devices = False
        """Whether the reader of the current request opens memory of a device; on the server."""
        self._opens_devices = (
            not server
            and device is not None
            and self._device_tag is not None
            and device.can_share(get_peer_credentials(sock)[0])
        )
        if self._opens_devices and device is not None:
            devices = frozenset({device.type_code})
            self.capabilities = Capabilities(offset_bodies=True, devices=devices)

    @property
    def unread_bytes(self) -> int:
        """The memory of sent data that the peer has not read yet, in bytes."""
        unread = array.array("i", bytes(4))
        fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, unread)
        return unread[0]

    def announce(self, size: int, descriptors: tuple[Any, ...]) -> RegionAnnouncement:
        """Return the message that announces a region to the reader.

        Parameters
        ----------
        size : int
            The size of the region in bytes.
        descriptors : tuple
            The region, an object with ``fileno``, and the reader's end of its revocation socket if
            it has one. The channel closes the socket once it is sent.
        """
        return RegionAnnouncement(pack_announcement(self._handle or b"", size), descriptors)

    def announce_device(self, handles: DeviceHandles) -> RegionAnnouncement:
        """Return the message that announces memory of a device to the reader."""
        return RegionAnnouncement(pack_device_announcement(self._handle or b"", handles), ())

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames; see `Channel.queue`."""
        if isinstance(frames, FrameRun):
            super().queue(frames)
            return
        plain: list[OutgoingFrame] = []
        for frame in frames:
            if (
                self._opens_devices
                and isinstance(frame, TaggedFrame)
                and (frame.tag == self._region_tag and self._device_tag is not None)
            ):
                plain.append(frame._replace(tag=self._device_tag))
            elif (
                isinstance(frame, TaggedFrame)
                and frame.buffers
                and isinstance(frame.buffers[0], RegionAnnouncement)
            ):
                super().queue(plain)
                plain = []
                self._parts.append(_AnnouncementPart(frame, frame.buffers[0]))
            else:
                plain.append(frame)
        super().queue(plain)

    def _send_other(self, part: _AnnouncementPart) -> None:
        numbers = array.array("i", [each.fileno() for each in part.descriptors])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if numbers else []
        sent = self._socket.sendmsg([part.view], rights, socket.MSG_NOSIGNAL)
        self.bytes_sent += sent
        if sent < part.view.nbytes:
            self._parts[0] = part.view[sent:]
        else:
            self._parts.popleft()
        part.close()

    def _receive_into(self, targets: list[memoryview]) -> int:
        count, ancillary, flags, _ = self._socket.recvmsg_into(
            targets, _ANCILLARY_BYTES, _CLOSE_ON_EXEC
        )
        self.bytes_received += count
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors.append(list(numbers))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MAX_PENDING:
            raise LimitError(
                f"{self.peer} sent too many descriptors: at most {_MAX_DESCRIPTORS} with each of "
                f"{_MAX_PENDING} regions"
            )
        return count

    def _has_received_enough(self, received: int) -> bool:
        # Announcements are handled before their descriptors reach the limit.
        return len(self._descriptors) >= _MAX_PENDING // 2 or super()._has_received_enough(received)

    def _set_low_water(self) -> None:
        """Leave the low-water mark at 1: no frame on this socket is large."""

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived, with a region for each remote body."""
        while True:
            frames = super().receive_some()
            if self._server:
                return [self._note_request(frame) for frame in frames]
            if not frames:
                return frames
            ready = self._resolve_regions(frames)
            if ready:
                return ready

    def _note_request(self, frame: IncomingFrame) -> IncomingFrame:
        """Remember whether the reader of a request opens memory of a device."""
        if isinstance(frame, ReceivedFrame) and self._region_tag is not None:
            if frame.tag == self._region_tag:
                self.opens_devices = False
            elif frame.tag == self._device_tag:
                self.opens_devices = self.user in (0, os.geteuid())
                return frame._replace(tag=self._region_tag)
        return frame

    def _resolve_regions(self, frames: list[IncomingFrame]) -> list[IncomingFrame]:
        """Map announced regions, and attach the current one to each remote body."""
        ready: list[IncomingFrame] = []
        try:
            for frame in frames:
                if isinstance(frame, MessageRun):
                    if frame.body_type is BodyType.OFFSETS:
                        frame.region = self._find_region(frame.sequence)
                    ready.append(frame)
                elif not isinstance(frame, ReceivedFrame):
                    ready.append(frame)
                elif frame.tag == self._region_tag:
                    self._map_region(bytes(frame.body))
                elif frame.tag >> _BODY_TYPE_SHIFT == BodyType.OFFSETS:
                    body = RemoteBody(frame.body, self._find_region(frame.tag))
                    ready.append(ReceivedFrame(frame.tag, body))
                else:
                    ready.append(frame)
        except (ProtocolError, TransportError) as error:
            if not ready:
                raise
            self._pending_error = error  # the next read raises it
        return ready

    def _find_region(self, tag: int) -> Region:
        """Return the region that was announced last."""
        if self._region is None:
            raise ProtocolError("a remote body arrived before any region", tag=tag)
        return self._region

    def _map_region(self, announcement: bytes) -> None:
        if self._handle is None:
            raise ProtocolError("the server announced a region, but the URI has no remote_handle")
        if is_device_announcement(announcement):
            handles = parse_device_announcement(announcement, self._handle)
            if self._device is None or not self._opens_devices:
                raise ProtocolError("the server announced memory of a device without a request")
            self._region = self._device.open_region(handles)
            return
        size = parse_announcement(announcement, self._handle)
        if not self._descriptors:
            raise ProtocolError("the server announced a region without a descriptor")
        region, *revocation = self._descriptors.popleft()
        mapped = self._region = MappedRegion(region, size, *revocation)
        if self._device is not None and mapped.address:
            mapped.page_lock = self._device.register(mapped.address, size)

    def close(self) -> None:
        """Close; see `Channel.close`. Regions stay mapped as long as buffers of them live."""
        self._close_descriptors()
        super().close()

    def abort(self) -> None:
        """Close at once; see `Channel.abort`. Regions stay mapped like after `close`."""
        self._close_descriptors()
        super().abort()

    def _close_descriptors(self) -> None:
        for part in self._parts:
            if isinstance(part, _AnnouncementPart):
                part.close()
        while self._descriptors:
            for descriptor in self._descriptors.popleft():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._region = None
