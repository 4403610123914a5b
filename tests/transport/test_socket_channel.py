"""A channel over a socket delivers the frames before an error."""

from __future__ import annotations

import io
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from helpers.files import changing
from helpers.waiting import wait_until
from splitarrow.errors import ConnectionLostError, NotAPeerError, ProtocolError, StallError
from splitarrow.protocol.frames import (
    IncomingFrame,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import Limits
from splitarrow.transport import aio, blocking, socket_channel
from splitarrow.transport.framing import HEADER, PREFACE
from splitarrow.transport.memory.files import FileSpan, SourceFile, list_leased_files
from splitarrow.transport.socket_channel import SocketChannel


def received(data: bytes, error: type[Exception]) -> list[IncomingFrame]:
    """Return the frames that a reader receives from `data`, and check that `error` follows."""
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    frames: list[IncomingFrame] = []
    deadline = time.monotonic() + 10

    def receive_all() -> None:
        while time.monotonic() < deadline:
            frames.extend(channel.receive_some())

    with theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            with pytest.raises(error):
                receive_all()
        finally:
            channel.close()
    return frames


def test_a_closed_channel_says_so() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
        channel.close()
        channel.close()
        channel.abort()
        with pytest.raises(ConnectionLostError, match="the connection with peer is closed"):
            channel.receive_some()


@pytest.mark.parametrize(("nbytes", "is_read"), [((16 << 10) - 1, True), (16 << 10, False)])
def test_only_small_parts_of_files_are_read_at_once(
    tmp_path: Path, nbytes: int, is_read: bool
) -> None:
    (tmp_path / "x").write_bytes(bytes(16 << 10))
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    with theirs, closing(SourceFile(tmp_path / "x")) as file, closing(channel):
        channel.queue([TaggedFrame(1, nbytes, [FileSpan(file, 0, nbytes)])])
        assert isinstance(channel._parts[-1], memoryview) == is_read


def untagged(payload: bytes) -> bytes:
    return HEADER.pack(0, len(payload), 0) + payload


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak splitarrow: it answered b'HTTP/1.1"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "requires TLS"),
    ],
)
def test_a_server_of_another_protocol_is_named(answer: bytes, reason: str) -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    with theirs, closing(channel):
        theirs.sendall(answer + bytes(8))
        with pytest.raises(NotAPeerError, match=f"peer {reason}"):
            blocking.receive(channel, 10)


