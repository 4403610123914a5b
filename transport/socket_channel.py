"""A channel over a connected stream socket: a TCP socket or a Unix socket."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import (
    ConnectionLostError,
    NotAPeerError,
    ProtocolError,
    SplitArrowError,
    TransportError,
)
from ..protocol.frames import IncomingFrame, MessageRun, OutgoingFrame, UntaggedFrame
from ..protocol.limits import Limits
from ..protocol.memory import DEFAULT_ALLOCATOR, Allocator
from .base import Capabilities
from .frame_decoder import FrameDecoder, PrefaceError
from .framing import PREFACE, encode_frames
from .memory.files import FileSpan, SourceFile
from .proxy_protocol import begins_header, refuse_header

_MAX_PARTS = 512
_MAX_BYTES = 4 << 20
_MIN_SENDFILE_BYTES = 16 << 10
TURN_BYTES = 8 << 20
"""The most bytes that one call sends, so that a fast reader does not delay the others."""
MAX_RECEIVE_BYTES = 1 << 20
_MIN_LOW_WATER = 64 << 10
_MAX_LOW_WATER = 256 << 10
_WAKE_SECONDS = 0.05
RESET = struct.pack("ii", True, 0)
"""The value of SO_LINGER with which closing a socket resets the connection."""
_UNKNOWN_BUFFER = 64 << 20
_MIN_MEASURED_BYTES = 1 << 20
_REUSE_MILLISECONDS = 4000
"""The time in which the server must acknowledge a request on a connection that was kept."""
_TCP_INFO = struct.Struct("<2xBB52xI")
"""From the struct tcp_info of Linux: the retransmissions and the window probes since the last
acknowledgement, and the time since then in milliseconds."""
_MIN_UNANSWERED = 2
_TLS_ALERT = b"\x15\x03"
_HTTP2_SETTINGS = b"\x04"
"""The type of the first frame of an HTTP/2 server, after the three bytes of its length."""


class SocketChannel:
    """One end of a connection over a stream socket.

    The channel owns the socket and makes it non-blocking. The receive buffer has `staging` bytes.
    """

    capabilities = Capabilities()
    send_waits_readable = False
    _keep: Callable[[SocketChannel], bool] | None = None
    _farewell: OutgoingFrame | None = None
    user: int | None = None
    refusal: str | None = None
    lanes = ()
    unread_bytes = 0

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        *,
        server: bool,
        peer: str,
        is_local: bool,
        staging: int = 256 << 10,
        allocator: Allocator = DEFAULT_ALLOCATOR,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._server = server
        self._decoder = FrameDecoder(
            limits, staging=staging, allocator=allocator, expects_runs=not server
        )
        self._preface = memoryview(PREFACE)
        self._parts: deque[Any] = deque(() if server else (self._preface,))
        self._lent: dict[SourceFile, int] = {}
        self._closed = False
        self._began = time.monotonic()
        self.speed = 0.0
        """The bytes per second of the last stream on a kept connection that was not small."""
        self._low_water = 1
        self.wake_at: float | None = None
        self._pending_error: SplitArrowError | None = None
        self.peer = peer
        self.is_local = is_local
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def at_boundary(self) -> bool:
        """Whether the received bytes end with a complete frame."""
        return self._decoder.at_boundary

    @property
    def preface_received(self) -> bool:
        """Whether the peer's preface has arrived."""
        return self._decoder.preface_received

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 once closed."""
        return self._socket.fileno()

    send_fileno = fileno

    def queue(self, frames: Iterable[OutgoingFrame]) -> None:
        """Queue frames; see `Channel.queue`."""
        for part in encode_frames(frames):
            if isinstance(part, FileSpan):
                if part.nbytes < _MIN_SENDFILE_BYTES:
                    small = memoryview(bytearray(part.nbytes))
                    part.read_into(small)
                    self._parts.append(small)
                else:
                    if part.file not in self._lent:
                        self._borrow(part.file)
                    self._parts.append(FileSpan(part.file, part.offset, part.nbytes))
            else:
                view = memoryview(part)
                self._parts.append(view if view.format == "B" else view.cast("B"))

    def _borrow(self, file: SourceFile) -> None:
        """Keep writers from a file until the peer has read the pages that were sent of it.

        The socket refers to these pages, and so does the socket of a peer on this host.
        """
        beyond = self.bytes_sent - _largest_flight()
        for other, end in list(self._lent.items()):
            if end < beyond:
                del self._lent[other]
                other.take_back()
        file.lend()
        self._lent[file] = self.bytes_sent

    def _return_files(self) -> None:
        while self._lent:
            self._lent.popitem()[0].take_back()

    @property
    def delays_writer(self) -> bool:
        """Whether a process waits to write to a file that the peer may not have read yet."""
        return any(file.delays_writer for file in self._lent)

    def send_some(self) -> bool:
        """Send as much of the queue as possible; see `Channel.send_some`."""
        parts = self._parts
        turn = self.bytes_sent + TURN_BYTES
        try:
            while parts:
                if self.bytes_sent >= turn:
                    return False
                part = parts[0]
                if type(part) is memoryview:
                    self._send_views()
                elif type(part) is FileSpan:
                    self._send_span(part)
                else:
                    self._send_other(part)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._explain_loss(error) from None
        return True

    def _send_span(self, span: FileSpan) -> None:
        count = min(span.nbytes, TURN_BYTES)
        sent = os.sendfile(self._socket.fileno(), span.file.fileno(), span.offset, count)
        if sent == 0:
            raise span.file.truncation_error(span.offset)
        span.offset += sent
        span.nbytes -= sent
        self.bytes_sent += sent
        if not span.nbytes:
            self._parts.popleft()
            self._lent[span.file] = self.bytes_sent

    def _send_other(self, part: Any) -> None:
        raise NotImplementedError  # a subclass that queues other parts sends them

    def _send_views(self) -> None:
        parts = self._parts
        views: list[memoryview] = []
        total = 0
        flags = socket.MSG_NOSIGNAL
        for part in parts:
            if type(part) is not memoryview:
                flags |= socket.MSG_MORE
                break
            if len(views) == _MAX_PARTS or total >= _MAX_BYTES:
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

    def receive_some(self) -> list[IncomingFrame]:
        """Return the frames that have arrived; see `Channel.receive_some`."""
        if self._pending_error is not None:
            raise self._pending_error
        decoder = self._decoder
        received = 0
        while True:
            try:
                count = self._receive_into(decoder.targets())
            except BlockingIOError:
                self._send_preface()
                self._set_low_water()
                return self._take()
            except OSError as error:
                self._pending_error = lost = self._explain_loss(error)
                return self._keep_proven(self._take_frames_before(lost), lost)
            if count == 0:
                return self._take_frames_before(self._explain_end())
            received += count
            try:
                if decoder.preface_received:
                    decoder.advance(count)
                else:
                    self._receive_preface(count)
            except ProtocolError as error:
                self._pending_error = error
                return self._take_frames_before(error)
            if self._has_received_enough(received) and decoder.has_frames:
                return self._take()

    def _take(self) -> list[IncomingFrame]:
        """Return the complete frames."""
        frames = self._decoder.take()
        if not frames:
            return frames
        if self._server:
            if self._lent and not self._parts:
                self._return_files()  # the peer sends its next request after the last frame
            return frames
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not code:
            return frames
        self._pending_error = lost = self._explain_loss(OSError(code, os.strerror(code)))
        return self._keep_proven(frames, lost)

    @staticmethod
    def _keep_proven(frames: list[IncomingFrame], error: TransportError) -> list[IncomingFrame]:
        """Return the frames of a connection that broke; raise its error if one is doubtful.

        A server resets the connection before another process changes a file whose pages are still
        in the peer's socket. Bodies that come from there afterwards may have changed.
        """
        for frame in frames:
            if isinstance(frame, UntaggedFrame):
                continue
            nbytes = frame.nbytes if isinstance(frame, MessageRun) else frame.body.nbytes
            if nbytes >= _MIN_SENDFILE_BYTES:
                raise error
        return frames

    def _has_received_enough(self, received: int) -> bool:
        """Return whether to handle the received frames first. Calls receive more and more."""
        most = min(MAX_RECEIVE_BYTES, self.bytes_received // 2 + 1)
        return received >= most or self._decoder.has_full_run

    def _set_low_water(self) -> None:
        """Make the kernel wake this end for a large part of a body, not for each segment.

        `wake_at` bounds the wait, so that a slow peer does not look like a silent one. Data from
        another host is read at once: the kernel limits the receive window to such a part, and a
        sender whose window limits its start takes the link for slow.
        """
        if not self.is_local:
            return
        low_water = min(self._decoder.missing_body_bytes, _MAX_LOW_WATER)
        if low_water < _MIN_LOW_WATER:
            low_water = 1
            self.wake_at = None
        else:
            self.wake_at = time.monotonic() + _WAKE_SECONDS
        if low_water != self._low_water:
            self._low_water = low_water
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def _receive_into(self, targets: list[memoryview]) -> int:
        """Receive bytes and return their number: 0 at the end of the connection."""
        if len(targets) == 1:
            count = self._socket.recv_into(targets[0])
        else:
            count = self._socket.recvmsg_into(targets)[0]
        self.bytes_received += count
        return count

    def _take_frames_before(self, error: Exception) -> list[IncomingFrame]:
        """Return the frames received before an error. If there are none, raise the error."""
        self._decoder.end_expectations()
        frames = self._decoder.take()
        if frames:
            return frames  # the next call raises the error
        raise error

    def _receive_preface(self, count: int) -> None:
        try:
            self._decoder.advance(count)
        except PrefaceError as error:
            if self._server and begins_header(error.received):
                raise refuse_header(self.peer) from None
            if self._server:
                raise
            if error.received.startswith(_TLS_ALERT):
                raise NotAPeerError(
                    f"{self.peer} requires TLS: use a URI that begins with tcp+tls://"
                ) from None
            if error.received[:2] == b"\0\0" and error.received[3:4] == _HTTP2_SETTINGS:
                raise NotAPeerError(
                    f"{self.peer} is a control plane, not a data listener: use a URI that begins "
                    "with grpc"
                ) from None
            raise NotAPeerError(
                f"{self.peer} does not speak splitarrow: it answered {error.received[:32]!r}"
            ) from None
        if self._server and self._decoder.preface_received:
            self._parts.append(self._preface)

    def _send_preface(self) -> None:
        """Send the server's preface, unless it was sent in front of the answer to a request."""
        if self._server and self._parts and self._parts[0] is self._preface:
            self.send_some()

    def interrupt(self) -> None:
        """End a wait for this channel, from any thread; see `Channel.interrupt`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def peer_silence(self) -> float:
        """The seconds for which the peer's host has not answered; see `Channel.peer_silence`."""
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:  # A Unix socket, or one that is closed.
            return 0.0
        retransmissions, probes, milliseconds = _TCP_INFO.unpack(info)
        return milliseconds / 1000 if retransmissions + probes >= _MIN_UNANSWERED else 0.0

    def keep_with(self, keep: Callable[[SocketChannel], bool], farewell: OutgoingFrame) -> None:
        """Let `close` pass the connection on, for another reader, if its stream has ended.

        `farewell` tells the server that the reader has received everything, so that it releases
        the files that it has sent from. `keep` returns False if the connection has to be closed.
        """
        self._keep, self._farewell = keep, farewell

    def renew(self, limits: Limits, staging: int, allocator: Allocator) -> None:
        """Begin a new stream on a connection that was kept."""
        self._decoder = FrameDecoder(limits, staging=staging, allocator=allocator)
        self._decoder.preface_received = True
        self._parts = deque()
        self._began = time.monotonic()
        self.bytes_sent = self.bytes_received = 0
        self.capabilities = Capabilities(is_reused=True)
        with contextlib.suppress(OSError):  # The next call fails, and explains it.
            self._socket.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _REUSE_MILLISECONDS
            )

    def is_quiet(self) -> bool:
        """Return whether nothing arrives on a connection that is kept."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _pass_on(self) -> bool:
        """Pass the connection on if its stream has ended; return whether this was done."""
        decoder, keep, farewell = self._decoder, self._keep, self._farewell
        if keep is None or farewell is None or self._pending_error is not None or self._parts:
            return False
        if not decoder.preface_received or not decoder.at_boundary or decoder.has_frames:
            return False
        try:
            self.queue([farewell])
            if not self.send_some():
                return False
        except TransportError:
            return False
        successor = copy.copy(self)
        if self.bytes_received >= _MIN_MEASURED_BYTES:
            successor.speed = self.bytes_received / (time.monotonic() - self._began)
        # This channel may still be interrupted or aborted.
        sock = self._socket
        successor._socket = socket.socket(sock.family, sock.type, sock.proto, sock.detach())
        successor._keep = None
        if not keep(successor):
            successor.close()
        return True

    def close(self) -> None:
        """Close; see `Channel.close`."""
        if self._closed:
            return
        with contextlib.suppress(TransportError):
            self._send_preface()
        if not self._pass_on():
            self._send_farewell()
        self._release()

    def _send_farewell(self) -> None:
        """Send what announces the end of the connection."""

    def _release(self) -> None:
        self._closed = True
        self._parts.clear()
        self._socket.close()
        self._return_files()

    def abort(self) -> None:
        """Close at once, with a reset; see `Channel.abort`."""
        if not self._closed:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._release()

    def _explain_end(self) -> TransportError:
        """Return the error for a peer that closed the connection."""
        if self.preface_received:
            return ConnectionLostError(f"{self.peer} closed the connection")
        if self._server:
            return ConnectionLostError(f"{self.peer} closed the connection before it sent anything")
        return NotAPeerError(
            f"{self.peer} closed the connection without an answer; is it a splitarrow server?"
        )

    def _explain_loss(self, error: OSError) -> TransportError:
        """Return the error for a connection that failed."""
        if self._closed:
            return ConnectionLostError(f"the connection with {self.peer} is closed")
        return ConnectionLostError(
            f"the connection with {self.peer} broke: {error.strerror or error}"
        )


@functools.cache
def _largest_flight() -> int:
    """Return the bytes that the two sockets of a connection hold at most."""
    total = 0
    for name in ("ipv4/tcp_wmem", "ipv4/tcp_rmem", "core/wmem_max", "core/rmem_max"):
        try:
            with open(f"/proc/sys/net/{name}", encoding="ascii") as file:
                total += 2 * int(file.read().split()[-1])
        except (OSError, ValueError):
            total += _UNKNOWN_BUFFER
    return total
