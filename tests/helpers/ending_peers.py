"""Readers that stop at a chosen step of a stream, and leave in a chosen way.

They implement docs/wire.md and the DoGet of Flight with their own code, so that they can do what no
client of this package does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
from enum import StrEnum
from typing import Any, Protocol

import grpc
import pyarrow as pa
from pyarrow import flight

from helpers.wire_reader import PREFACE, Stream, ipc_stream, tagged_frame
from splitarrow.protocol.frames import TaggedFrame, UntaggedFrame
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import blocking
from splitarrow.transport.base import ConnectOptions
from splitarrow.transport.registry import find_transport

HEADER = struct.Struct("<QQQ")
RESET = struct.pack("ii", True, 0)
UNKNOWN_TAG = 1 << 33
PATIENCE = 30.0
BUFFER_BYTES = 64 << 10
"""What the host of a reader receives for it."""


class Step(StrEnum):
    """Where a reader stops."""

    CONNECTED = "connected"
    REQUESTED = "requested"
    """The request is sent, and nothing is received."""
    WITHIN = "within a frame"
    BETWEEN = "between batches"
    LEASED = "leased"
    """Everything is received, and no lease is freed."""
    ENDED = "ended"
    """Everything is received, and all leases are freed."""


class Way(StrEnum):
    """How a stream ends."""

    FIN = "fin"
    RESET = "reset"
    KILL = "kill"
    """The reader's process is killed by SIGKILL."""
    VIOLATION = "violation"
    """The reader sends a tag that does not exist."""
    MALFORMED = "malformed"
    """The reader sends a frame header that cannot be."""
    CUT = "cut"
    """The reader leaves in the middle of a frame that it sends."""
    SURPLUS = "surplus"
    """The reader frees more offsets that it does not hold than the server tolerates."""
    CANCEL = "cancel"
    """An operator cancels the stream."""
    REMOVE = "remove"
    """A reload removes the dataset, and the reader leaves then."""
    TRUNCATE = "truncate"
    """The file becomes shorter, and the reader goes on."""
    STALL = "stall"
    """The reader takes nothing, until the server disconnects it."""


class Peer(Protocol):
    """A reader of one stream, on a connection of its own."""

    def advance(self, step: Step) -> None:
        """Go on to a step."""
        ...

    def leave(self, way: Way) -> None:
        """Do what makes the server end the stream. Keep the connection if the server ends it."""
        ...

    def finish(self) -> pa.Table | None:
        """Take all that still arrives, and return the rows of all complete batches.

        None if they are not packed in Arrow.
        """
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...


