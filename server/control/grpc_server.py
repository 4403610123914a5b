"""A gRPC server over HTTP/2: its port, its connections, and its calls.

It follows gRPC's protocol over HTTP/2 (PROTOCOL-HTTP2.md). It is a server of its own because
grpcio's copies every message twice, and wakes a thread for each.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import re
import socket
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NoReturn
from urllib.parse import quote

import anyio
import pyarrow as pa
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from ...protocol.uri import DataUri
from ...transport.base import ListenOptions
from ...transport.credential_files import Reloadable
from ...transport.proxy_protocol import Network
from ...transport.tcp import TcpListener
from ..addresses import parse_address
from ..logs import get_logger
from ..usage import KeyedCounter
from .http2 import FIRST_WINDOW, WINDOW, Connection, Headers, Stream


class StatusCode(IntEnum):
    """The statuses of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_MAX_REQUEST_BYTES = 4 << 20
"""The largest request of a method that reads one. Anybody may send it."""
PREFIX_BYTES = 5
"""The size of what precedes a message: whether it is compressed, and its size in bytes."""
_STAGING_BYTES = 256 << 10
_MAX_ACCEPTED = 64
"""The connections that are accepted before the event loop does something else."""
_KEEP_ALIVE_SECONDS, _ANSWER_SECONDS = 30.0, 20.0
_SWEEP_SECONDS = 1.0
_PAUSE_SECONDS = 1.0
"""The time without new connections after the process ran out of descriptors."""
_UNSENT_SECONDS = 0.02
"""The time between two looks for data that clients have not received yet."""
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])\Z")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TEXT = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_RESPONSE: Headers = (
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
)
_WINDOW_BITS = {"gzip": 31, "deflate": 15}


def pack_prefix(nbytes: int) -> bytes:
    """Return what precedes a message of a size."""
    return b"\0" + nbytes.to_bytes(4, "big")


class Aborted(Exception):
    """Ends a call with a status."""

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Method:
    """A method of a service.

    `serve` reads the request from the call, or several. It returns the response, or None if it has
    written several to the call.
    """

    __slots__ = ("reads_one", "serve")

    def __init__(
        self, serve: Callable[[ServerCall], Awaitable[bytes | None]], *, reads_one: bool
    ) -> None:
        self.serve = serve
        self.reads_one = reads_one


