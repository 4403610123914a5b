"""The control plane's HTTP/2, by clients that follow the specification in odd ways or break it."""

from __future__ import annotations

import gzip
import http.client
import resource
import socket
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np
import pyarrow as pa
import pytest
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from pyarrow import flight

from helpers.control_plane import PATH, Running, put, running
from helpers.http2_client import (
    CONTINUATION,
    DATA,
    FLIGHT,
    GOAWAY,
    HEADERS,
    HEALTH,
    PING,
    SETTINGS,
    Http2Client,
    frame,
    message,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.uri import DataUri
from splitarrow.server.control import grpc_server
from splitarrow.server.control.grpc_server import GrpcServer, Method, ServerCall

END_STREAM, END_HEADERS, PADDED = 1, 4, 8
HEADER_TABLE_SIZE = 1
CHECK = f"{HEALTH}/Check"
SERVING = message(b"\x08\x01")
TABLE = pa.table({"n": pa.array(range(300_000), pa.int64())})


@pytest.fixture
def server() -> Generator[Running]:
    with running({"d": TABLE}, handshake_seconds=5) as served:
        yield served


@pytest.fixture
def client(server: Running) -> Generator[Http2Client]:
    with Http2Client(server.port) as connected:
        yield connected


def settings(*codes: int, value: int = 1) -> bytes:
    """Return a frame that changes some settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", code, value) for code in codes))


def check(server: Running) -> None:
    """Fail unless the server still serves."""
    with Http2Client(server.port) as client:
        stream = client.call(CHECK, b"")
        assert client.finish(stream)["grpc-status"] == "0"
        assert client.data[stream] == SERVING


def count_messages(data: bytearray) -> int:
    """Return the number of messages; fail if one is cut."""
    count = at = 0
    while at < len(data):
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "big")
        count += 1
    assert at == len(data)
    return count


def test_http_1_gets_an_explanation(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 505
    assert response.read() == b"this address serves Arrow Flight over gRPC, not HTTP/1.1\n"


@pytest.mark.parametrize("data", [b"\0" * 64, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"PRI "])
def test_what_is_not_http2_is_disconnected(server: Running, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as sock:
        sock.sendall(data)
        if len(data) < 8:
            sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    check(server)


def test_who_sends_nothing_is_disconnected() -> None:
    with (
        running({"d": TABLE}, handshake_seconds=0.2) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as sock,
    ):
        assert sock.recv(1) == b""


def test_a_call_without_a_request_ends() -> None:
    with running({"d": TABLE}, handshake_seconds=0.2) as server:
        with Http2Client(server.port) as client:
            headers = client.finish(client.begin(f"{FLIGHT}/GetSchema"))
        assert headers["grpc-status"] == "14"
        assert headers["grpc-message"] == "the client sent no request for 0.2 s"


def test_calls_without_a_request_count_for_their_address() -> None:
    with running({"d": TABLE}, max_calls_per_address=2) as server, Http2Client(server.port) as one:
        waiting = [one.begin(f"{FLIGHT}/GetSchema"), one.begin(CHECK)]
        assert one.finish(one.call(CHECK, b""))["grpc-status"] == "0"
        for path in (f"{FLIGHT}/GetSchema", CHECK, f"{HEALTH}/Watch"):
            assert one.finish(one.begin(path))["grpc-status"] == "8"
        for stream in waiting:
            one.h2.send_data(stream, message(b""), end_stream=True)
        one.flush()
        assert one.finish(waiting[1])["grpc-status"] == "0"


def test_a_client_that_answers_no_ping_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(grpc_server, "_ANSWER_SECONDS", 0.2)
    with running({"d": TABLE}, handshake_seconds=0.2) as server, Http2Client(server.port) as client:
        stream = client.begin(f"{HEALTH}/Watch")
        client.send(frame(DATA, END_STREAM, stream, message(b"")))
        received = b""
        while data := client.socket.recv(4096):
            received += data
        assert frame(PING, 0, 0, bytes(8)) in received


def test_a_client_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(grpc_server, "_ANSWER_SECONDS", 5)
    with running({"d": TABLE}, handshake_seconds=0.2) as server, Http2Client(server.port) as client:
        stream = client.call(f"{HEALTH}/Watch", b"")
        pings = 0
        while pings < 3:
            names = [type(event).__name__ for event in client.receive()]
            pings += names.count("PingReceived")
        assert client.data[stream] == SERVING
        assert not client.is_closed


@pytest.mark.slow
def test_a_client_that_receives_slowly_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot answer a ping that waits behind the data."""
    monkeypatch.setattr(grpc_server, "_KEEP_ALIVE_SECONDS", 0.5)
    monkeypatch.setattr(grpc_server, "_ANSWER_SECONDS", 0.5)
    table = pa.table({"n": pa.array(np.arange(2_000_000))})
    with running({"d": table}, handshake_seconds=0.4) as server:
        ticket = server.client().get_flight_info(PATH("d")).endpoints[0].ticket.serialize()
        with Http2Client(server.port, INITIAL_WINDOW_SIZE=(1 << 31) - 1) as client:
            client.h2.increment_flow_control_window(1 << 30)
            client.call(f"{FLIGHT}/DoGet", ticket)
            received = 0
            while received < table.nbytes:
                data = client.socket.recv(1 << 16)
                assert data
                received += len(data)
                time.sleep(0.01)


@pytest.mark.slow
def test_an_idle_connection_refuses_calls_before_it_is_closed() -> None:
    """A client may open a stream before it learns that the connection is closed."""
    with (
        running({"d": TABLE}, handshake_seconds=4, idle_seconds=0.1) as server,
        Http2Client(server.port) as client,
    ):
        client.finish(client.call(CHECK, b""))
        while client.error is None:
            client.receive()
        client.h2.state_machine.state = ConnectionState.CLIENT_OPEN
        stream = client.call(CHECK, b"")
        client.finish(stream)
        assert client.reset[stream] == ErrorCodes.REFUSED_STREAM
        assert client.wait_closed() == ErrorCodes.NO_ERROR


def test_an_idle_connection_is_closed_and_a_new_one_opened() -> None:
    with running({"d": TABLE}, handshake_seconds=0.2, idle_seconds=0.1) as server:
        with Http2Client(server.port) as client:
            client.finish(client.call(CHECK, b""))
            assert client.wait_closed() == ErrorCodes.NO_ERROR
        stock = server.client()
        for _ in range(2):
            assert stock.get_flight_info(PATH("d")).total_records == 300_000


# --- messages ---


def test_a_request_may_come_in_padded_frames_of_one_byte(client: Http2Client) -> None:
    stream = client.begin(f"{FLIGHT}/GetSchema")
    request = flight.FlightDescriptor.for_path("d").serialize()
    for byte in message(request):
        client.send(frame(DATA, PADDED, stream, bytes((3, byte)) + bytes(3)))
        client.send(frame(DATA, 0, stream))
    client.send(frame(DATA, PADDED | END_STREAM, stream, bytes((2, 0, 0))))
    assert client.finish(stream)["grpc-status"] == "0"
    assert len(client.data[stream]) > 100


def test_a_request_may_state_its_size(client: Http2Client) -> None:
    """Clients of HTTP that know nothing of gRPC, such as curl, send content-length."""
    stream = client.call(CHECK, b"", content_length="5")
    assert client.finish(stream)["grpc-status"] == "0"


def test_a_client_that_says_goodbye_finishes_its_calls(
    server: Running, client: Http2Client
) -> None:
    """It may also answer pings, change its settings, and reset streams."""
    goodbye = frame(GOAWAY, 0, 0, struct.pack(">II", 0, ErrorCodes.NO_ERROR))
    client.send(goodbye)
    streams = [client.call(f"{HEALTH}/Watch", b"", grpc_timeout="200m") for _ in range(2)]
    while not all(client.data[stream] for stream in streams):
        client.receive()
    client.send(goodbye + frame(SETTINGS, 0, 0) + frame(PING, 0, 0, bytes(8)))
    client.h2.reset_stream(streams[0])
    client.flush()
    assert client.finish(streams[1])["grpc-status"] == "4"
    check(server)


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_request_may_be_compressed(
    client: Http2Client, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    request = compress(flight.FlightDescriptor.for_path("d").serialize())
    stream = client.begin(f"{FLIGHT}/GetSchema", grpc_encoding=encoding)
    client.h2.send_data(stream, message(request, compressed=True), end_stream=True)
    client.flush()
    assert client.finish(stream)["grpc-status"] == "0"


@pytest.mark.parametrize(
    ("encoding", "data", "status", "text"),
    [
        (
            "gzip",
            gzip.compress(bytes(20 << 20), mtime=0),
            "8",
            "exceeds the limit of 4194304 bytes",
        ),
        ("gzip", b"not gzip", "13", "not valid gzip"),
        ("gzip", gzip.compress(b"\x08\x01\x1a\x01d", mtime=0)[:-1], "13", "not complete gzip"),
        ("snappy", b"x", "12", "no compression 'snappy'"),
    ],
)
def test_a_request_with_bad_compression_is_refused(
    client: Http2Client, encoding: str, data: bytes, status: str, text: str
) -> None:
    stream = client.begin(f"{FLIGHT}/GetSchema", grpc_encoding=encoding)
    payload = message(data, compressed=True)
    for begin in range(0, len(payload), 16_000):
        client.h2.send_data(stream, payload[begin : begin + 16_000])
        client.flush()
    headers = client.finish(stream)
    assert headers["grpc-status"] == status
    assert text in headers["grpc-message"].replace("%27", "'")


def test_a_message_over_the_limit_is_refused_before_it_arrives(client: Http2Client) -> None:
    stream = client.begin(f"{FLIGHT}/GetSchema")
    client.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 1 << 30)))
    headers = client.finish(stream)
    assert headers["grpc-status"] == "8"
    assert headers["grpc-message"] == "the message has 1073741824 bytes; the limit is 4194304"