class WirePeer:
    """A reader over TCP, TLS or shared memory."""

    def __init__(self, uri: DataUri, ticket: bytes, source_address: str = "127.0.0.1") -> None:
        self._uri, self._ticket = uri, ticket
        self._stream = Stream()
        self._offsets: list[int] = []
        self._descriptors: list[int] = []
        self._begun = bytearray()
        """The part of a frame that was received."""
        self._is_local = uri.scheme == "shm"
        if self._is_local:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(uri.path)
        else:
            self.socket = socket.socket()
            # Without this, the kernel takes more and more of a stream for a reader that stops.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self.socket.bind((source_address, 0))
            self.socket.connect((uri.host, uri.port or 0))
        self.socket.settimeout(PATIENCE)
        if uri.scheme == "tcp+tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)
        self.socket.sendall(PREFACE)

    def advance(self, step: Step) -> None:
        """Go on to a step."""
        if step is Step.CONNECTED:
            return
        self.socket.sendall(tagged_frame(self._uri.require_want_data(), self._ticket))
        if step is Step.REQUESTED:
            return
        assert self._take(len(PREFACE)) == PREFACE
        if step in (Step.WITHIN, Step.BETWEEN):
            for _ in range(2 if step is Step.WITHIN else 3):
                self._take_frame()
            if step is Step.WITHIN:
                header = self._take(HEADER.size)
                begun = self._take(max(1, HEADER.unpack(header)[1] // 2))
                self._begun += header + begun
            return
        while self._stream.count is None:
            self._take_frame()
        if step is Step.ENDED:
            self.free_all()

    @property
    def is_complete(self) -> bool:
        """Whether the end of the stream was received."""
        return self._stream.count is not None

    def free_all(self) -> None:
        """Free all leases."""
        if self._offsets:
            self.free(self._offsets)

    def leave(self, way: Way) -> None:
        """See `Peer`."""
        self._unmap()
        match way:
            case Way.FIN:
                self.socket.shutdown(socket.SHUT_WR)
            case Way.RESET:
                self.reset()
            case Way.VIOLATION:
                self.socket.sendall(tagged_frame(UNKNOWN_TAG, b""))
            case Way.MALFORMED:
                self.socket.sendall(b"\x09" + bytes(HEADER.size - 1))
            case Way.CUT:
                self.socket.sendall(tagged_frame(self._uri.require_want_data(), bytes(100))[:50])
                self.socket.shutdown(socket.SHUT_WR)
            case Way.SURPLUS:
                self.free([1] * 1001)
            case _:
                raise AssertionError(way)

    def reset(self) -> None:
        """Reset the connection."""
        if not self._is_local:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.close()

    def hand_over(self) -> subprocess.Popen[bytes]:
        """Start a process that has the connection, and whatever came over it, as the only one."""
        held = [self.socket.fileno(), *self._descriptors]
        process = subprocess.Popen(["sleep", "600"], pass_fds=held)
        self.close()
        return process

    def finish(self) -> pa.Table | None:
        """See `Peer`."""
        try:
            if not self._stream.metadata:
                self._take(len(PREFACE))
            while self._stream.count is None:
                self._take_frame()
        except (EOFError, ConnectionError):
            pass
        if self._uri.scheme == "shm":
            return None
        stream, pairs = self._stream, list[Any]()
        for sequence, metadata in stream.metadata.items():
            if sequence and sequence not in stream.bodies:
                break
            pairs.append((metadata, stream.bodies.get(sequence)))
        if not pairs or any(stream.vortex.values()):
            return None
        with pa.ipc.open_stream(ipc_stream(pairs)) as reader:
            return reader.read_all()

    def close(self) -> None:
        """See `Peer`."""
        self.socket.close()
        self._unmap()

    def _unmap(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def free(self, offsets: list[int]) -> None:
        """Free one delivery of each offset."""
        assert self._uri.free_data is not None
        payload = struct.pack(f"<{len(offsets)}Q", *offsets)
        self.socket.sendall(tagged_frame(self._uri.free_data, payload))

    def _take(self, nbytes: int) -> bytes:
        """Return the next bytes; raise EOFError at the end of the connection."""
        data, self._begun = self._begun, bytearray()
        while len(data) < nbytes:
            if self._is_local:
                part, descriptors, _, _ = socket.recv_fds(self.socket, nbytes - len(data), 16)
                self._descriptors += descriptors
            else:
                part = self.socket.recv(nbytes - len(data))
            if not part:
                raise EOFError
            data += part
        self._begun += data[nbytes:]
        return bytes(data[:nbytes])

    def _take_frame(self) -> None:
        kind, length, tag = HEADER.unpack(self._take(HEADER.size))
        payload = self._take(length)
        if not kind:
            if payload[0] == 2:
                raise EOFError  # the server reports a failure: nothing follows
            self._stream.take_metadata(payload)
        elif tag >> 56 == 1:
            numbers = struct.unpack(f"<{length // 8}Q", payload)
            spans = zip(numbers[2::2], numbers[3::2], strict=True)
            self._offsets += [offset for offset, nbytes in spans if nbytes]
        elif tag >> 56 == 0 and not tag >> 32:
            if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise ConnectionResetError  # the file may have changed since: discard the body
            self._stream.take_body(tag, payload)
        else:
            assert tag == self._uri.want_data, f"tag {tag:#x}"  # the announcement of a region


class UcxPeer:
    """A reader over UCX."""

    def __init__(self, uri: DataUri, ticket: bytes) -> None:
        self._uri, self._ticket = uri, ticket
        self._channel: Any = find_transport(uri).connect(uri, ConnectOptions())
        self._is_open = True

    def advance(self, step: Step) -> None:
        """See `Peer`."""
        if step is Step.CONNECTED:
            return
        tag = self._uri.require_want_data()
        frame = TaggedFrame(tag, len(self._ticket), (self._ticket,))
        blocking.send(self._channel, [frame], PATIENCE)
        count = 0
        while step is not Step.REQUESTED:
            for frame in blocking.receive(self._channel, PATIENCE):
                count += 1
                if isinstance(frame, UntaggedFrame) and frame.payload[0] == 0:
                    return
            if step is Step.BETWEEN and count >= 3:
                return

    def leave(self, way: Way) -> None:
        """See `Peer`."""
        match way:
            case Way.FIN:
                self.close()
            case Way.RESET:
                self._is_open = False
                self._channel.abort()
            case Way.VIOLATION:
                blocking.send(self._channel, [TaggedFrame(UNKNOWN_TAG, 1, (b"x",))], PATIENCE)
            case _:
                raise AssertionError(way)

    def finish(self) -> pa.Table | None:
        """See `Peer`."""
        self._is_open = False
        self._channel.abort()
        return None

    def close(self) -> None:
        """See `Peer`."""
        if self._is_open:
            self._is_open = False
            self._channel.close()


class FlightPeer:
    """A client of DoGet, on a connection of its own."""

    def __init__(self, control_uri: str, ticket: bytes) -> None:
        self._ticket = flight.Ticket(ticket).serialize()
        address = control_uri.partition("://")[2]
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.http2.bdp_probe", 0),  # the window does not grow
            ("grpc.http2.lookahead_bytes", BUFFER_BYTES),
        ]
        self._channel = grpc.insecure_channel(address, options)
        self._call: Any = None
        grpc.channel_ready_future(self._channel).result(PATIENCE)

    def advance(self, step: Step) -> None:
        """See `Peer`."""
        if step is Step.CONNECTED:
            return
        do_get = self._channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")
        self._call = do_get(self._ticket)
        if step is Step.BETWEEN:
            for _ in range(2):
                next(self._call)
        elif step is Step.ENDED:
            for _ in self._call:
                pass

    def leave(self, way: Way) -> None:
        """See `Peer`."""
        if way is Way.RESET and self._call is not None:
            self._call.cancel()
        else:
            self.close()

    def finish(self) -> pa.Table | None:
        """See `Peer`."""
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        return None

    def close(self) -> None:
        """See `Peer`."""
        self._channel.close()


_PROGRAM = """
import json, sys
import splitarrow
from pyarrow import flight

held = []
for kind, uri, ticket, step in json.loads(sys.argv[1]):
    if kind == "flight":
        client = flight.connect(uri)
        held.append(client)
        if step != "connected":
            stream = client.do_get(flight.Ticket(ticket.encode()))
            held.append(stream)
            batches = (chunk.data for chunk in stream)
    else:
        stream = splitarrow.open(uri, ticket=ticket)
        held.append(stream)
        batches = iter(stream)
    if step == "between batches":
        held.append(next(batches))
    elif step == "ended":
        held.append(list(batches))
print("ready", flush=True)
sys.stdin.read()
"""


def start_readers(readers: list[tuple[str, str, str, str]]) -> subprocess.Popen[bytes]:
    """Start a process of stock clients: the kind, URI, ticket and step of each reader.

    Return when all of them are at their steps.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(readers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process