class ServerCall:
    """One call of a client, which the task of its method reads from and writes to."""

    def __init__(
        self,
        stream: Stream,
        peer: str,
        metadata: Mapping[str, str],
        max_bytes: int,
        request_seconds: float,
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._request_seconds = request_seconds
        self._scope = anyio.CancelScope()
        self._status: Aborted | None = None
        self._trailers: Headers = ()
        self._has_sent_headers = self._is_lost = self._has_ended = False
        # What the client sends.
        self._messages = deque[tuple[memoryview, bool]]()
        """What has arrived, and whether it is compressed."""
        self._waiting_bytes = 0
        self._prefix = bytearray()
        self._message: memoryview | None = None
        self._filled = 0
        self._is_complete = False
        """Whether the client has sent everything."""
        self._arrived: asyncio.Future[None] | None = None
        self._has_read = False

    # What methods use

    def peer(self) -> str:
        """Return the client's address as gRPC writes it: ``ipv4:192.0.2.7:1001``."""
        return self._peer

    def invocation_metadata(self) -> Mapping[str, str]:
        """Return the headers of the call. Binary ones are decoded, one character for each byte."""
        return self._metadata

    def done(self) -> bool:
        """Return whether the client has cancelled the call or disconnected."""
        return self._is_lost

    async def read(self) -> memoryview | None:
        """Return the next message, or None after the last one, which the client has confirmed."""
        while not self._messages and not self._is_complete:
            self._arrived = asyncio.get_running_loop().create_future()
            self._grant()
            await self._arrived
        message = self._take()
        if self._status is not None:
            await checkpoint()  # the call is cancelled
        return message

    async def read_request(self) -> bytes:
        """Return the only message. End the call if it does not arrive in time."""
        request = None
        with anyio.move_on_after(self._request_seconds) as scope:
            request = await self.read()
        if scope.cancelled_caught:
            text = f"the client sent no request for {self._request_seconds:g} s"
            raise Aborted(StatusCode.UNAVAILABLE, text)
        if request is None:
            raise Aborted(StatusCode.INVALID_ARGUMENT, "the call has no request")
        return bytes(request)

    def read_ready(self) -> memoryview | None:
        """Return the next message if it has arrived."""
        message = self._take()
        if message is not None:
            self._grant()
        return message

    def _take(self) -> memoryview | None:
        if not self._messages:
            return None
        self._has_read = True
        message, is_compressed = self._messages.popleft()
        self._waiting_bytes -= PREFIX_BYTES + len(message)
        return self._decompress(message) if is_compressed else message

    async def write(self, message: bytes) -> None:
        """Send a message. Return when the kernel has it."""
        await self.send(deque([pack_prefix(len(message)), message]))

    async def send(self, buffers: deque[Any]) -> None:
        """Send messages with their prefixes, and remove them from `buffers`."""
        self.send_initial_metadata()
        await self._stream.send(buffers)

    def send_initial_metadata(self, headers: Headers = ()) -> None:
        """Send the headers of the response, unless they are sent."""
        if not self._has_sent_headers:
            self._has_sent_headers = True
            self._stream.send_headers((*_RESPONSE, *headers))

    def set_trailing_metadata(self, trailers: Headers) -> None:
        """Set headers that follow the response."""
        self._trailers = trailers

    async def abort(self, code: StatusCode, text: str) -> NoReturn:
        """End the call with a status."""
        raise Aborted(code, text)

    # What the server uses

    async def run(self, method: Method) -> None:
        """Run a method to its end, and send its status."""
        status = Aborted(StatusCode.OK, "")
        try:
            with self._scope:
                response = await method.serve(self)
                if response is not None:
                    await self.write(response)
            if self._scope.cancel_called:
                status = self._status or Aborted(StatusCode.CANCELLED, "the call was cancelled")
        except Aborted as error:
            status = self._status or error
        except Exception:
            get_logger("control").exception("call failed", peer=self._peer)
            status = Aborted(StatusCode.INTERNAL, "internal error; see the server's log")
        self._end(status)

    def cancel(self, code: StatusCode, text: str) -> None:
        """End the call with a status from outside of its method."""
        self._status = self._status or Aborted(code, text)
        self._scope.cancel()

    def refuse(self, code: StatusCode, text: str) -> None:
        """End a call that no method serves."""
        self._end(Aborted(code, text))

    def _end(self, status: Aborted) -> None:
        if self._is_lost or self._has_ended:
            return
        self._has_ended = True
        text = quote(status.text, safe=_TEXT, encoding="utf-8", errors="replace")
        message = (("grpc-message", text),) if text else ()
        head = () if self._has_sent_headers else _RESPONSE
        code = ("grpc-status", str(int(status.code)))
        self._stream.send_headers((*head, code, *message, *self._trailers), end=True)

    # What the connection uses

    def receive(self, data: memoryview) -> None:
        """Put what the client sends together to messages."""
        while data and self._status is None:
            if self._message is None:
                missing = PREFIX_BYTES - len(self._prefix)
                self._prefix += data[:missing]
                data = data[missing:]
                if len(self._prefix) == PREFIX_BYTES:
                    self._begin_message()
            else:
                part = data[: len(self._message) - self._filled]
                self._message[self._filled : self._filled + len(part)] = part
                self._filled += len(part)
                data = data[len(part) :]
            if self._message is not None and self._filled == len(self._message):
                self._end_message()
        if self._arrived is not None:
            self._grant()

    def _begin_message(self) -> None:
        nbytes = int.from_bytes(self._prefix[1:], "big")
        if nbytes > self._max_bytes:
            self.cancel(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {nbytes} bytes; the limit is {self._max_bytes}",
            )
            return
        try:
            buffer: Any = pa.allocate_buffer(nbytes)  # from a pool, and not cleared
        except MemoryError:
            text = f"the server has no memory for a message of {nbytes} bytes"
            self.cancel(StatusCode.RESOURCE_EXHAUSTED, text)
            return
        self._message, self._filled = memoryview(buffer).cast("B"), 0

    def _end_message(self) -> None:
        message, self._message = self._message, None
        assert message is not None
        self._messages.append((message, bool(self._prefix[0])))
        self._waiting_bytes += PREFIX_BYTES + len(message)
        self._prefix = bytearray()
        self._wake()

    def _decompress(self, message: memoryview) -> memoryview | None:
        """Decompress a message that is read. Those that wait may be a thousand times as large."""
        encoding = self._metadata.get("grpc-encoding", "identity")
        bits = _WINDOW_BITS.get(encoding)
        if bits is None:
            self.cancel(StatusCode.UNIMPLEMENTED, f"no compression {encoding[:40]!r}")
            return None
        decoder = zlib.decompressobj(bits)
        try:
            decoded = decoder.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            self.cancel(StatusCode.INTERNAL, f"the message is not valid {encoding}: {error}")
            return None
        if len(decoded) > self._max_bytes:
            self.cancel(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the decompressed message exceeds the limit of {self._max_bytes} bytes",
            )
            return None
        if message and not decoder.eof:
            self.cancel(StatusCode.INTERNAL, f"the message is not complete {encoding}")
            return None
        return memoryview(decoded)

    def _grant(self) -> None:
        """Let a client whose messages are being read send more."""
        target = WINDOW if self._has_read else FIRST_WINDOW
        missing = target - self._stream.window - self._waiting_bytes
        if missing >= target // 2:
            self._stream.grant(missing)

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    def end(self) -> None:
        """Learn that the client has sent everything."""
        if self._message is not None or self._prefix:
            self.cancel(StatusCode.INVALID_ARGUMENT, "the call ends within a message")
        elif self._status is None:
            self._is_complete = True
            self._wake()

    def lose(self) -> None:
        """Learn that the client has cancelled the call, or disconnected."""
        if not self._has_ended:
            self._is_lost = True
            self._scope.cancel()


class GrpcServer:
    """Serves `methods`, the methods of gRPC services by their paths."""

    def __init__(
        self,
        uri: DataUri,
        *,
        tls: Reloadable[Any] | None,
        proxies: tuple[Network, ...],
        max_message_bytes: int,
        max_calls: int,
        max_connections: int,
        get_max_per_address: Callable[[], float],
        handshake_seconds: float,
        idle_seconds: float,
    ) -> None:
        self.methods: dict[str, Method] = {}
        options = ListenOptions(proxies=proxies, handshake_seconds=handshake_seconds)
        self._listener = _Listener(uri.replace(host=uri.host or "::"), options)
        self.uri = uri.replace(port=self._listener.uri.port)
        self._tls = tls
        self._max_message_bytes = max_message_bytes
        self._max_calls = max_calls
        self._max_connections = max_connections
        self._get_max_per_address = get_max_per_address
        self._handshake_seconds = handshake_seconds
        self._idle_seconds = idle_seconds
        self._staging = bytearray(_STAGING_BYTES)
        self._connections: dict[Connection, str] = {}
        self._addresses = KeyedCounter()
        self._calls = set[ServerCall]()
        self._idle = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._log = get_logger("control")

    async def run(self) -> None:
        """Accept connections and serve their calls until cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as self._tasks:
            self._listen()
            try:
                while True:
                    await anyio.sleep(min(_SWEEP_SECONDS, self._handshake_seconds / 4))
                    self._sweep(loop.time())
            finally:
                self.stop_listening()
                self._tasks = None

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def stop_listening(self) -> None:
        """Release the port. Idempotent."""
        if self._listener.fileno() >= 0:
            with contextlib.suppress(RuntimeError):  # there is no loop before `run`
                asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()

    async def stop(self, grace: float) -> None:
        """Let calls end by themselves for a time, cancel the others, and close all connections.

        Clients receive what was sent to them, if they take it within the time.
        """
        self.stop_listening()
        for connection in list(self._connections):
            connection.refuse_streams()
        with anyio.move_on_after(grace):
            await self._wait_idle()
        for call in self._calls:
            call.cancel(StatusCode.UNAVAILABLE, "the server is stopping")
        await self._wait_idle()
        with anyio.move_on_after(grace):
            await self.wait_sent()
        for connection in list(self._connections):
            connection.abort()

    async def _wait_idle(self) -> None:
        while self._calls:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def wait_sent(self) -> None:
        """Return when all clients have what was sent: closing a connection discards it."""
        while True:
            if not any(connection.count_unsent() for connection in self._connections):
                return
            await anyio.sleep(_UNSENT_SECONDS)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                accepted = self._listener.accept()
            except OSError as error:
                self._log.error("cannot accept connections", reason=error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener.fileno())
                loop.call_later(_PAUSE_SECONDS, self._listen)
                return
            if accepted is None:
                return
            sock, peer = accepted
            address = str(parse_address(peer.rpartition(":")[0]))
            limit = self._get_max_per_address()
            if len(self._connections) >= self._max_connections or not self._addresses.take(
                address, limit
            ):
                sock.close()
                continue
            sock.setblocking(False)
            tls = None if self._tls is None else self._tls.current()
            try:
                connection = Connection(
                    sock, tls, self._staging, self._make_begin(peer), self._forget
                )
            except OSError:  # the client has already disconnected
                sock.close()
                self._addresses.release(address)
                continue
            self._connections[connection] = address

    def _forget(self, connection: Connection) -> None:
        self._addresses.release(self._connections.pop(connection))

    def _sweep(self, now: float) -> None:
        """Close connections that say nothing, and ping those that have not for a while."""
        for connection in list(self._connections):
            silent = now - connection.last_heard
            if not connection.is_established:
                if now - connection.last_used > self._handshake_seconds:
                    connection.abort()
            elif silent > _KEEP_ALIVE_SECONDS + _ANSWER_SECONDS:
                connection.abort()
            elif silent > _KEEP_ALIVE_SECONDS:
                connection.ping()
            elif not connection.streams and now - connection.last_used > self._idle_seconds:
                if connection.is_closing:
                    connection.abort()
                connection.refuse_streams()  # the client may be opening one

    def _make_begin(self, peer: str) -> Callable[[Stream, list[tuple[bytes, bytes]]], ServerCall]:
        host, _, port = peer.rpartition(":")
        address = parse_address(host)
        version = 6 if address is not None and address.version == 6 else 4
        name = f"ipv6:[{address}]:{port}" if version == 6 else f"ipv4:{address}:{port}"

        def begin(stream: Stream, headers: list[tuple[bytes, bytes]]) -> ServerCall:
            return self._begin(stream, name, headers)

        return begin

    def _begin(self, stream: Stream, peer: str, headers: list[tuple[bytes, bytes]]) -> ServerCall:
        metadata = _decode_metadata(headers)
        method = self.methods.get(metadata.get(":path", ""))
        max_bytes = self._max_message_bytes
        if method is not None and method.reads_one:
            max_bytes = min(max_bytes, _MAX_REQUEST_BYTES)
        call = ServerCall(stream, peer, metadata, max_bytes, self._handshake_seconds)
        if metadata.get(":method") != "POST" or not metadata.get("content-type", "").startswith(
            "application/grpc"
        ):
            stream.send_headers(((":status", "415"),), end=True)
        elif method is None:
            call.refuse(StatusCode.UNIMPLEMENTED, "this server has no such method")
        elif self._tasks is None:
            call.refuse(StatusCode.UNAVAILABLE, "the server is stopping")
        elif len(self._calls) >= self._max_calls:
            call.refuse(StatusCode.RESOURCE_EXHAUSTED, "the server has too many concurrent calls")
        else:
            self._calls.add(call)
            self._tasks.start_soon(self._run, call, method, _parse_timeout(metadata))
        return call

    async def _run(self, call: ServerCall, method: Method, seconds: float | None) -> None:
        timer = None
        if seconds is not None:
            timer = asyncio.get_running_loop().call_later(
                seconds, call.cancel, StatusCode.DEADLINE_EXCEEDED, "the deadline has passed"
            )
        try:
            await call.run(method)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
            if timer is not None:
                timer.cancel()


class _Listener(TcpListener):
    """The port. It returns the sockets of its clients with their addresses."""

    def _make_channel(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sock: socket.socket, peer: str, *, is_local: bool
    ) -> tuple[socket.socket, str]:
        del is_local
        return sock, peer

    def accept(self) -> Any:
        """Return the next socket and its peer, or None."""
        return super().accept()


def _decode_metadata(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for key, value in headers:
        name = key.decode("latin-1")
        if name.endswith("-bin"):
            with contextlib.suppress(binascii.Error):
                value = base64.b64decode(value.partition(b",")[0] + b"==")
        metadata[name] = value.decode("latin-1")
    return metadata


def _parse_timeout(metadata: Mapping[str, str]) -> float | None:
    match = _TIMEOUT.match(metadata.get("grpc-timeout", ""))
    return None if match is None else int(match[1]) * _UNITS[match[2]]