def test_a_message_that_fits_no_memory_is_refused(tmp_path: Path) -> None:
    limits = replace(DEFAULT_LIMITS, upload_message_bytes=1 << 32)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    with (
        running({"d": TABLE}, writable=tmp_path, limits=limits) as server,
        Http2Client(server.port) as client,
    ):
        stream = client.begin(f"{FLIGHT}/DoPut")
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
        try:
            client.send(frame(DATA, 0, stream, b"\0\xff\xff\xff\xff"))
            headers = client.finish(stream)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        assert headers["grpc-status"] == "8"
        assert "no memory" in headers["grpc-message"]
        check(server)


def test_a_request_is_small_where_uploads_are_large(tmp_path: Path) -> None:
    """Anybody may send requests, but not uploads."""
    with running({"d": TABLE}, writable=tmp_path) as server, Http2Client(server.port) as client:
        stream = client.begin(f"{FLIGHT}/GetSchema")
        client.send(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 5 << 20)))
        assert client.finish(stream)["grpc-status"] == "8"


def test_messages_that_nobody_reads_stay_compressed(client: Http2Client) -> None:
    stream = client.begin(f"{HEALTH}/Watch", grpc_encoding="gzip")
    bomb = message(gzip.compress(bytes(4 << 20)), compressed=True)
    tracemalloc.start()
    try:
        client.send(frame(DATA, 0, stream, message(b"")) + frame(DATA, 0, stream, bomb) * 12)
        client.finish(client.call(CHECK, b""))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flags", [0, END_STREAM])
