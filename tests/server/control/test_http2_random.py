"""Random frames against the control plane, valid and invalid, in random pieces."""

from __future__ import annotations

import gc
import gzip
import logging
import random
import socket
import struct
from typing import Any

import hpack
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from helpers.control_plane import Running, put, running
from helpers.http2_client import FLIGHT, HEALTH, Http2Client, frame, message
from helpers.waiting import wait_until
from splitarrow.server.control.call import AddressCalls
from splitarrow.server.control.grpc_server import GrpcServer
from splitarrow.server.control.interceptor import CallInterceptor

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING = range(7)
GOAWAY, WINDOW_UPDATE, CONTINUATION, UNKNOWN = 7, 8, 9, 77
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
METHODS = ("GetSchema", "DoGet", "DoPut", "Handshake", "DoAction", "ListFlights", "None")
RESET = struct.pack("ii", 1, 0)
TABLE = pa.table({"n": pa.array(np.arange(50_000))})


class Session:
    """The frames of one client."""

    def __init__(self, chance: random.Random, requests: list[bytes]) -> None:
        self.chance = chance
        self.requests = requests
        self.encoder = hpack.Encoder()
        self.last = -1

    def begin(self) -> bytes:
        chance = self.chance
        self.last += 2
        path = chance.choice((f"{HEALTH}/Check", f"{HEALTH}/Watch", f"{FLIGHT}/GetFlightInfo"))
        if chance.random() < 0.6:
            path = f"{FLIGHT}/{chance.choice(METHODS)}"
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            ("content-type", chance.choice(("application/grpc", "application/grpc", "text/x"))),
            ("grpc-encoding", chance.choice(("gzip", "deflate", "identity", "odd"))),
        ]
        if chance.random() < 0.5:
            fields.append(("grpc-timeout", chance.choice(("5m", "50m", "1S", "0n", "9H", "x"))))
        block = self.encoder.encode(fields)
        end = END_STREAM * (chance.random() < 0.1)
        if chance.random() < 0.2:
            at = chance.randrange(len(block))
            return frame(HEADERS, end, self.last, block[:at]) + frame(
                CONTINUATION, END_HEADERS, self.last, block[at:]
            )
        return frame(HEADERS, END_HEADERS | end, self.last, block)

    def send(self) -> bytes:
        """Return a message in DATA frames, some of them padded, some of a stream that is over."""
        chance = self.chance
        request = chance.choice(self.requests)
        if chance.random() < 0.2:
            request = message(gzip.compress(request), compressed=True)
        else:
            request = message(request)
        if chance.random() < 0.1:
            request = request[: chance.randrange(len(request))]
        stream = self.last if chance.random() < 0.8 else self.stream()
        frames = b""
        while request or not frames:
            size = chance.randint(0, len(request))
            part, request = request[:size], request[size:]
            flags = END_STREAM * (not request and chance.random() < 0.8)
            if chance.random() < 0.3:
                padding = chance.randrange(256)
                part = bytes((padding,)) + part + bytes(padding)
                flags |= PADDED
            frames += frame(DATA, flags, stream, part)
        return frames

    def stream(self) -> int:
        return self.chance.randrange(1, max(self.last, 1) + 1) | 1

    def settings(self) -> bytes:
        chance = self.chance
        code, value = chance.choice(
            ((1, 0), (1, 4096), (1, 1 << 30), (4, 0), (4, 1), (4, 70_000), (4, 1 << 30), (5, 16384))
        )
        return frame(SETTINGS, 0, 0, struct.pack(">HI", code, value))

    def step(self) -> bytes:
        """Return something valid, as long as its stream has not ended."""
        chance = self.chance
        kind = chance.randrange(12)
        if kind < 3 or self.last < 0:
            return self.begin() + (self.send() if chance.random() < 0.8 else b"")
        if kind < 5:
            return self.send()
        if kind == 5:
            return frame(RST_STREAM, 0, self.stream(), struct.pack(">I", chance.randrange(14)))
        if kind < 8:
            stream = chance.choice((0, self.stream()))
            return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", chance.randint(1, 1 << 20)))
        if kind == 8:
            return self.settings()
        if kind == 9:
            return frame(PING, chance.randrange(2), 0, chance.randbytes(8))
        if kind == 10:
            return frame(PRIORITY, 0, self.stream(), struct.pack(">IB", 0, 9))
        return frame(UNKNOWN, chance.randrange(256), self.stream(), chance.randbytes(9))

    def damage(self) -> bytes:
        """Return something that breaks a rule, or is odd."""
        chance = self.chance
        kind = chance.choice((*range(10), UNKNOWN))
        size = chance.choice((0, 1, 4, 5, 6, 8, 9, 200))
        head = frame(kind, chance.randrange(256), chance.choice((0, self.stream(), 2, 1 << 31)))
        payload = chance.choice((bytes, chance.randbytes))(size)
        length = size if chance.random() < 0.8 else chance.choice((0, size + 1, 1 << 20, 0xFFFFFF))
        return chance.choice(
            (
                length.to_bytes(3, "big") + head[3:] + payload,
                chance.randbytes(chance.randrange(40)),
                frame(WINDOW_UPDATE, 0, self.stream(), struct.pack(">I", (1 << 31) - 1)) * 2,
                frame(GOAWAY, 0, 0, bytes(8)),
                frame(DATA, END_STREAM, self.stream(), b"") * 2,
                frame(HEADERS, END_HEADERS, self.stream(), self.encoder.encode([("a", "b")])),
            )
        )

    def run(self, port: int) -> None:
        """Send some of it in pieces, read a part of the answers, and disconnect in some way."""
        chance = self.chance
        rate = chance.choice((0, 0, 0.02, 0.2))
        data = PREFACE if chance.random() < 0.95 else chance.randbytes(30)
        for _ in range(chance.randrange(60)):
            data += self.damage() if chance.random() < rate else self.step()
        piece = chance.choice((1, 7, 100, 5000, 1 << 20))
        with socket.create_connection(("127.0.0.1", port), 10) as sock:
            sock.settimeout(0.01)
            reads = chance.random()
            try:
                for at in range(0, min(len(data), 300 * piece), piece):
                    sock.sendall(data[at : at + piece])
                    if chance.random() < reads / 10:
                        self.read(sock)
                if chance.random() < 0.3:
                    sock.shutdown(socket.SHUT_WR)
                self.read(sock)
                if chance.random() < 0.3:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:
                pass  # the server has disconnected, or it waits for us

    def read(self, sock: socket.socket) -> None:
        try:
            sock.recv(1 << 16)
        except TimeoutError:
            pass


