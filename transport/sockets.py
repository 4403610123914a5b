"""A channel over a connected stream socket: TCP here, Unix sockets elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..errors import ConnectionLostError, NotAPeerError, ProtocolError, SplitArrowError
from ..protocol.frames import Incoming, Outgoing
from ..protocol.limits import Limits
from .base import Capabilities
from .framing import PREFACE, FrameDecoder, PrefaceError, encode
from .regions import FileRegion

_MOST_PARTS = 512
_MOST_BYTES = 4 << 20
_SENDFILE_FROM = 16 << 10
TURN_BYTES = 8 << 20
"""How much one call sends at most, so that one fast reader does not hold up the others."""
RECEIVE_MOST = 1 << 20
_LOW_WATER_LEAST = 64 << 10
_LOW_WATER_MOST = 256 << 10
_LOOK_SECONDS = 0.05
_RESET = struct.pack("ii", 1, 0)
_TLS_ALERT = b"\x15\x03"


class SocketChannel:
    """One end of a connection over a stream socket.

    Parameters
    ----------
    sock : socket.socket
        Connected. The channel owns it from here on and makes it non-blocking.
    limits : Limits
        Bounds on what is received.
    server : bool
        A server speaks only after it has seen the peer's preface.
    peer : str
        The other end, for logs and errors.
    is_local : bool
        Whether the other end is on this host.
    staging : int
        The size of the receiving staging area in bytes.
    """

    capabilities = Capabilities(regions=True)
    send_waits_readable = False

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        *,
        server: bool,
        peer: str,
        is_local: bool,
        staging: int = 256 << 10,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._server = server
        self._decoder = FrameDecoder(limits, staging=staging)
        self._parts: deque[Any] = deque()
        self._closed = False
        self._low_water = 1
        self.wake_at: float | None = None
        self._refused: SplitArrowError | None = None
        self.peer = peer
        self.is_local = is_local
        self.bytes_sent = 0
        self.bytes_received = 0
        if not server:
            self._parts.append(memoryview(PREFACE))

    @property
    def at_boundary(self) -> bool:
        """Whether nothing of an unfinished message has arrived."""
        return self._decoder.at_boundary

    @property
    def preface_received(self) -> bool:
        """Whether the peer has shown that it speaks the protocol."""
        return self._decoder.preface_received

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 once closed."""
        return self._socket.fileno()

    def send_fileno(self) -> int:
        """Return the socket's descriptor; -1 once closed."""
        return self._socket.fileno()

    def queue(self, frames: Iterable[Outgoing]) -> None:
        """Line up frames to be sent."""
        for part in encode(frames):
            if isinstance(part, FileRegion):
                if part.nbytes < _SENDFILE_FROM:
                    small = memoryview(bytearray(part.nbytes))
                    part.read_into(small)
                    self._parts.append(small)
                else:
                    self._parts.append(FileRegion(part.file, part.offset, part.nbytes))
            else:
                view = memoryview(part)
                self._parts.append(view if view.format == "B" else view.cast("B"))

    def send_some(self) -> bool:
        """Send what was queued, as far as it goes; tell whether all of it went."""
        parts = self._parts
        turn = self.bytes_sent + TURN_BYTES
        try:
            while parts:
                if self.bytes_sent >= turn:
                    return False
                part = parts[0]
                if type(part) is memoryview:
                    self._send_views()
                elif type(part) is FileRegion:
                    self._send_region(part)
                else:
                    self._send_other(part)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from None
        return True

    def _send_region(self, region: FileRegion) -> None:
        count = min(region.nbytes, TURN_BYTES)
        sent = os.sendfile(self._socket.fileno(), region.file.fileno(), region.offset, count)
        if sent == 0:
            raise region.file.shrunk(region.offset)
        region.offset += sent
        region.nbytes -= sent
        self.bytes_sent += sent
        if not region.nbytes:
            self._parts.popleft()

    def _send_other(self, part: Any) -> None:
        raise NotImplementedError  # nothing else is queued here

    def _send_views(self) -> None:
        parts = self._parts
        views: list[memoryview] = []
        total = 0
        flags = socket.MSG_NOSIGNAL
        for part in parts:
            if type(part) is not memoryview:
                flags |= socket.MSG_MORE
                break
            if len(views) == _MOST_PARTS or total >= _MOST_BYTES:
                break
            views.append(part)
            total += part.nbytes
        sent = self._socket.sendmsg(views, (), flags)
        self.bytes_sent += sent
        if sent == total:
            for _ in views:
                parts.popleft()
            return
        for view in views:
            if sent < view.nbytes:
                parts[0] = view[sent:]
                return
            sent -= view.nbytes
            parts.popleft()

    def receive_some(self) -> list[Incoming]:
        """Return what has arrived; an empty list means: wait until it is readable."""
        if self._refused is not None:
            raise self._refused
        decoder = self._decoder
        received = 0
        while True:
            try:
                count = self._receive_into(decoder.targets())
            except BlockingIOError:
                self._await_rest()
                return decoder.take()
            except OSError as error:
                return self._frames_before(self._lost(error))
            if count == 0:
                return self._frames_before(self._ended())
            received += count
            try:
                if decoder.preface_received:
                    decoder.advance(count)
                else:
                    self._begin(count)
            except ProtocolError as error:
                self._refused = error
                return self._frames_before(error)
            if self._is_enough(received) and decoder.has_frames:
                return decoder.take()

    def _is_enough(self, received: int) -> bool:
        """Tell whether what was received in one go should be looked at before more is."""
        return received >= RECEIVE_MOST

    def _await_rest(self) -> None:
        """Be woken for the rest of a large body, or a good part of it, and not for each segment.

        What comes slowly is looked at now and then, so that it does not seem to have stalled.
        """
        least = min(self._decoder.lacking, _LOW_WATER_MOST)
        if least < _LOW_WATER_LEAST:
            least = 1
            self.wake_at = None
        else:
            self.wake_at = time.monotonic() + _LOOK_SECONDS
        if least != self._low_water:
            self._low_water = least
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def _receive_into(self, targets: list[memoryview]) -> int:
        """Receive what is there; return its size, which is 0 at the end of the stream."""
        if len(targets) == 1:
            count = self._socket.recv_into(targets[0])
        else:
            count = self._socket.recvmsg_into(targets)[0]
        self.bytes_received += count
        return count

    def _frames_before(self, error: Exception) -> list[Incoming]:
        """Return the frames that came before an error; raise it if there is none."""
        frames = self._decoder.take()
        if frames:
            return frames  # the next read raises
        raise error

    def _begin(self, count: int) -> None:
        try:
            self._decoder.advance(count)
        except PrefaceError as error:
            if self._server:
                raise
            if error.received.startswith(_TLS_ALERT):
                raise NotAPeerError(
                    f"{self.peer} speaks TLS: its URI begins with tcp+tls://"
                ) from None
            raise NotAPeerError(
                f"{self.peer} does not speak splitarrow: it answered {error.received[:32]!r}"
            ) from None
        if self._server and self._decoder.preface_received:
            self._parts.append(memoryview(PREFACE))
            self.send_some()

    def interrupt(self) -> None:
        """Make a wait for this channel end, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close; what the kernel has taken still reaches the peer."""
        if not self._closed:
            self._closed = True
            self._parts.clear()
            self._socket.close()

    def abort(self) -> None:
        """Close at once: the peer sees a reset."""
        if not self._closed:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            SocketChannel.close(self)

    def _ended(self) -> Exception:
        if self.preface_received:
            return ConnectionLostError(f"{self.peer} closed the connection")
        if self._server:
            return ConnectionLostError(f"{self.peer} left before it said anything")
        return NotAPeerError(
            f"{self.peer} closed the connection without speaking splitarrow; is it another server?"
        )

    def _lost(self, error: OSError) -> Exception:
        if self._closed:
            return ConnectionLostError(f"the connection with {self.peer} is closed")
        return ConnectionLostError(
            f"the connection with {self.peer} broke: {error.strerror or error}"
        )
