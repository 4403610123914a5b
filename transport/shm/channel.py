"""A connection over a Unix socket that hands descriptors of regions over."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable

from ...errors import LimitError, NotAPeerError, ProtocolError
from ...protocol.frames import Handover, Incoming, Outgoing, PlacedBody, Tagged, TaggedReceived
from ...protocol.limits import Limits
from ...protocol.tags import BodyType
from ..base import Capabilities
from ..framing import HEADER, TAGGED
from ..sockets import SocketChannel
from .handover import parse_handover
from .mapping import MappedRegion

_MOST_DESCRIPTORS = 2
_MOST_WAITING = 16
_ANCILLARY = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
_CREDENTIALS = struct.Struct("iII")
_TYPE_SHIFT = 56
_CLOSE_ON_EXEC = 0x40000000  # MSG_CMSG_CLOEXEC, which the module socket lacks

CAPABILITIES = Capabilities(
    regions=True, body_types=frozenset({int(BodyType.PACKED), int(BodyType.OFFSETS)})
)


def peer_user(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


class _Carrier:
    """Bytes that descriptors go with."""

    def __init__(self, frame: Tagged, handover: Handover) -> None:
        header = HEADER.pack(TAGGED, handover.nbytes, frame.tag)
        self.view = memoryview(header + handover.payload)
        self.descriptors = handover.descriptors

    def close(self) -> None:
        """Close what only the peer needs."""
        for held in self.descriptors[1:]:
            held.close()


class ShmChannel(SocketChannel):
    """One end of a connection over a Unix socket.

    Parameters
    ----------
    sock : socket.socket
        Connected. The channel owns it from here on.
    limits : Limits
        Bounds on what is received.
    server : bool
        Which end this is.
    peer : str
        The other end, for logs and errors.
    region_tag : int, optional
        The tag of the messages that hand regions over: the reader's ``want_data``.
    handle : bytes, optional
        The id of the regions that the reader accepts: its URI's ``remote_handle``.
    """

    capabilities = CAPABILITIES

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
    ) -> None:
        super().__init__(sock, limits, server=server, peer=peer, is_local=True, staging=staging)
        self.user = peer_user(sock)[1]
        """The user at the other end."""
        self._tag = region_tag
        self._handle = handle
        self._descriptors: deque[list[int]] = deque()
        self._region: MappedRegion | None = None

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent."""
        plain: list[Outgoing] = []
        for frame in frames:
            if isinstance(frame, Tagged) and frame.parts and isinstance(frame.parts[0], Handover):
                super().queue(plain)
                plain = []
                self._parts.append(_Carrier(frame, frame.parts[0]))
            else:
                plain.append(frame)
        super().queue(plain)

    def _send_other(self, part: _Carrier) -> None:
        numbers = array.array("i", [held.fileno() for held in part.descriptors])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)]
        sent = self._socket.sendmsg([part.view], rights, socket.MSG_NOSIGNAL)
        self.bytes_sent += sent
        if sent < part.view.nbytes:
            self._parts[0] = part.view[sent:]
        else:
            self._parts.popleft()
        part.close()

    def _receive_into(self, targets: list[memoryview]) -> int:
        count, ancillary, flags, _ = self._socket.recvmsg_into(targets, _ANCILLARY, _CLOSE_ON_EXEC)
        self.bytes_received += count
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self._descriptors.append(list(numbers))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > _MOST_WAITING:
            raise LimitError(f"{self.peer} sends more descriptors than it may")
        return count

    def _is_enough(self, received: int) -> bool:
        """Tell whether to look at what came: descriptors are not piled up."""
        return len(self._descriptors) >= _MOST_WAITING // 2 or super()._is_enough(received)

    def _await_rest(self) -> None:
        """Be woken for whatever comes: nothing large does."""

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; bodies of type 1 come with the region they refer to."""
        while True:
            frames = super().receive_some()
            if self._server or not frames:
                return frames
            ready = self._with_regions(frames)
            if ready:
                return ready

    def _with_regions(self, frames: list[Incoming]) -> list[Incoming]:
        ready: list[Incoming] = []
        try:
            for frame in frames:
                if not isinstance(frame, TaggedReceived):
                    ready.append(frame)
                elif frame.tag == self._tag:
                    self._take_over(bytes(frame.body))
                elif frame.tag >> _TYPE_SHIFT == BodyType.OFFSETS:
                    if self._region is None:
                        raise ProtocolError("a body of offsets before any region", tag=frame.tag)
                    placed = PlacedBody(frame.body, self._region)
                    ready.append(TaggedReceived(frame.tag, placed))
                else:
                    ready.append(frame)
        except (ProtocolError, NotAPeerError) as error:
            if not ready:
                raise
            self._refused = error  # the next read raises it
        return ready

    def _take_over(self, payload: bytes) -> None:
        if self._handle is None:
            raise ProtocolError("a region is handed over, but the URI has no remote_handle")
        size = parse_handover(payload, self._handle)
        if not self._descriptors:
            raise ProtocolError("a region is announced, and no descriptor came with it")
        region, *watch = self._descriptors.popleft()
        self._region = MappedRegion(region, size, *watch)

    def close(self) -> None:
        """Close; regions stay mapped as long as buffers of them live."""
        self._drop()
        super().close()

    def abort(self) -> None:
        """Close at once; regions stay mapped all the same."""
        self._drop()
        super().abort()

    def _drop(self) -> None:
        for part in self._parts:
            if isinstance(part, _Carrier):
                part.close()
        while self._descriptors:
            for descriptor in self._descriptors.popleft():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._region = None
