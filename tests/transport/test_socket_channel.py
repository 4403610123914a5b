"""A channel over a socket delivers the frames before an error."""

from __future__ import annotations

import io
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from helpers.files import changing
from helpers.waiting import wait_until
from splitarrow.errors import (
    ConnectionLostError,
    DatasetError,
    NotAPeerError,
    ProtocolError,
    StallError,
)
from splitarrow.protocol.frames import (
    IncomingFrame,
    MessageRun,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.messages import expand_frames, pack_metadata
from splitarrow.transport import aio, blocking, socket_channel
from splitarrow.transport.frame_decoder import RUN_BYTES
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


class Wire:
    """A socket that takes and gives as many bytes in a call as the test chooses."""

    def __init__(self, *takes: int, gives: bytes = b"") -> None:
        self.takes = list(takes)
        self.gives = memoryview(gives)
        self.calls: list[tuple[int, int, int]] = []
        """The parts, the bytes offered and the flags of each call."""
        self.sent = b""
        self.low_water: list[int] = []
        self.error = 0

    def sendmsg(self, views: list[memoryview], ancillary: object, flags: int) -> int:
        offered = b"".join(views)
        self.calls.append((len(views), len(offered), flags))
        taken = self.takes.pop(0) if self.takes else len(offered)
        if taken < 0:
            raise BlockingIOError
        self.sent += offered[:taken]
        return min(taken, len(offered))

    def recv_into(self, target: memoryview) -> int:
        return self.recvmsg_into([target])[0]

    def recvmsg_into(self, targets: list[memoryview]) -> tuple[int]:
        if not self.gives.nbytes:
            raise BlockingIOError
        count = 0
        for target in targets:
            part = self.gives[: target.nbytes]
            target[: part.nbytes] = part
            self.gives = self.gives[part.nbytes :]
            count += part.nbytes
        return (count,)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.low_water.append(value)

    def getsockopt(self, level: int, option: int) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self.error

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def close(self) -> None: ...


def over(wire: Wire, *, server: bool = False, **options: Any) -> SocketChannel:
    sock: Any = wire
    return SocketChannel(sock, Limits(), server=server, peer="peer", is_local=True, **options)


def separate(nbytes: int, count: int) -> list[OutgoingFrame]:
    """Return frames whose bodies are parts of their own."""
    return [TaggedFrame(n, nbytes, [memoryview(bytes(nbytes))]) for n in range(count)]


def test_a_call_of_the_kernel_has_512_parts_at_most() -> None:
    wire = Wire()
    channel = over(wire)
    channel.queue(separate(10, 600))
    assert channel.send_some()
    assert [parts for parts, _, _ in wire.calls] == [512, 512, 1 + 2 * 600 - 1024]
    assert channel.bytes_sent == len(wire.sent) == 8 + 600 * 34
    assert {flags for _, _, flags in wire.calls} == {socket.MSG_NOSIGNAL}


def test_a_call_of_the_kernel_has_4_mib_and_a_part_at_most() -> None:
    wire = Wire()
    channel = over(wire, server=True)
    channel.queue(separate((1 << 20) - 24, 6))
    assert channel.send_some()
    assert [nbytes for _, nbytes, _ in wire.calls] == [4 << 20, 2 << 20]


def test_a_turn_ends_after_8_mib() -> None:
    wire = Wire()
    channel = over(wire, server=True)
    channel.queue(separate((1 << 20) - 24, 17))
    turns: list[int] = []
    while not channel.send_some():
        turns.append(channel.bytes_sent)
    assert turns == [8 << 20, 16 << 20]
    assert channel.bytes_sent == 17 << 20


@pytest.mark.parametrize("most", [1, 7, 24, 33, 34, 35, 100])
def test_a_part_that_was_sent_in_part_goes_on_where_it_ended(most: int) -> None:
    frames = [TaggedFrame(n, 10, [memoryview(b"0123456789")]) for n in range(5)]
    whole = Wire()
    complete = over(whole)
    complete.queue(frames)
    complete.send_some()
    wire = Wire(*[most] * 200)
    channel = over(wire)
    channel.queue(frames)
    assert channel.send_some()
    assert wire.sent == whole.sent
    assert channel.bytes_sent == len(wire.sent) == 8 + 5 * 34


def test_a_full_socket_ends_a_turn() -> None:
    wire = Wire(5, -1, 3, -1)
    channel = over(wire)
    channel.queue([])
    for sent in (5, 8):
        done = channel.send_some()
        assert (done, channel.bytes_sent) == (sent == 8, sent)
    assert wire.sent == PREFACE


def test_the_kernel_waits_for_the_file_after_a_header(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(256)) * 128)
    ours, theirs = socket.socketpair()
    flags: list[int] = []
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    with theirs, closing(SourceFile(tmp_path / "x")) as file, closing(channel):
        span = FileSpan(file, 256, 20_000)
        channel.queue([TaggedFrame(5, 20_000, [span]), UntaggedFrame(b"end")])
        original, channel._socket = channel._socket, cast(Any, Spy(ours, flags))
        theirs.settimeout(10)
        assert channel.send_some()
        channel._socket = original
        expected = HEADER.pack(1, 20_000, 5) + (bytes(range(256)) * 128)[256:20_256]
        expected += untagged(b"end")
        assert theirs.recv(1 << 20, socket.MSG_WAITALL)[:20_000] == expected[:20_000]
        assert channel.bytes_sent == len(expected)
        assert (span.offset, span.nbytes) == (256, 20_000)  # that of the caller is unchanged
    assert flags == [socket.MSG_NOSIGNAL | socket.MSG_MORE, socket.MSG_NOSIGNAL]


