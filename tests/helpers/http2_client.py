"""A client of HTTP/2 that can break every rule of it, for one connection."""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

FLIGHT = "/arrow.flight.protocol.FlightService"
HEALTH = "/grpc.health.v1.Health"
DATA, HEADERS, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 4, 6, 7, 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes((kind, flags))
    return head + struct.pack(">I", stream) + payload


def message(data: bytes, *, compressed: bool = False) -> bytes:
    return bytes((compressed,)) + struct.pack(">I", len(data)) + data


class Http2Client:
    """A connection. `data` and `headers` have what each stream has received."""

    def __init__(self, port: int, receive_buffer: int = 0, **settings: int) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        codes = h2.settings.SettingCodes
        initial: Any = {getattr(codes, name): value for name, value in settings.items()}
        self.h2.local_settings = h2.settings.Settings(client=True, initial_values=initial)
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.h2.initiate_connection()
        self.flush()
        self.data: dict[int, bytearray] = defaultdict(bytearray)
        self.headers: dict[int, dict[str, str]] = defaultdict(dict)
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.error: int | None = None
        """The code of the GOAWAY frame."""
        self.is_closed = False

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.h2.data_to_send())

    def send(self, data: bytes) -> None:
        """Send bytes that h2 does not know about."""
        self.socket.sendall(data)

    def flood(self, data: bytes) -> None:
        """Send bytes until the server takes no more."""
        for _ in range(1 << 20):
            self.socket.sendall(data)

    def begin(self, path: str, **headers: str) -> int:
        """Send the headers of a call; return its stream."""
        stream = self.h2.get_next_available_stream_id()
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        self.h2.send_headers(stream, list(fields.items()))
        self.flush()
        return stream

    def call(self, path: str, request: bytes, **headers: str) -> int:
        """Call a method with one request; return its stream."""
        stream = self.begin(path, **headers)
        self.h2.send_data(stream, message(request), end_stream=True)
        self.flush()
        return stream

    def receive(self, *, grants: bool = True) -> list[h2.events.Event]:
        """Take what arrives next. `grants` lets the server send more."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self.is_closed = True
            return []
        events = self.h2.receive_data(data)
        for event in events:
            stream: Any = getattr(event, "stream_id", None)
            if isinstance(event, h2.events.DataReceived):
                self.data[stream] += event.data
                if grants and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                fields: Any = event.headers
                self.headers[stream].update(dict(fields))
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, h2.events.StreamReset):
                self.reset[stream] = int(event.error_code)
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.error = int(event.error_code or 0)
        if not self.is_closed:
            try:
                self.flush()
            except ConnectionError:
                self.is_closed = True
        return events

    def finish(self, stream: int) -> dict[str, str]:
        """Receive the rest of a stream; return its headers and trailers."""
        while stream not in self.ended and stream not in self.reset and not self.is_closed:
            self.receive()
        return self.headers[stream]

    def wait_closed(self) -> int | None:
        """Receive until the server closes the connection; return the code that it gave."""
        while not self.is_closed:
            try:
                self.receive()
            except h2.exceptions.ProtocolError:  # it continues after GOAWAY
                self.is_closed = True
        return self.error
