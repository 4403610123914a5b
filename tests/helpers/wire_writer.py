"""A server that implements docs/wire.md with sockets and struct, without splitarrow or Arrow.

It serves one Arrow IPC stream, one connection at a time, with the faults that a test selects.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType

PREFACE = b"SPLTARW\x01"
HEADER = struct.Struct("<QQQ")
UNTAGGED, TAGGED = 0, 1
END_OF_STREAM, MESSAGE, FAILED = 0, 1, 2
WANT_DATA = 0x0000_0300_0000_0001
SCHEMA = 1

Pair = tuple[bytes, bytes | None]
"""The metadata of a message and its body. The body of a schema is None."""


def table_field(metadata: bytes, slot: int) -> int:
    """Return the position of a field of the FlatBuffers table Message, 0 if it is absent."""
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    place = struct.unpack_from("<H", metadata, table - back + slot)[0] if slot < size else 0
    return table + place if place else 0


def messages_of(stream: bytes) -> list[Pair]:
    """Return the messages of an Arrow IPC stream."""
    pairs: list[Pair] = []
    position = 0
    while position < len(stream):
        marker, length = struct.unpack_from("<II", stream, position)
        if marker != 0xFFFF_FFFF or not length:
            break
        position += 8
        metadata = stream[position : position + length]
        position += length
        at = table_field(metadata, 10)
        (nbytes,) = struct.unpack_from("<q", metadata, at) if at else (0,)
        is_schema = metadata[table_field(metadata, 6)] == SCHEMA
        pairs.append((metadata, None if is_schema else stream[position : position + nbytes]))
        position += nbytes
    return pairs


@dataclass
class Manners:
    """The faults of the server."""

    order: str = "metadata first"
    """Or ``bodies first``, or ``all bodies first``, or ``backwards``."""
    repeat: int = 1
    """How often each frame is sent."""
    chunk: int | None = None
    """How many bytes go out at once; None for all."""
    cut: int | None = None
    """After how many bytes the connection is closed."""
    count: int | None = None
    """What the end of the stream counts; None for the truth."""
    end: bool = True
    """Whether the end of the stream is sent."""
    failure: tuple[str, str] | None = None
    """A code and a message that are sent in place of the end."""
    preface: bytes = PREFACE
    """What the server begins with."""
    leave_out: set[int] = field(default_factory=set[int])
    """The messages whose bodies are not sent."""
    reserved: int = 0
    """Bits that are added to each body's tag."""
    repeat_first_every: float | None = None
    """Seconds between repetitions of the first frame, which follow all frames and never end."""
    silent: bool = False
    """Whether the server stays connected and silent after the last frame."""


class Writer:
    """A server for tests, on its own thread. A context manager.

    Parameters
    ----------
    stream : bytes
        The Arrow IPC stream to serve.
    manners : Manners
        The faults.
    kind : str
        ``both``, ``metadata`` or ``body``: which of the streams it serves.
    """

    def __init__(self, stream: bytes, manners: Manners | None = None, kind: str = "both") -> None:
        self.pairs = messages_of(stream)
        self.manners = manners or Manners()
        self.kind = kind
        self.tickets: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.run)
        self.closing = threading.Event()

    @property
    def uri(self) -> str:
        port = self.listener.getsockname()[1]
        which = "" if self.kind == "both" else f"&stream={self.kind}"
        return f"tcp://127.0.0.1:{port}?want_data={WANT_DATA}{which}&ticket=a%20name"

    def frames(self) -> Iterable[bytes]:
        """Return the frames in the order in which they are sent."""
        manners = self.manners
        metadata: list[tuple[int, bytes]] = []
        bodies: list[tuple[int, bytes]] = []
        for sequence, (message, body) in enumerate(self.pairs):
            payload = struct.pack("<BI", MESSAGE, sequence) + message
            metadata.append((sequence, HEADER.pack(UNTAGGED, len(payload), 0) + payload))
            if body is not None and sequence not in manners.leave_out:
                head = HEADER.pack(TAGGED, len(body), sequence | manners.reserved)
                bodies.append((sequence, head + body))
        metadata = metadata if self.kind != "body" else []
        bodies = bodies if self.kind != "metadata" else []
        match manners.order:
            case "metadata first":
                frames = sorted(metadata + bodies, key=lambda entry: entry[0])
            case "bodies first":
                frames = sorted(bodies + metadata, key=lambda entry: entry[0])
            case "all bodies first":
                frames = bodies + metadata
            case _:
                frames = sorted(metadata + bodies, key=lambda entry: -entry[0])
        sent = [frame for _, frame in frames for _ in range(manners.repeat)]
        if self.kind == "body":
            return sent
        if manners.failure is not None:
            reason = dict(zip(("code", "message"), manners.failure, strict=True))
            end = struct.pack("<BI", FAILED, len(self.pairs)) + json.dumps(reason).encode()
        else:
            count = len(self.pairs) if manners.count is None else manners.count
            end = struct.pack("<BI", END_OF_STREAM, count)
        if manners.end:
            sent.append(HEADER.pack(UNTAGGED, len(end), 0) + end)
        return sent

    def run(self) -> None:
        while not self.closing.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self.serve(connection)
                except OSError:
                    continue

    def serve(self, connection: socket.socket) -> None:
        request = b""
        while len(request) < len(PREFACE) + HEADER.size:
            request += self.receive(connection)
        assert request.startswith(PREFACE)
        kind, length, tag = HEADER.unpack_from(request, len(PREFACE))
        assert (kind, tag) == (TAGGED, WANT_DATA)
        start = len(PREFACE) + HEADER.size
        while len(request) < start + length:
            request += self.receive(connection)
        self.tickets.append(request[start:])
        data = self.manners.preface + b"".join(self.frames())
        data = data[: self.manners.cut]
        step = self.manners.chunk or len(data) or 1
        for position in range(0, len(data), step):
            connection.sendall(data[position : position + step])
        if self.manners.repeat_first_every is not None:
            first, *_ = self.frames()
            while not self.closing.wait(self.manners.repeat_first_every):
                connection.sendall(first)
        if self.manners.cut is not None and not self.manners.silent:
            return
        while connection.recv(1 << 16):  # until the reader leaves
            pass

    @staticmethod
    def receive(connection: socket.socket) -> bytes:
        data = connection.recv(1 << 16)
        if not data:
            raise OSError("the reader left")
        return data

    def __enter__(self) -> Writer:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(20)
        assert not self.thread.is_alive()