class Spy:
    """A socket that notes the flags of its calls."""

    def __init__(self, sock: socket.socket, flags: list[int]) -> None:
        self._sock = sock
        self._flags = flags
        self.fileno = sock.fileno

    def sendmsg(self, views: list[memoryview], ancillary: Any, flags: int) -> int:
        self._flags.append(flags)
        return self._sock.sendmsg(views, ancillary, flags)


def test_a_call_receives_as_much_as_all_before_it_and_at_most_1_mib() -> None:
    frame = untagged(bytes(1000))
    channel = over(Wire(gives=PREFACE + frame * 4000))
    frames: list[IncomingFrame] = []
    before = 0
    while len(frames) < 4000:
        frames += channel.receive_some()
        count = channel.bytes_received - before
        most = min(1 << 20, max(before, 1))
        assert most <= count < most + (256 << 10) or len(frames) == 4000
        before += count
    assert before > 3 << 20
    assert channel.at_boundary


def test_a_read_goes_on_until_it_has_a_frame() -> None:
    wire = Wire(gives=PREFACE + HEADER.pack(1, 3 << 20, 7) + bytes(3 << 20))
    channel = over(wire)
    (frame,) = channel.receive_some()
    assert isinstance(frame, ReceivedFrame)
    assert frame.body.nbytes == 3 << 20


@pytest.mark.parametrize(
    ("missing", "low_water"),
    [
        (1 << 20, 256 << 10),
        ((256 << 10) + 1, 256 << 10),
        (100_000, 100_000),
        (64 << 10, 64 << 10),
        ((64 << 10) - 1, 1),
        (1, 1),
    ],
)
def test_the_kernel_wakes_a_reader_for_a_large_part_of_a_body(
    monkeypatch: pytest.MonkeyPatch, missing: int, low_water: int
) -> None:
    monkeypatch.setattr(socket_channel, "time", SimpleNamespace(monotonic=lambda: 100.0))
    nbytes = missing + 50_000
    wire = Wire(gives=PREFACE + HEADER.pack(1, nbytes, 7) + bytes(50_000))
    channel = over(wire)
    for _ in range(2):
        assert channel.receive_some() == []
    assert wire.low_water == ([] if low_water == 1 else [low_water])
    assert channel.wake_at == (None if low_water == 1 else 100.0 + 0.05)
    wire.gives = memoryview(bytes(missing))
    assert len(channel.receive_some()) == 1
    assert channel.receive_some() == []
    assert wire.low_water == ([] if low_water == 1 else [low_water, 1])
    assert channel.wake_at is None