def test_data_after_the_end_resets_the_stream(client: Http2Client, flags: int) -> None:
    stream = client.call(f"{HEALTH}/Watch", b"")
    client.send(frame(DATA, flags, stream, message(b"")))
    client.finish(stream)
    assert client.reset[stream] == ErrorCodes.STREAM_CLOSED
    assert client.finish(client.call(CHECK, b""))["grpc-status"] == "0"


def test_a_call_that_ends_within_a_message_is_refused(client: Http2Client) -> None:
    stream = client.begin(f"{FLIGHT}/GetSchema")
    client.send(frame(DATA, END_STREAM, stream, message(b"abc")[:-1]))
    assert client.finish(stream)["grpc-message"] == "the call ends within a message"


def test_other_requests_are_refused(client: Http2Client) -> None:
    assert client.finish(client.call("/a.Service/Method", b""))["grpc-status"] == "12"
    stream = client.begin(CHECK, content_type="text/plain")
    assert client.finish(stream)[":status"] == "415"


def test_a_response_may_be_empty(server: Running, client: Http2Client) -> None:
    stream = client.begin(f"{FLIGHT}/Handshake")
    client.send(frame(DATA, END_STREAM, stream))
    assert client.finish(stream)["grpc-status"] == "0"
    assert client.data[stream] == message(b"")
    check(server)


