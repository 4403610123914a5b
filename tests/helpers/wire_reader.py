"""A reader that implements docs/wire.md with sockets and struct, without splitarrow or Arrow.

Of an Arrow message it reads only what the page describes: whether the message has a body.
"""

from __future__ import annotations

import select
import socket
import struct

PREFACE = b"SPLTARW\x01"
HEADER = struct.Struct("<QQQ")
UNTAGGED, TAGGED = 0, 1
END_OF_STREAM, MESSAGE, FAILED, VORTEX = 0, 1, 2, 3
PACKED = 0
SEQUENCE_MASK = 0x0000_0000_FFFF_FFFF
RESERVED_MASK = 0x00FF_FFFF_0000_0000
SCHEMA = 1

Pair = tuple[bytes, bytes | None]
"""The metadata of a message and its body. The body of a schema is None."""


class WireError(Exception):
    """The server violated the protocol or reported a failure."""


def parse_uri(uri: str) -> tuple[str, int, dict[str, str]]:
    """Return host, port and parameters of a ``tcp`` URI."""
    scheme, _, rest = uri.partition("://")
    if scheme != "tcp":
        raise ValueError(f"not a tcp URI: {uri}")
    address, _, query = rest.partition("?")
    host, _, port = address.rpartition(":")
    parameters = dict(pair.split("=", 1) for pair in query.split("&") if "=" in pair)
    return host.strip("[]"), int(port), parameters


def decode_percent(text: str) -> bytes:
    head, *escaped = text.encode().split(b"%")
    return head + b"".join(bytes([int(part[:2], 16)]) + part[2:] for part in escaped)


def tagged_frame(tag: int, payload: bytes) -> bytes:
    return HEADER.pack(TAGGED, len(payload), tag) + payload


class Connection:
    """One connection: its preface, its request and any message before it, its frames."""

    def __init__(self, uri: str, timeout: float, before: tuple[int, bytes] | None = None) -> None:
        host, port, parameters = parse_uri(uri)
        want_data = int(parameters["want_data"], 0)
        ticket = decode_percent(parameters["ticket"])
        self.stream = parameters.get("stream", "both")
        self.socket = socket.create_connection((host, port), timeout=timeout)
        first = b"" if before is None else tagged_frame(*before)
        self.socket.sendall(PREFACE + first + tagged_frame(want_data, ticket))
        self.pending = bytearray()
        self.preface_due = True

    def receive(self) -> list[tuple[int | None, bytes]]:
        """Return the frames that are complete; the tag of an untagged frame is None."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise WireError("the server closed the connection before the end of the stream")
        self.pending += data
        frames: list[tuple[int | None, bytes]] = []
        if self.preface_due and len(self.pending) >= len(PREFACE):
            if not self.pending.startswith(PREFACE):
                raise WireError(f"another preface: {bytes(self.pending[:8])!r}")
            del self.pending[: len(PREFACE)]
            self.preface_due = False
        while not self.preface_due and len(self.pending) >= HEADER.size:
            kind, length, tag = HEADER.unpack_from(self.pending)
            if kind not in (UNTAGGED, TAGGED) or (kind == UNTAGGED and tag):
                raise WireError(f"a header that cannot be: {kind:#x} {length} {tag:#x}")
            end = HEADER.size + length
            if len(self.pending) < end:
                break
            payload = bytes(self.pending[HEADER.size : end])
            frames.append((tag if kind == TAGGED else None, payload))
            del self.pending[:end]
        return frames


def header_type(metadata: bytes) -> int:
    """Return the type of an Arrow message: field 1 of the FlatBuffers table Message."""
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    (place,) = struct.unpack_from("<H", metadata, table - back + 6)
    return metadata[table + place]


class Stream:
    """The two halves of the messages, and the end."""

    def __init__(self) -> None:
        self.metadata: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.vortex: dict[int, bool] = {}
        self.count: int | None = None

    def take_metadata(self, payload: bytes) -> None:
        kind, sequence = struct.unpack_from("<BI", payload)
        if kind == END_OF_STREAM:
            if len(payload) != 5:
                raise WireError(f"an end of stream of {len(payload)} bytes")
            self.count = sequence
        elif kind in (MESSAGE, VORTEX):
            self.metadata[sequence] = payload[5:]
            self.vortex[sequence] = kind == VORTEX
        elif kind == FAILED:
            raise WireError(payload[5:].decode())
        else:
            raise WireError(f"metadata type {kind}")

    def take_body(self, tag: int, payload: bytes) -> None:
        if tag & RESERVED_MASK or tag >> 56 != PACKED:
            raise WireError(f"tag {tag:#018x}")
        self.bodies[tag & SEQUENCE_MASK] = payload

    def messages(self) -> list[Pair] | None:
        """Return all messages once the end is proven, None before."""
        if self.count is None or any(n not in self.metadata for n in range(self.count)):
            return None
        pairs: list[Pair] = []
        for sequence in range(self.count):
            metadata = self.metadata[sequence]
            if not self.vortex[sequence] and header_type(metadata) == SCHEMA:
                pairs.append((metadata, None))
            elif sequence in self.bodies:
                pairs.append((metadata, self.bodies[sequence]))
            else:
                return None
        return pairs


def read(*uris: str, timeout: float = 20.0, before: tuple[int, bytes] | None = None) -> list[Pair]:
    """Read a whole stream from one URI, or from a pair of them.

    `before` is the tag and the payload of a message to send before the request.

    Raises
    ------
    WireError
        If the server violated the protocol or reported a failure.
    """
    connections = [Connection(uri, timeout, before) for uri in uris]
    stream = Stream()
    try:
        while (pairs := stream.messages()) is None:
            readable, _, _ = select.select([c.socket for c in connections], [], [], timeout)
            if not readable:
                raise WireError("the server is silent")
            for connection in connections:
                if connection.socket not in readable:
                    continue
                for tag, payload in connection.receive():
                    if tag is None:
                        stream.take_metadata(payload)
                    else:
                        stream.take_body(tag, payload)
        return pairs
    finally:
        for connection in connections:
            connection.socket.close()


def ipc_stream(pairs: list[Pair]) -> bytes:
    """Return the Arrow IPC stream of the messages."""
    parts: list[bytes] = []
    for metadata, body in pairs:
        padding = bytes(-len(metadata) % 8)
        length = struct.pack("<I", len(metadata) + len(padding))
        parts += [b"\xff\xff\xff\xff", length, metadata, padding, body or b""]
    return b"".join([*parts, b"\xff\xff\xff\xff", bytes(4)])