@pytest.mark.parametrize(("nbytes", "is_proven"), [((16 << 10) - 1, True), (16 << 10, False)])
def test_a_body_that_comes_from_no_file_survives_a_broken_connection(
    nbytes: int, is_proven: bool
) -> None:
    data = PREFACE + untagged(bytes(16 << 10)) + HEADER.pack(1, nbytes, 7) + bytes(nbytes)
    wire = Wire(gives=data)
    wire.error = 104
    channel = over(wire)
    if is_proven:
        assert len(channel.receive_some()) == 2
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="with peer broke: Connection reset by peer"):
            channel.receive_some()


def large_message(number: int, nbytes: int) -> bytes:
    metadata = pack_metadata(1, number, b"metadata")
    return untagged(metadata) + HEADER.pack(1, nbytes, number) + bytes(nbytes)


def test_a_run_of_large_bodies_may_come_from_a_file_that_changed() -> None:
    wire = Wire(gives=PREFACE + b"".join(large_message(k, 20_000) for k in range(1, 3)))
    channel = over(wire)
    assert len(channel.receive_some()) == 4
    wire.gives = memoryview(b"".join(large_message(k, 20_000) for k in range(3, 6)))
    wire.error = 104
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="with peer broke: Connection reset by peer"):
            channel.receive_some()


def test_the_metadata_of_an_expected_message_arrives_before_the_end_of_the_connection() -> None:
    data = PREFACE + b"".join(large_message(k, 20_000) for k in range(1, 6))
    frames = received(data[:-20_000], ConnectionLostError)
    tags = [frame.tag for frame in expand_frames(frames) if isinstance(frame, ReceivedFrame)]
    assert tags == [1, 2, 3, 4]
    assert frames[-1] == UntaggedFrame(pack_metadata(1, 5, b"metadata"))


def test_a_full_run_is_handed_over_before_the_next_is_received() -> None:
    messages = [large_message(k, 64 << 10) for k in range(1, 40)]
    channel = over(Wire(gives=PREFACE + b"".join(messages)))
    taken: list[list[int]] = []
    before = pa.total_allocated_bytes()
    most = 0
    while sum(map(len, taken)) < len(messages):
        frames = list(expand_frames(channel.receive_some()))
        taken.append([frame.tag for frame in frames if isinstance(frame, ReceivedFrame)])
        most = max(most, pa.total_allocated_bytes() - before)
        del frames
    assert [tag for tags in taken for tag in tags] == list(range(1, 40))
    assert max(map(len, taken[1:])) == 8
    assert most < 3 * RUN_BYTES // 2


def test_a_server_expects_no_runs() -> None:
    data = PREFACE + b"".join(large_message(k, 20_000) for k in range(1, 9))
    channel = over(Wire(gives=data), server=True)
    assert not any(isinstance(frame, MessageRun) for frame in channel.receive_some())


def test_a_server_does_not_ask_for_the_error_of_its_socket() -> None:
    wire = Wire(gives=PREFACE + untagged(b"x"))
    wire.error = 104
    channel = over(wire, server=True)
    assert channel.receive_some() == [UntaggedFrame(b"x")]
    assert channel.receive_some() == []
    assert wire.sent == PREFACE  # the server's, once it has that of the client


def test_a_server_sends_its_preface_second() -> None:
    wire = Wire(gives=PREFACE[:5])
    channel = over(wire, server=True)
    assert channel.send_some()
    assert channel.receive_some() == []
    assert (wire.sent, channel.preface_received, channel.at_boundary) == (b"", False, False)
    wire.gives = memoryview(PREFACE[5:])
    assert channel.receive_some() == []
    assert (wire.sent, channel.preface_received, channel.at_boundary) == (PREFACE, True, True)