def test_a_deadline_ends_a_call(client: Http2Client) -> None:
    headers = client.finish(client.call(f"{HEALTH}/Watch", b"", grpc_timeout="50m"))
    assert headers["grpc-status"] == "4"


@pytest.mark.parametrize("sizes", [(1 << 30,), (100, 100), (0, 1 << 30), (1 << 30, 100, 4096)])
def test_the_table_of_headers_is_small(client: Http2Client, sizes: tuple[int, ...]) -> None:
    """The server uses no more than the default, and confirms what is smaller."""
    for size in sizes:
        client.send(settings(HEADER_TABLE_SIZE, value=size))
    client.h2.decoder.max_allowed_table_size = min(sizes[-1], 4096)
    for number in range(3):
        headers = client.finish(client.call(f"/a.Service/{number}", b""))
        assert headers["grpc-status"] == "12"
    assert client.h2.decoder.header_table_size == min(sizes[-1], 4096)


# --- windows ---


@pytest.mark.parametrize("window", [1, 1000, 65_535])
def test_do_get_respects_small_windows(server: Running, window: int) -> None:
    """The frames are as small as the window, and the stream is the same."""
    rows = 500
    with running({"d": TABLE.slice(0, rows)}) as served:
        ticket = served.client().get_flight_info(PATH("d")).endpoints[0].ticket.serialize()
        contents: list[bytes] = []
        for size in (window, 1 << 20):
            with Http2Client(served.port, INITIAL_WINDOW_SIZE=size) as client:
                stream = client.call(f"{FLIGHT}/DoGet", ticket)
                assert client.finish(stream)["grpc-status"] == "0"
                contents.append(bytes(client.data[stream]))
        assert contents[0] == contents[1]
        assert len(contents[0]) > rows * 8


def test_a_cancelled_stream_leaves_the_others_whole(server: Running) -> None:
    """A stream is cancelled while its frames wait for the socket."""
    ticket = server.client().get_flight_info(PATH("d")).endpoints[0].ticket.serialize()
    size = 1 << 24
    with Http2Client(server.port, INITIAL_WINDOW_SIZE=size, MAX_FRAME_SIZE=1 << 20) as client:
        client.h2.increment_flow_control_window(size)
        client.flush()
        streams = [client.call(f"{FLIGHT}/DoGet", ticket) for _ in range(4)]
        for stream in streams[::2]:
            client.receive()
            client.h2.reset_stream(stream)
            client.flush()
        sizes = set()
        for stream in streams[1::2]:
            assert client.finish(stream)["grpc-status"] == "0"
            sizes.add(len(client.data[stream]))
            assert count_messages(client.data[stream]) > 1
        assert len(sizes) == 1
        assert sizes.pop() > TABLE.nbytes


def test_who_reads_nothing_does_not_delay_others(server: Running) -> None:
    stock = server.client()
    ticket = stock.get_flight_info(PATH("d")).endpoints[0].ticket
    with Http2Client(server.port, INITIAL_WINDOW_SIZE=(1 << 31) - 1) as client:
        client.h2.increment_flow_control_window(1 << 30)
        client.call(f"{FLIGHT}/DoGet", ticket.serialize())
        assert stock.do_get(ticket).read_all().num_rows == TABLE.num_rows


def test_an_upload_needs_more_than_the_windows(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(np.arange(3_000_000))})
    with running(writable=tmp_path) as server:
        stock = server.client()
        put(stock, "up", table, max_chunksize=1_000_000)
        ticket = stock.get_flight_info(PATH("up")).endpoints[0].ticket
        assert stock.do_get(ticket).read_all().equals(table)