@pytest.mark.parametrize("body", [[], [b"x" * 100]])
def test_sending_to_a_peer_that_is_gone_raises(body: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    theirs.close()
    with closing(channel):
        channel.queue([TaggedFrame(7, sum(map(len, body)), body)])
        with pytest.raises(ConnectionLostError):
            channel.send_some()


def test_frames_before_garbage_arrive() -> None:
    data = PREFACE + untagged(b"one") + untagged(b"two") + b"\xff" * 64
    assert received(data, ProtocolError) == [UntaggedFrame(b"one"), UntaggedFrame(b"two")]


def test_frames_before_the_end_arrive() -> None:
    data = PREFACE + untagged(b"one") + untagged(b"two")[:-1]
    assert received(data, ConnectionLostError) == [UntaggedFrame(b"one")]


BODY = 1 << 20


def connect_with_half_a_body() -> tuple[SocketChannel, socket.socket]:
    """Return a channel over TCP that has received half of a large body, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    theirs.sendall(PREFACE + HEADER.pack(1, BODY, 7) + bytes(BODY // 2))
    while channel.bytes_received < BODY // 2:
        assert channel.receive_some() == []
    return channel, theirs


def test_a_slow_large_body_is_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, theirs = connect_with_half_a_body()
    clock = [time.monotonic()]
    for module in (blocking, socket_channel):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def trickle() -> None:
        for number in range(1, 5):
            theirs.sendall(bytes(BODY // 8))
            expected = BODY // 2 + number * BODY // 8
            wait_until(lambda least=expected: channel.bytes_received >= least, "the bytes")
            clock[0] += 0.3  # each piece comes within the timeout; all of them take longer

    with theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(trickle)
        (frame,) = blocking.receive(channel, 0.4)
        sent.result()
    assert isinstance(frame, ReceivedFrame)
    assert (frame.tag, frame.body.nbytes) == (7, BODY)
    channel.close()


def test_silence_within_a_large_body_is_detected_in_time() -> None:
    channel, theirs = connect_with_half_a_body()
    with theirs:
        theirs.sendall(bytes(1000))  # too little to be woken for
        begun = time.monotonic()
        with pytest.raises(StallError):
            blocking.receive(channel, 0.5)
        assert 0.5 <= time.monotonic() - begun < 5
    channel.close()


async def test_the_asynchronous_driver_detects_silence_within_a_large_body() -> None:
    channel, theirs = connect_with_half_a_body()
    with theirs:
        theirs.sendall(bytes(1000))
        with pytest.raises(StallError):
            await aio.receive(channel, 0.5)
    channel.close()


def test_a_cut_within_a_large_body_is_detected_at_once() -> None:
    channel, theirs = connect_with_half_a_body()
    theirs.sendall(bytes(1000))
    theirs.close()
    with pytest.raises(ConnectionLostError):
        blocking.receive(channel, 30)
    channel.close()


def connected(receive_bytes: int) -> tuple[SocketChannel, SocketChannel]:
    """Return a client's channel, with room for so many bytes, and a server's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        theirs.connect(server.getsockname())
        ours, _ = server.accept()
    client = SocketChannel(theirs, Limits(), server=False, peer="server", is_local=True)
    served = SocketChannel(ours, Limits(), server=True, peer="client", is_local=True)
    client.queue([TaggedFrame(1 << 40, 6, (b"ticket",))])
    client.send_some()
    wait_until(served.receive_some)
    return client, served


def send_all(channel: SocketChannel, frames: list[OutgoingFrame]) -> None:
    channel.queue(frames)
    wait_until(channel.send_some)


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_a_body_that_may_have_changed_in_the_socket_is_not_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(socket_channel, "MAX_RECEIVE_BYTES", at_once)
    path = tmp_path / "data"
    path.write_bytes(b"\x01" * 60_000)
    client, served = connected(1 << 20)
    with closing(SourceFile(path)) as file:
        send_all(served, [TaggedFrame(1 << 56, 60_000, (FileSpan(file, 0, 60_000),))])
        with changing(lambda: path.write_bytes(b"\x02" * 60_000)):
            file.yield_to_writers()
            assert served.delays_writer  # the client has not read yet
            served.abort()
            file.yield_to_writers()
    with pytest.raises(ConnectionLostError):
        client.receive_some()
    with pytest.raises(ConnectionLostError):
        client.receive_some()
    client.close()


def test_files_are_lent_until_the_next_request(tmp_path: Path) -> None:
    client, served = connected(1 << 20)
    for number in range(3):
        path = tmp_path / str(number)
        path.write_bytes(bytes(60_000))
        file = SourceFile(path)
        send_all(served, [TaggedFrame(1 << 56, 60_000, (FileSpan(file, 0, 60_000),))])
        file.close()
    assert len(list_leased_files()) == 3
    bodies: list[IncomingFrame] = []
    while len(bodies) < 3:
        bodies += client.receive_some()
    client.queue([TaggedFrame(1 << 40, 6, (b"ticket",))])
    client.send_some()
    wait_until(served.receive_some)
    assert list_leased_files() == []
    client.close()
    served.close()


def test_files_far_behind_are_no_longer_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_channel, "_largest_flight", lambda: 200_000)
    client, served = connected(1 << 20)
    path = tmp_path / "data"
    path.write_bytes(bytes(60_000))
    for number in range(20):
        with closing(SourceFile(path)) as file:
            send_all(served, [TaggedFrame(1 << 56, 60_000, (FileSpan(file, 0, 60_000),))])
        while client.bytes_received < served.bytes_sent:
            client.receive_some()
        assert len(list_leased_files()) <= min(number + 1, 5)
    client.close()
    served.close()
    assert list_leased_files() == []


def test_a_file_is_lent_until_its_pages_cannot_be_in_a_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_channel, "_largest_flight", lambda: 100)
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    events: list[str] = []

    class Lent:
        def __init__(self, name: str) -> None:
            self.lend = lambda: events.append(f"lend {name}")
            self.take_back = lambda: events.append(f"take {name}")
            self.delays_writer = name == "b"

    with theirs, closing(channel):
        a, b, c = (cast(SourceFile, Lent(name)) for name in "abc")
        channel.bytes_sent = 1000
        channel._lent = {a: 899, b: 900}
        assert channel.delays_writer
        channel._borrow(c)
        assert events == ["take a", "lend c"]
        assert list(channel._lent.values()) == [900, 1000]
        channel._return_files()
        assert events[2:] == ["take c", "take b"]
        assert not channel.delays_writer


def test_the_buffers_of_sockets_are_twice_the_limits_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contents = {"tcp_wmem": "1 2 300", "tcp_rmem": "1 2 40", "wmem_max": "5", "rmem_max": "6"}

    def open_limit(path: str, encoding: str) -> io.StringIO:
        if path.rpartition("/")[2] not in contents:
            raise FileNotFoundError(path)
        return io.StringIO(contents[path.rpartition("/")[2]] + "\n")

    monkeypatch.setattr(socket_channel, "open", open_limit, raising=False)
    measure = socket_channel._largest_flight.__wrapped__
    assert measure() == 2 * (300 + 40 + 5 + 6)
    del contents["tcp_wmem"]
    assert measure() == (64 << 20) + 2 * (40 + 5 + 6)
    contents.clear()
    assert measure() == 4 * (64 << 20)


def test_a_closed_channel_keeps_no_buffers() -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    data = bytearray(5000)
    with theirs:
        channel.queue([TaggedFrame(1, len(data), [data])])
        with pytest.raises(BufferError):
            data.clear()
        channel.close()
        data.clear()
