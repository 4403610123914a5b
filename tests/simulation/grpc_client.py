"""The gRPC client of simulated processes: HTTP/2 over simulated sockets.

grpcio has threads and clocks of its own. This client has its interface, its errors and its
keep-alives, as far as the product uses them, and talks to the product's own server.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from .clock import Condition, Lock, Thread, World
from .network import Socket, wait_for_descriptors

_PREFIX = struct.Struct(">BI")
_READ, _WRITE = 1, 2
_PING_SECONDS = 30.0
_PING_TIMEOUT_SECONDS = 3.5
_WINDOW = 1 << 20
_READ_BYTES = 1 << 16


class RpcError(grpc.RpcError):
    """The end of a call that failed."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Any = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailers


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class Call:
    """A call: an iterator of its responses."""

    def __init__(self, channel: Channel, deadline: float | None) -> None:
        self._channel = channel
        self.changed = channel.changed
        self.deadline = deadline
        self.messages: deque[bytes] = deque()
        self._data = bytearray()
        self._headers: dict[str, str] = {}
        self.connection: Connection | None = None
        self.stream = 0
        self.status: RpcError | None = None
        self.unread = 0
        """What has arrived and was not taken, in bytes."""

    def receive(self, data: bytes) -> None:
        """Put responses together."""
        self._data += data
        while len(self._data) >= _PREFIX.size:
            _, nbytes = _PREFIX.unpack_from(self._data)
            if len(self._data) < _PREFIX.size + nbytes:
                break
            self.messages.append(bytes(self._data[_PREFIX.size : _PREFIX.size + nbytes]))
            del self._data[: _PREFIX.size + nbytes]
        self.changed.notify_all()

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Take headers and trailers."""
        self._headers.update(headers)

    def end(self) -> None:
        """Take the end of the stream."""
        code = self._headers.get("grpc-status")
        if code is None:
            self.fail(grpc.StatusCode.UNKNOWN, "the stream ended without a status")
            return
        self.fail(_CODES[int(code)], unquote(self._headers.get("grpc-message", "")))

    def fail(self, code: grpc.StatusCode, details: str) -> None:
        """End the call."""
        if self.status is None:
            trailers = [(name, value) for name, value in self._headers.items()]
            self.status = RpcError(code, details, trailers)
            self.changed.notify_all()

    def cancel(self) -> bool:
        """Cancel the call."""
        if self.status is not None:
            return False
        self.fail(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        if self.connection is not None:
            self.connection.reset(self)
        return True

    def code(self) -> grpc.StatusCode:
        return self._wait_status().code()

    def details(self) -> str:
        return self._wait_status().details()

    def trailing_metadata(self) -> Any:
        return self._wait_status().trailing_metadata()

    def _wait_status(self) -> RpcError:
        with self.changed:
            while self.status is None:
                self._wait()
        return self.status

    def _wait(self) -> None:
        world = World.current
        if self.deadline is not None and world.now >= self.deadline:
            self.fail(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
            if self.connection is not None:
                self.connection.reset(self)
            return
        self.changed.wait(None if self.deadline is None else self.deadline - world.now)

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> bytes:
        with self.changed:
            while not self.messages:
                if self.status is not None:
                    if self.status.code() is grpc.StatusCode.OK:
                        raise StopIteration
                    raise self.status
                self._wait()
            message = self.messages.popleft()
        if self.connection is not None:
            self.connection.acknowledge(self, len(message) + _PREFIX.size)
        return message


class Connection:
    """An HTTP/2 connection. A thread of it receives."""

    def __init__(self, channel: Channel, sock: Socket) -> None:
        self._channel = channel
        self._socket = sock
        config = h2.config.H2Configuration(header_encoding="utf-8")
        self._h2 = h2.connection.H2Connection(config)
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={codes.INITIAL_WINDOW_SIZE: _WINDOW}
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._calls: dict[int, Call] = {}
        self._unsent = bytearray()
        self.is_dead = self.is_going_away = False
        self.has_settings = False
        self.failure = "Socket closed"
        self._is_blocked = False
        self._thread = Thread(target=self._run, name="grpc", process=channel.process)
        self._thread.start()
        self._flush()

    def begin(self, call: Call, path: str, metadata: Any) -> None:
        """Send the headers of a call."""
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "simulated"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if call.deadline is not None:
            left = max(call.deadline - World.current.now, 0.001)
            headers.append(("grpc-timeout", f"{int(left * 1000) + 1}m"))
        call.stream = self._h2.get_next_available_stream_id()
        call.connection = self
        self._calls[call.stream] = call
        self._h2.send_headers(call.stream, [*headers, *metadata])
        self._flush()

    def send(self, call: Call, message: bytes | None) -> bool:
        """Send a request, or the end of the requests; return False if the call has ended."""
        data = b"" if message is None else _PREFIX.pack(0, len(message)) + message
        if message is None:
            if self.is_dead or call.status is not None:
                return False
            self._h2.end_stream(call.stream)
            self._flush()
            return True
        while data:
            if self.is_dead or call.status is not None:
                return False
            window = self._h2.local_flow_control_window(call.stream)
            size = min(window, len(data), self._h2.max_outbound_frame_size)
            if size <= 0 or len(self._unsent) > _READ_BYTES:
                with call.changed:
                    call.changed.wait(1.0)
                continue
            self._h2.send_data(call.stream, data[:size])
            data = data[size:]
            self._flush()
        return True

    def reset(self, call: Call) -> None:
        """Cancel a stream. Nobody reads what has arrived of it."""
        self.acknowledge(call, call.unread)
        if self._calls.pop(call.stream, None) is not None and not self.is_dead:
            try:
                self._h2.reset_stream(call.stream, 8)
            except h2.exceptions.ProtocolError:
                return
            self._flush()

    def acknowledge(self, call: Call, nbytes: int) -> None:
        """Let the server send more."""
        call.unread -= nbytes
        if not self.is_dead and nbytes:
            try:
                self._h2.acknowledge_received_data(nbytes, call.stream)
            except (h2.exceptions.ProtocolError, ValueError):
                return
            self._flush()

    def close(self, reason: str) -> None:
        """Close the connection, and end its calls."""
        if self.is_dead:
            return
        self.is_dead, self.failure = True, reason
        self._socket.close()
        for call in list(self._calls.values()):
            call.fail(grpc.StatusCode.UNAVAILABLE, reason)
        self._calls.clear()
        self._channel.changed.notify_all()

    def _flush(self) -> None:
        self._unsent += self._h2.data_to_send()
        try:
            while self._unsent:
                sent = self._socket.send(bytes(self._unsent))
                del self._unsent[:sent]
        except BlockingIOError:
            if not self._is_blocked:  # the thread has to wait for room as well
                self._is_blocked = True
                World.current.wake(self._thread)
            return
        except OSError as error:
            self.close(error.strerror or "Socket closed")
        self._is_blocked = False

    def _run(self) -> None:
        world = World.current
        heard, pinged = world.now, None
        while not self.is_dead:
            since = heard + _PING_SECONDS if pinged is None else pinged + _PING_TIMEOUT_SECONDS
            wanted = _READ | (_WRITE if self._unsent else 0)
            found = wait_for_descriptors(
                {self._socket.fileno(): wanted},
                since - world.now,
                lambda wanted=wanted: self._is_blocked and not wanted & _WRITE,
            )
            if self.is_dead:
                return
            if not found:
                if world.now < since:
                    continue
                if pinged is not None:
                    self.close("keepalive watchdog timeout")
                    return
                pinged = world.now
                self._h2.ping(bytes(8))
                self._flush()
                continue
            if self._unsent:
                self._flush()
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                self.close(os.strerror(error.errno or 0))
                return
            if not data:
                self.close("Socket closed")
                return
            heard, pinged = world.now, None
            try:
                events = self._h2.receive_data(data)
            except h2.exceptions.ProtocolError as error:
                self.close(f"Socket closed: {error}")
                return
            for event in events:
                self._handle(event)
            self._flush()
            self._channel.changed.notify_all()

    def _handle(self, event: h2.events.Event) -> None:
        call: Any = self._calls.get(getattr(event, "stream_id", None) or -1)
        if isinstance(event, h2.events.RemoteSettingsChanged):
            self.has_settings = True
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.is_going_away = True
            last = event.last_stream_id or 0
            for stream, each in list(self._calls.items()):
                if stream > last:
                    del self._calls[stream]
                    each.fail(grpc.StatusCode.UNAVAILABLE, "GOAWAY received")
            if not self._calls:
                self.close("GOAWAY received")
        elif isinstance(event, h2.events.DataReceived):
            padding = (event.flow_controlled_length or 0) - len(event.data or b"")
            if call is None:
                self._h2.acknowledge_received_data(
                    event.flow_controlled_length or 0, event.stream_id
                )
            else:
                call.unread += len(event.data or b"")
                call.receive(event.data or b"")
                if padding:
                    self._h2.acknowledge_received_data(padding, event.stream_id)
        elif call is None:
            return
        elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
            fields: Any = event.headers
            call.add_headers(dict(fields))
        elif isinstance(event, h2.events.StreamEnded):
            self._calls.pop(call.stream, None)
            call.end()
        elif isinstance(event, h2.events.StreamReset):
            self._calls.pop(call.stream, None)
            call.fail(grpc.StatusCode.UNAVAILABLE, f"RST_STREAM with error code {event.error_code}")
        if self.is_going_away and not self._calls:
            self.close("GOAWAY received")


class Channel:
    """A channel, with the interface of `grpc.Channel`."""

    def __init__(self, host: str, port: int, connect_seconds: float) -> None:
        thread = World.current.thread
        assert thread is not None
        self.process = thread.process
        self._address = (host, port)
        self._seconds = connect_seconds
        self._lock = Lock()
        self._connection: Connection | None = None
        self._is_closed = False
        self.changed = Condition(Lock())

    def unary_unary(self, path: str) -> Callable[..., bytes]:
        def call(message: bytes, timeout: float | None = None, metadata: Any = ()) -> bytes:
            responses = list(self._call(path, iter([message]), timeout, metadata, False))
            return responses[0]

        return call

    def unary_stream(self, path: str) -> Callable[..., Call]:
        def call(
            message: bytes,
            timeout: float | None = None,
            metadata: Any = (),
            wait_for_ready: bool = False,
        ) -> Call:
            return self._call(path, iter([message]), timeout, metadata, wait_for_ready)

        return call

    def stream_stream(self, path: str) -> Callable[..., Call]:
        def call(
            messages: Iterator[bytes], timeout: float | None = None, metadata: Any = ()
        ) -> Call:
            return self._call(path, messages, timeout, metadata, False)

        return call

    def _call(
        self,
        path: str,
        messages: Iterator[bytes],
        timeout: float | None,
        metadata: Any,
        waits: bool,
    ) -> Call:
        world = World.current
        call = Call(self, None if timeout is None else world.now + timeout)
        metadata = [(name.lower(), str(value)) for name, value in metadata]

        def send() -> None:
            try:
                connection = self._connect(call, waits)
            except RpcError as error:
                call.fail(error.code(), error.details())
                return
            if call.status is not None:
                return
            connection.begin(call, path, metadata)
            for message in messages:
                if not connection.send(call, message):
                    return
            connection.send(call, None)

        Thread(target=send, name="call", process=self.process).start()
        return call

    def _connect(self, call: Call, waits: bool) -> Connection:
        with self._lock:
            while True:
                connection = self._connection
                if connection is not None and not (connection.is_dead or connection.is_going_away):
                    return connection
                if self._is_closed:
                    raise RpcError(grpc.StatusCode.CANCELLED, "Channel closed!")
                try:
                    self._connection = self._open()
                except OSError as error:
                    reason = (
                        error.strerror or "connection attempt timed out before receiving SETTINGS"
                    )
                    late = call.deadline is not None and World.current.now >= call.deadline
                    if not waits or late or call.status is not None:
                        host, port = self._address
                        raise RpcError(
                            grpc.StatusCode.UNAVAILABLE,
                            "failed to connect to all addresses; last error: UNKNOWN: "
                            f"ipv4:{host}:{port}: Failed to connect to remote host: {reason}",
                        ) from None
                    World.current.sleep(0.1)

    def _open(self) -> Connection:
        end = World.current.now + self._seconds
        sock = Socket()
        sock.settimeout(self._seconds)
        try:
            sock.connect(self._address)
        except BaseException:
            sock.close()
            raise
        sock.setblocking(False)
        milliseconds = int(_PING_TIMEOUT_SECONDS * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        connection = Connection(self, sock)
        with self.changed:
            while not connection.has_settings and not connection.is_dead:
                if World.current.now >= end:
                    connection.close("timed out")
                    raise TimeoutError
                self.changed.wait(end - World.current.now)
        if connection.is_dead:
            raise ConnectionError(0, connection.failure)
        return connection

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            connection = self._connection
            for call in list(connection._calls.values()):
                call.fail(grpc.StatusCode.CANCELLED, "Channel closed!")
            connection.close("Channel closed!")