# --- hostile clients ---


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(DATA, 0, 99, b"x"), ErrorCodes.PROTOCOL_ERROR),
        (frame(DATA, 0, 0, b"x"), ErrorCodes.PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\xff"), ErrorCodes.PROTOCOL_ERROR),
        (frame(DATA, 0, 1, bytes(70_000))[:9], ErrorCodes.FLOW_CONTROL_ERROR),
        (b"\x20\0\0\0\0\0\0\0\x01", ErrorCodes.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"abc"), ErrorCodes.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 3, b"\xff\xff\xff\xff\xff\xff"), ErrorCodes.PROTOCOL_ERROR),
        (frame(CONTINUATION, 0, 1, b""), ErrorCodes.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 3, bytes(1 << 20))[:9], ErrorCodes.ENHANCE_YOUR_CALM),
        (
            frame(HEADERS, 0, 3, b"\x82" * 33_000) + frame(CONTINUATION, 0, 3, bytes(33_000))[:9],
            ErrorCodes.ENHANCE_YOUR_CALM,
        ),
        (settings(*range(100, 200)), ErrorCodes.ENHANCE_YOUR_CALM),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(
    server: Running, client: Http2Client, data: bytes, code: int
) -> None:
    client.begin(f"{HEALTH}/Watch")
    client.send(data)
    assert client.wait_closed() == code
    check(server)


def test_rapid_resets_end_the_connection(server: Running, client: Http2Client) -> None:
    with suppress(ConnectionError):  # it may be closed before the last one
        for _ in range(2_000):
            client.h2.reset_stream(client.begin(f"{FLIGHT}/DoGet"))
            client.flush()
    assert client.wait_closed() in (ErrorCodes.ENHANCE_YOUR_CALM, None)
    check(server)


def test_rapid_settings_end_the_connection(server: Running, client: Http2Client) -> None:
    with suppress(ConnectionError):
        client.send(settings(HEADER_TABLE_SIZE) * 2_000)
    assert client.wait_closed() in (ErrorCodes.ENHANCE_YOUR_CALM, None)
    check(server)


def test_endless_headers_end_the_connection(server: Running, client: Http2Client) -> None:
    client.send(frame(HEADERS, 0, 1, b"\x82"))
    with pytest.raises(ConnectionError):
        client.flood(frame(CONTINUATION, 0, 1, b"\0\x01a\x01b" * 100))
    check(server)


@pytest.mark.slow
def test_answers_that_nobody_reads_do_not_pile_up(server: Running) -> None:
    """The server stops reading from a client that does not read its answers."""
    with Http2Client(server.port, receive_buffer=4096) as client:
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.flood(frame(PING, 0, 0, bytes(8)) * 4096)
        check(server)


async def _call_after_run() -> dict[str, str]:
    """Cancel a server, and return what a call of a client gets that is still connected."""
    server = GrpcServer(
        DataUri.parse("grpc://127.0.0.1:0"),
        tls=None,
        proxies=(),
        max_message_bytes=1000,
        max_calls=1,
        max_connections=1,
        get_max_per_address=lambda: 1,
        handshake_seconds=10,
        idle_seconds=10,
    )

    async def answer(call: ServerCall) -> bytes:
        return await call.read_request()

    def call_once() -> dict[str, str]:
        return client.finish(client.call("/a/b", b""))

    server.methods["/a/b"] = Method(answer, reads_one=True)
    assert server.uri.port is not None
    with Http2Client(server.uri.port) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            assert (await anyio.to_thread.run_sync(call_once))["grpc-status"] == "0"
            tasks.cancel_scope.cancel()
        headers = await anyio.to_thread.run_sync(call_once)
        with anyio.fail_after(5):
            await server.stop(0)
    return headers


def test_a_call_while_the_server_stops_is_refused() -> None:
    assert anyio.run(_call_after_run)["grpc-status"] == "14"


def test_a_stopped_server_says_goodbye(server: Running, client: Http2Client) -> None:
    watch = client.call(f"{HEALTH}/Watch", b"")
    while not client.data[watch]:
        client.receive()
    server.drain()
    received = b""
    while data := client.socket.recv(1 << 16):
        received += data
    assert frame(DATA, 0, watch, message(b"\x08\x02")) in received
    assert frame(GOAWAY, 0, 0, struct.pack(">II", watch, ErrorCodes.NO_ERROR)) in received
