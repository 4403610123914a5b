"""Peers that say nothing, are refused and say nothing, or take nothing are disconnected in time."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from helpers.daemons import kill
from helpers.files import write_file
from helpers.waiting import wait_until
from splitarrow.errors import ConnectionLostError
from splitarrow.protocol.frames import TaggedFrame
from splitarrow.protocol.uri import DataUri
from splitarrow.testing import Daemon
from splitarrow.transport import blocking
from splitarrow.transport.base import ConnectOptions
from splitarrow.transport.registry import find_transport

PREFACE = b"SPLTARW\x01"
WANT_DATA = 0x0000_0100_0000_0001
LISTEN = ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"]
SECONDS = 0.4
"""The time limits of the daemon."""
ROWS = 8_000_000
SMALL_ROWS = 32_000
"""A quarter of them is large enough to be read from the server's memory over UCX."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    big, small = (tmp_path_factory.mktemp("data") / f"{name}.arrow" for name in ("big", "small"))
    write_file(big, pa.table({"n": pa.array(range(ROWS), pa.int64())}), batch_rows=4000)
    write_file(small, pa.table({"n": range(SMALL_ROWS)}), batch_rows=SMALL_ROWS // 4)
    server = Daemon(
        {"big": big, "small": small},
        listen=LISTEN,
        control="grpc://127.0.0.1:0",
        handshake_seconds=SECONDS,
        stall_seconds=SECONDS,
    )
    server.start()
    yield server
    kill(server)


def connect(daemon: Daemon, scheme: str) -> socket.socket:
    """Connect to the port of a transport or of the control plane, and say nothing."""
    uri = DataUri.parse(daemon.control_uri if scheme == "grpc" else daemon.uri("big", scheme))
    if scheme == "shm":
        client = socket.socket(socket.AF_UNIX)
        client.connect(uri.path)
        return client
    return socket.create_connection((uri.host, uri.port or 0))


def seconds_until_closed(client: socket.socket) -> float:
    """Return how long the server keeps a connection open, whatever it sends."""
    started = time.monotonic()
    client.settimeout(20)
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - started


def request(ticket: bytes) -> bytes:
    """Return the bytes of a request, as a program without this package writes them."""
    return PREFACE + struct.pack("<BxxxxxxxQQ", 1, len(ticket), WANT_DATA) + ticket


@pytest.mark.parametrize("scheme", ["tcp", "shm", "ucx", "grpc"])
@pytest.mark.parametrize("said", [b"", b"\x00"])
def test_a_silent_peer(daemon: Daemon, scheme: str, said: bytes) -> None:
    with connect(daemon, scheme) as client:
        client.sendall(said)
        assert seconds_until_closed(client) < 10


def connect_ucx(daemon: Daemon) -> Any:
    uri = DataUri.parse(daemon.uri("big", "ucx"))
    return find_transport(uri).connect(uri, ConnectOptions())


def is_lost(channel: Any) -> bool:
    try:
        channel.receive_some()
    except ConnectionLostError:
        return True
    return False


@pytest.mark.parametrize("ticket", [None, b"no such dataset"])
def test_a_silent_or_refused_peer_that_speaks_ucx(daemon: Daemon, ticket: bytes | None) -> None:
    channel = connect_ucx(daemon)
    try:
        if ticket is not None:
            blocking.send(channel, [TaggedFrame(WANT_DATA, len(ticket), (ticket,))], 10)
        wait_until(lambda: is_lost(channel), "the end of the connection")
    finally:
        channel.abort()


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
def test_a_peer_that_is_silent_after_a_refused_request(daemon: Daemon, scheme: str) -> None:
    with connect(daemon, scheme) as client:
        client.sendall(request(b"no such dataset"))
        assert seconds_until_closed(client) < 10


def stats(daemon: Daemon) -> dict[str, int]:
    with splitarrow.connect(daemon.control_uri) as client:
        return client.status()["stats"]


@pytest.mark.parametrize("scheme", ["tcp", "shm", "ucx", "flight"])
def test_a_stream_that_is_requested_and_never_read(daemon: Daemon, scheme: str) -> None:
    before = daemon.log().count("reader stalled")
    reader: Any
    client: Any = None
    if scheme in ("tcp", "shm"):
        reader = connect(daemon, scheme)
        reader.sendall(request(b"big"))
    elif scheme == "ucx":
        reader = connect_ucx(daemon)
        blocking.send(reader, [TaggedFrame(WANT_DATA, 3, (b"big",))], 10)
    else:
        client = flight.FlightClient(daemon.control_uri)
        reader = client.do_get(flight.Ticket(b"big"))
    wait_until(lambda: daemon.log().count("reader stalled") > before, "the disconnection")
    wait_until(lambda: stats(daemon)["streams"] == 0, "the end of the stream")
    wait_until(lambda: stats(daemon)["leases"] == 0, "the end of the leases")
    if client is None:
        reader.close()
    else:
        reader.cancel()
        client.close()


@pytest.mark.parametrize("scheme", ["shm", "ucx"])
def test_a_stream_of_leases_that_is_sent_whole_and_never_read(daemon: Daemon, scheme: str) -> None:
    before = daemon.log().count("reader stalled")
    reader: Any
    if scheme == "shm":
        reader = connect(daemon, scheme)
        reader.sendall(request(b"small"))
    else:
        reader = connect_ucx(daemon)
        blocking.send(reader, [TaggedFrame(WANT_DATA, 5, (b"small",))], 10)
    wait_until(lambda: stats(daemon)["leases"] == 4, "the leases")
    wait_until(lambda: daemon.log().count("reader stalled") > before, "the disconnection")
    wait_until(lambda: stats(daemon)["leases"] == 0, "the end of the leases")
    reader.close()


def test_a_reader_that_holds_leases_is_not_disconnected(daemon: Daemon) -> None:
    before = daemon.log().count("reader stalled")
    with splitarrow.open(daemon.uri("small", "shm")) as stream:
        table = stream.read_all()
        time.sleep(3 * SECONDS)
        assert stats(daemon)["leases"] == 4
    assert daemon.log().count("reader stalled") == before
    assert table.num_rows == SMALL_ROWS


def test_a_slow_reader_is_not_disconnected(daemon: Daemon) -> None:
    """It reads at 25 MB/s, while the socket's buffers hold a few megabytes."""
    with splitarrow.open(daemon.uri("big", "tcp")) as stream:
        rows, started = 0, time.monotonic()
        for batch in stream:
            rows += batch.num_rows
            ahead = rows * 8 / 25e6 - (time.monotonic() - started)
            if time.monotonic() - started < 3 * SECONDS:
                time.sleep(max(0.0, ahead))
    assert rows == ROWS
