"""One HTTP/2 connection of the control plane (RFC 9113), and its streams.

h2 keeps the state of the connection: headers, settings, the order of frames, and the windows of
what is sent. DATA frames bypass it in both directions, because they carry record batches. What is
sent goes from its buffers to the socket, and what is received from the socket into its message.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import re
import socket
import ssl
import struct
import termios
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hpack import Encoder

Headers = Sequence[tuple[str, str]]

logging.getLogger("hpack").setLevel(logging.WARNING)  # it logs all headers, tokens included

_PREFACE_BYTES, _FRAME_HEAD_BYTES = 24, 9
_DATA, _WINDOW_UPDATE, _GOAWAY, _CONTINUATION = 0, 8, 7, 9
_WINDOW_UPDATE_HEAD = bytes((0, 0, 4, _WINDOW_UPDATE))
_END_STREAM, _PADDED = 1, 8
_STREAM_ID_MASK = _MAX_WINDOW = (1 << 31) - 1
_WINDOW = struct.Struct(">BBBBBII")
_HEAD = struct.Struct(">BBBBBI")
_GOAWAY_FRAME = struct.Struct(">BBBBBIII")

FIRST_WINDOW = 64 << 10
"""The bytes that a client may send on a stream before its handler has read a message."""
WINDOW = 4 << 20
"""The bytes that a client may send ahead of a handler that reads messages."""
_CONNECTION_WINDOW = 16 << 20
_MAX_FRAME_BYTES = 1 << 20
_BURST_BYTES = 1 << 20
"""The bytes that a stream sends before others of the connection have their turn."""
_MAX_BUFFERS = 512
"""The buffers of one `sendmsg`; the kernel takes 1024."""
_MAX_HEADER_BYTES = 64 << 10
"""The bytes of headers, in one frame or several. Decoding them blocks the event loop."""
_MAX_TABLE_BYTES = 4096
"""The bytes of headers that are kept to refer to them. Each header that is sent searches them."""
_MAX_SETTINGS = 64
_MAX_CONTROL_BYTES = 64 << 10
"""The bytes besides DATA that may wait to be sent before the connection stops reading."""
_READ_BYTES = 16 << 10
"""The bytes besides DATA that are read at a time. They may be a thousand frames."""
_MAX_CHANGES = 1000
"""How often a client may reset streams or change its settings within `_CHANGE_SECONDS`."""
_CHANGE_SECONDS = 10.0
_TLS_BYTES = 64 << 10
_HTTP_1 = re.compile(rb"[A-Z]{3,7} /")
_NOT_HTTP2 = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n"
    b"content-type: text/plain\r\n\r\nthis address serves Arrow Flight over gRPC, not HTTP/1.1\n"
)


class _Encoder(Encoder):
    """Keeps the table of headers small, whatever the client allows."""

    @property
    def header_table_size(self) -> int:
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        value = min(value, _MAX_TABLE_BYTES)
        if value != self.header_table.maxsize:
            self.header_table.maxsize = value
            # The next headers have the smallest size of the time since the last ones, and this one.
            smallest = min([value, *self.table_size_changes])
            self.table_size_changes = [smallest, value] if smallest < value else [value]


class Receiver(Protocol):
    """What a stream does with what the client sends."""

    def receive(self, data: memoryview) -> None:
        """Take data, which is valid during the call."""
        ...

    def end(self) -> None:
        """Learn that the client has sent everything."""
        ...

    def lose(self) -> None:
        """Learn that the client has reset the stream, or disconnected."""
        ...


class Stream:
    """One stream of a connection: how to answer a request."""

    def __init__(self, connection: Connection, stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.receiver: Receiver | None = None
        self.window = FIRST_WINDOW
        """The bytes that the client may still send."""
        self.is_complete = False
        """Whether the client has sent everything."""
        self.opened: asyncio.Future[None] | None = None
        """Done once the client can receive more."""

    @property
    def is_open(self) -> bool:
        """Whether the client can still receive something."""
        return self._connection.streams.get(self.id) is self

    def grant(self, nbytes: int) -> None:
        """Let the client send more."""
        self.window += nbytes
        self._connection.grant(self.id, nbytes)

    def wake(self) -> None:
        """Let `send` look at the windows again."""
        if self.opened is not None and not self.opened.done():
            self.opened.set_result(None)

    def send_headers(self, headers: Headers, *, end: bool = False) -> None:
        """Send headers or trailers. After the end, the client must not send more either."""
        self._connection.send_headers(self, headers, end)

    async def send(self, buffers: deque[Any]) -> None:
        """Send data, and remove it from `buffers`. Return when the kernel has all of it."""
        await self._connection.send(self, buffers)


class Connection:
    """A connection that a client has opened.

    `begin` gets each new stream and its headers, and returns what receives its data. `ended` is
    called once, when the socket is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        staging: bytearray,
        begin: Callable[[Stream, list[tuple[bytes, bytes]]], Receiver],
        ended: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._tls: Any = None
        if tls is not None:
            self._sock = self._tls = tls.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        self._staging = memoryview(staging)
        self._begin = begin
        self._ended = ended
        self.streams: dict[int, Stream] = {}
        """The streams that the server has not ended."""
        self.last_heard = self.last_used = self._loop.time()
        self.is_established = False
        """Whether the client has sent a valid preface."""
        self.is_closing = False
        self._is_closed = False
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: FIRST_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: _MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
            },
        )
        self._h2.decoder.max_header_list_size = _MAX_HEADER_BYTES
        self._h2.encoder = _Encoder()
        self._h2.max_inbound_frame_size = _MAX_FRAME_BYTES
        self._window = FIRST_WINDOW - 1
        # The frame that is being received.
        self._head = bytearray()
        self._left = _PREFACE_BYTES
        self._block_bytes = 0
        self._stream_id = self._flags = self._padding = 0
        self._is_data = self._awaits_padding = False
        # What is being sent.
        self._unsent = deque[Any]()
        self._unsent_bytes = self._control_bytes = 0
        self._turn = asyncio.Lock()
        self._drained: asyncio.Future[None] | None = None
        self._is_writing = self._is_reading = False
        self._changes = deque[float](maxlen=_MAX_CHANGES)
        self._h2.initiate_connection()
        self._read(True)

    # Receiving

    def _read(self, enabled: bool) -> None:
        if enabled and not self._is_reading:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        elif not enabled and self._is_reading:
            self._loop.remove_reader(self._sock.fileno())
        self._is_reading = enabled

    def _on_readable(self) -> None:
        try:
            if self._tls is not None and self._tls.version() is None:
                self._tls.do_handshake()
            while True:
                room = _READ_BYTES + (self._left if self._is_data else 0)
                received = self._sock.recv_into(self._staging[:room])
                if not received:
                    self.abort()
                    return
                self.last_heard = self._loop.time()
                self._receive(self._staging[:received])
                if self._tls is None or self._is_closed or not self._tls.pending():
                    return
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except (OSError, ValueError):
            self.abort()
        except H2Error:
            if not self.is_established and _HTTP_1.match(self._staging):
                self._queue(_NOT_HTTP2)
            else:
                self._queue_control()
            self._flush()
            self.abort()

    def _receive(self, view: memoryview) -> None:
        """Take the frames apart: DATA for the streams, and everything else for h2."""
        while view and not self._is_closed:
            if not self._left:
                if not self._head and self._open_window(view):
                    view = view[_WINDOW.size :]
                    continue
                missing = _FRAME_HEAD_BYTES - len(self._head)
                self._head += view[:missing]
                view = view[missing:]
                if len(self._head) == _FRAME_HEAD_BYTES:
                    self._begin_frame()
                continue
            taken = view[: self._left]
            view = view[len(taken) :]
            self._left -= len(taken)
            if self._is_data:
                self._take_data(taken)
            else:
                self._feed(taken)
        if self._unsent and not self._is_closed:
            self._flush()

    def _open_window(self, view: memoryview) -> bool:
        """Apply the valid WINDOW_UPDATE frame that data begins with, which h2 does more slowly."""
        if len(view) < _WINDOW.size or bytes(view[:4]) != _WINDOW_UPDATE_HEAD:
            return False
        *_, stream_id, nbytes = _WINDOW.unpack_from(view)
        window: Any = self._h2 if not stream_id else self._h2.streams.get(stream_id)
        if window is None or not 0 < nbytes <= _MAX_WINDOW - window.outbound_flow_control_window:
            return False
        was_closed = window.outbound_flow_control_window <= 0
        window.outbound_flow_control_window += nbytes
        if was_closed and not stream_id:
            self._open_windows()
        elif was_closed and stream_id in self.streams:
            self.streams[stream_id].wake()
        return True

    def _begin_frame(self) -> None:
        head, self._head = bytes(self._head), bytearray()
        self._left, kind = int.from_bytes(head[:3], "big"), head[3]
        self._is_data = kind == _DATA
        if not self._is_data:
            self._block_bytes = self._left + (self._block_bytes if kind == _CONTINUATION else 0)
            if self._block_bytes > _MAX_HEADER_BYTES:
                self._fail(ErrorCodes.ENHANCE_YOUR_CALM)
            else:
                self._feed(head)
            return
        self._flags = head[4]
        self._stream_id = int.from_bytes(head[5:], "big") & _STREAM_ID_MASK
        self._padding, self._awaits_padding = 0, bool(self._flags & _PADDED)
        self._check_data()
        if not self._left:
            self._end_data()

    def _check_data(self) -> None:
        """Check the length and the stream of a DATA frame, and count it."""
        stream = self.streams.get(self._stream_id)
        self._window -= self._left
        if stream is not None:
            stream.window -= self._left
        if self._left > _MAX_FRAME_BYTES:
            self._fail(ErrorCodes.FRAME_SIZE_ERROR)
        elif not 0 < self._stream_id <= self._h2.highest_inbound_stream_id:
            self._fail(ErrorCodes.PROTOCOL_ERROR)
        elif self._window < 0 or (stream is not None and stream.window < 0):
            self._fail(ErrorCodes.FLOW_CONTROL_ERROR)
        elif self._window < _CONNECTION_WINDOW // 2:
            # The windows of the streams bound what waits for its handler.
            self.grant(0, _CONNECTION_WINDOW - self._window)
        if stream is not None and stream.is_complete and not self._is_closed:
            self._feed(_HEAD.pack(0, 0, 0, _DATA, 0, stream.id))  # h2 resets the stream

    def _take_data(self, taken: memoryview) -> None:
        if self._awaits_padding:
            self._padding, self._awaits_padding = taken[0], False
            taken = taken[1:]
            if self._padding > self._left + len(taken):
                self._fail(ErrorCodes.PROTOCOL_ERROR)
                return
        stream = self.streams.get(self._stream_id)
        data = taken[: max(0, self._left + len(taken) - self._padding)]
        if data and stream is not None and stream.receiver is not None:
            stream.receiver.receive(data)
        if not self._left:
            self._end_data()

    def _end_data(self) -> None:
        if self._flags & _END_STREAM and self._stream_id in self.streams:
            self._feed(_HEAD.pack(0, 0, 0, _DATA, _END_STREAM, self._stream_id))

    def _feed(self, data: bytes | memoryview) -> None:
        events = self._h2.receive_data(bytes(data))
        for event in events:
            self._handle(event)
        self._queue_control()
        if events and not self.is_established:
            self.is_established = True
            self.grant(0, _CONNECTION_WINDOW - self._window)

    def _handle(self, event: Event) -> None:
        if isinstance(event, WindowUpdated):
            self._open_windows()
        elif isinstance(event, RemoteSettingsChanged):
            self._open_windows()
            self._count_change()
            if len(self._h2.remote_settings) > _MAX_SETTINGS:
                self._fail(ErrorCodes.ENHANCE_YOUR_CALM)
        elif isinstance(event, RequestReceived):
            assert event.stream_id is not None
            assert event.headers is not None
            self._begin_stream(event.stream_id, event.headers)
        elif isinstance(event, StreamEnded):
            stream = self.streams.get(event.stream_id or 0)
            if stream is not None and stream.receiver is not None:
                stream.is_complete = True
                stream.receiver.end()
        elif isinstance(event, StreamReset):
            self._lose_stream(event.stream_id or 0)
            self._count_change()
        elif isinstance(event, ConnectionTerminated):
            # The client finishes its streams before it disconnects, but h2 would refuse them.
            self._h2.state_machine.state = ConnectionState.SERVER_OPEN

    def _count_change(self) -> None:
        now = self._loop.time()
        self._changes.append(now)
        if len(self._changes) == _MAX_CHANGES and now - self._changes[0] < _CHANGE_SECONDS:
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM)

    def _begin_stream(self, stream_id: int, headers: Any) -> None:
        if self.is_closing:
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        h2_stream: Any = self._h2.streams[stream_id]
        h2_stream._expected_content_length = None  # h2 does not see the data
        stream = self.streams[stream_id] = Stream(self, stream_id)
        stream.receiver = self._begin(stream, headers)

    def _lose_stream(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            return
        self.last_used = self._loop.time()
        stream.wake()
        if stream.receiver is not None:
            stream.receiver.lose()

    def _open_windows(self) -> None:
        for stream in self.streams.values():
            stream.wake()

    # Sending

    def grant(self, stream_id: int, nbytes: int) -> None:
        """Let the client send more on a stream; 0 is the connection."""
        if not stream_id:
            self._window += nbytes
        self._queue(_WINDOW.pack(0, 0, 4, _WINDOW_UPDATE, 0, stream_id, nbytes))
        self._flush()

    def send_headers(self, stream: Stream, headers: Headers, end: bool) -> None:
        """Send headers of a stream, and end it in both directions if they are the last."""
        if not stream.is_open:
            return
        self._h2.send_headers(stream.id, headers, end_stream=end)
        if end:
            h2_stream = self._h2.streams.get(stream.id)
            if h2_stream is not None and not h2_stream.closed:
                self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
            del self.streams[stream.id]
            self.last_used = self._loop.time()
        self._queue_control()
        self._flush()

    async def send(self, stream: Stream, buffers: deque[Any]) -> None:
        """Send data of a stream, in turns with others."""
        while buffers and stream.is_open:
            if self._find_window(stream) <= 0:
                stream.opened = self._loop.create_future()
                await stream.opened
                continue
            async with self._turn:
                await self._drain()
                if stream.is_open:
                    window = self._find_window(stream)
                    self._queue_data(stream, buffers, min(window, _BURST_BYTES))
                    self._flush()
                    await self._drain()
            await asyncio.sleep(0)

    def _find_window(self, stream: Stream) -> int:
        return self._h2.local_flow_control_window(stream.id)

    def _queue_data(self, stream: Stream, buffers: deque[Any], nbytes: int) -> None:
        """Queue DATA frames with the next bytes of some buffers, which it removes from them."""
        while nbytes > 0 and buffers:
            frame: list[Any] = []
            length, room = 0, min(nbytes, self._h2.max_outbound_frame_size)
            while buffers and room:
                part = buffers.popleft()
                if len(part) > room:
                    view = memoryview(part)
                    buffers.appendleft(view[room:])
                    part = view[:room]
                frame.append(part)
                length += len(part)
                room -= len(part)
            head = (length >> 16, length >> 8 & 0xFF, length & 0xFF, _DATA, 0, stream.id)
            self._unsent.append(_HEAD.pack(*head))
            self._unsent += frame
            self._unsent_bytes += _FRAME_HEAD_BYTES + length
            nbytes -= length
            self._h2.outbound_flow_control_window -= length
            self._h2.streams[stream.id].outbound_flow_control_window -= length

    def _queue_control(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._queue(data)

    def _queue(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._control_bytes += len(data)

    async def _drain(self) -> None:
        """Return when the kernel has everything that was queued."""
        while self._unsent and not self._is_closed:
            self._drained = self._loop.create_future()
            await self._drained

    def _flush(self) -> None:
        """Send what the kernel takes, and the rest once it takes more."""
        if self._is_closed or (self._tls is not None and self._tls.version() is None):
            return
        unsent_bytes = self._unsent_bytes
        try:
            while self._unsent:
                self._send_some() if self._tls is None else self._encrypt_some()
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except (OSError, ValueError):
            self.abort()
            return
        if self._is_writing and self._unsent_bytes < unsent_bytes:
            self.last_heard = self._loop.time()  # pings wait behind what a slow client receives
        is_blocked = bool(self._unsent)
        if is_blocked != self._is_writing:
            if is_blocked:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._sock.fileno())
            self._is_writing = is_blocked
        self._read(not is_blocked or self._control_bytes < _MAX_CONTROL_BYTES)
        if not is_blocked:
            self._control_bytes = 0
            self._wake()

    def _send_some(self) -> None:
        unsent = self._unsent
        buffers = [unsent[at] for at in range(min(len(unsent), _MAX_BUFFERS))]
        sent = self._sock.sendmsg(buffers)  # pyright: ignore[reportArgumentType]
        self._unsent_bytes -= sent
        while unsent and len(unsent[0]) <= sent:  # also buffers of no bytes
            sent -= len(unsent.popleft())
        if sent:
            unsent[0] = memoryview(unsent[0])[sent:]

    def _encrypt_some(self) -> None:
        """Give TLS the next bytes, small buffers together."""
        unsent = self._unsent
        if len(unsent[0]) < _TLS_BYTES and len(unsent) > 1:
            parts: list[Any] = []
            room = _TLS_BYTES
            while unsent and room:
                part = unsent.popleft()
                if len(part) > room:
                    unsent.appendleft(memoryview(part)[room:])
                    part = memoryview(part)[:room]
                parts.append(part)
                room -= len(part)
            unsent.appendleft(b"".join(parts))
        sent = self._sock.send(unsent[0])
        self._unsent_bytes -= sent
        if sent < len(unsent[0]):
            unsent[0] = memoryview(unsent[0])[sent:]
        else:
            unsent.popleft()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # The end

    def ping(self) -> None:
        """Ask the client for a sign of life."""
        if self.is_established:
            self._h2.ping(bytes(8))
            self._queue_control()
            self._flush()

    def count_unsent(self) -> int:
        """Return the bytes that the client has not acknowledged."""
        if self._is_closed:
            return 0
        count = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, count)
        return self._unsent_bytes + int.from_bytes(count, "little")

    def refuse_streams(self) -> None:
        """Tell the client to open no more streams on this connection."""
        if not self.is_closing and not self._is_closed:
            self.is_closing = True
            self._send_goaway(ErrorCodes.NO_ERROR)

    def _fail(self, code: ErrorCodes) -> None:
        """Tell the client what it did wrong, and disconnect it."""
        self._send_goaway(code)
        self.abort()

    def _send_goaway(self, code: ErrorCodes) -> None:
        """Send GOAWAY, after which h2 itself would send nothing more."""
        last = self._h2.highest_inbound_stream_id
        self._queue(_GOAWAY_FRAME.pack(0, 0, 8, _GOAWAY, 0, 0, last, code))
        self._flush()

    def abort(self) -> None:
        """Close the socket. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._read(False)
        if self._is_writing:
            self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._unsent.clear()
        self._wake()
        for stream_id in list(self.streams):
            self._lose_stream(stream_id)
        self._ended(self)