@pytest.mark.parametrize("ends", [False, True])
def test_the_preface_of_a_server_precedes_its_answer(ends: bool) -> None:
    wire = Wire(gives=PREFACE + untagged(b"request"))
    channel = over(wire, server=True)
    assert channel.receive_some() == [UntaggedFrame(b"request")]
    assert wire.sent == b""
    if ends:
        channel.close()
        assert wire.sent == PREFACE
        return
    channel.queue([UntaggedFrame(b"answer")])
    assert channel.send_some()
    assert wire.sent == PREFACE + untagged(b"answer")
    assert len(wire.calls) == 1
    channel.close()
    assert channel.bytes_sent == len(wire.sent)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"\0\0\x12\x04\0\0\0\0\0", "is a control plane, not a data listener: use a URI that"),
        (b"\0\0\x12\x05\0\0\0\0\0", "does not speak splitarrow: it answered"),
        (b"\0\1\x12\x04\0\0\0\0\0", "does not speak splitarrow: it answered"),
        (b"\x15\x03\x03\0\x02\x02\x46", r"requires TLS: use a URI that begins with tcp\+tls://"),
        (b"x" * 40, f"it answered b'{'x' * 32}'$"),
    ],
)
def test_another_server_is_recognized_by_its_first_bytes(answer: bytes, why: str) -> None:
    channel = over(Wire(gives=answer))
    with pytest.raises(NotAPeerError, match=f"^peer .*{why}"):
        channel.receive_some()
    other = over(Wire(gives=answer), server=True)
    with pytest.raises(ProtocolError, match="are not the preface"):
        other.receive_some()


@pytest.mark.parametrize(
    ("server", "answer", "error", "why"),
    [
        (False, b"", NotAPeerError, "without an answer; is it a splitarrow server"),
        (True, b"", ConnectionLostError, "closed the connection before it sent anything"),
        (False, PREFACE, ConnectionLostError, "^peer closed the connection$"),
        (True, PREFACE, ConnectionLostError, "^peer closed the connection$"),
    ],
)
def test_the_end_of_a_connection_is_explained(
    server: bool, answer: bytes, error: type[Exception], why: str
) -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=server, peer="peer", is_local=True)
    with theirs, closing(channel):
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(error, match=why):
            blocking.receive(channel, 10)


def test_an_interrupt_ends_both_directions_and_may_come_late() -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=False, peer="peer", is_local=True)
    with theirs:
        channel.interrupt()
        assert theirs.recv(1) == b""
        with pytest.raises(NotAPeerError):
            channel.receive_some()
        assert channel.fileno() == channel.send_fileno() >= 0
        channel.close()
        channel.interrupt()
        assert channel.fileno() == channel.send_fileno() == -1


def test_a_turn_of_a_file_is_8_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, int]] = []

    def send(out: int, file: int, offset: int, count: int) -> int:
        counts.append((offset, count))
        return min(count, 5 << 20)

    monkeypatch.setattr(os, "sendfile", send)
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, 20 << 20)
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    with theirs, closing(SourceFile(path)) as file, closing(channel):
        channel.queue([TaggedFrame(5, 18 << 20, [FileSpan(file, 1, 18 << 20)])])
        assert not channel.send_some()
        assert channel.bytes_sent == 24 + (10 << 20)
        assert channel.send_some()
    mib = 1 << 20
    assert counts == [
        (1, 8 * mib),
        (1 + 5 * mib, 8 * mib),
        (1 + 10 * mib, 8 * mib),
        (1 + 15 * mib, 3 * mib),
    ]


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(20_000))
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    with theirs, closing(SourceFile(path)) as file, closing(channel):
        channel.queue([TaggedFrame(5, 40_000, [FileSpan(file, 0, 40_000)])])
        with pytest.raises(DatasetError):
            wait_until(channel.send_some)


@pytest.mark.parametrize(("options", "nbytes"), [({}, 256 << 10), ({"staging": 5000}, 5000)])
def test_a_read_fills_the_staging_area(options: dict[str, Any], nbytes: int) -> None:
    wire = Wire(gives=PREFACE + untagged(bytes(1000)) * 2000)
    targets: list[int] = []
    original = wire.recv_into

    def receive(target: memoryview) -> int:
        targets.append(target.nbytes)
        return original(target)

    wire.recv_into = receive
    over(wire, **options).receive_some()
    assert targets[0] == nbytes


def test_a_server_keeps_no_memory_of_a_request() -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Limits(), server=True, peer="peer", is_local=True)
    before = pa.total_allocated_bytes()
    with closing(channel), theirs:
        theirs.sendall(PREFACE + HEADER.pack(1, 6, 1 << 40) + b"ticket")
        frames = channel.receive_some()
        assert [bytes(frame.body) for frame in frames if isinstance(frame, ReceivedFrame)] == [
            b"ticket"
        ]
        frames.clear()
        assert pa.total_allocated_bytes() == before