def find_all(kind: type[Any]) -> list[Any]:
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]


def is_idle(server: GrpcServer) -> bool:
    """Return whether nothing is counted any more."""
    return (
        not server._calls
        and not server._connections
        and not list(server._addresses)
        and not any(list(calls._running) for calls in find_all(AddressCalls))
        and not any(interceptor._running for interceptor in find_all(CallInterceptor))
    )


def attack(served: Running, seeds: range, caplog: pytest.LogCaptureFixture) -> None:
    """Run a session for each seed, and check the answer to another client after each."""
    (server,) = (found for found in find_all(GrpcServer) if found.uri.port == served.port)
    ticket = served.client().get_flight_info(flight.FlightDescriptor.for_path("d"))
    descriptor = flight.FlightDescriptor.for_path("d").serialize()
    requests = [b"", b"\xff", descriptor, ticket.endpoints[0].ticket.serialize(), bytes(9000)]
    with Http2Client(served.port) as healthy:
        for seed in seeds:
            Session(random.Random(seed), requests).run(served.port)
            stream = healthy.call(f"{HEALTH}/Check", b"")
            assert healthy.finish(stream)["grpc-status"] == "0", seed
            errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert not errors, (seed, errors)
    with served.client() as stock:
        assert stock.do_get(ticket.endpoints[0].ticket).read_all().equals(TABLE)
    wait_until(lambda: is_idle(server), "the end of all calls", 20)


def test_random_frames_harm_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    with running({"d": TABLE}) as served:
        attack(served, range(8), caplog)


@pytest.mark.long
def test_many_random_frames_harm_nobody_else(
    caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    with running({"d": TABLE}, writable=tmp_path) as served:
        attack(served, range(8, 3000), caplog)
        put(served.client(), "up", TABLE)
