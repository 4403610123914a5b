"""A channel with TLS delivers complete frames, whatever happens to the ciphertext."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.pki import Pki
from splitarrow.errors import (
    ConnectError,
    ConnectionLostError,
    DatasetError,
    NotAPeerError,
    ProtocolError,
    SplitArrowError,
    StallError,
    TransportError,
)
from splitarrow.protocol.frames import (
    IncomingFrame,
    OutgoingFrame,
    ReceivedFrame,
    TaggedFrame,
    UntaggedFrame,
)
from splitarrow.protocol.limits import Limits
from splitarrow.transport import blocking
from splitarrow.transport import tls as channel_module
from splitarrow.transport.framing import PREFACE, encode_frames
from splitarrow.transport.memory.files import FileSpan, SourceFile
from splitarrow.transport.tls import TlsChannel
from splitarrow.transport.tls_options import build_client_context, build_server_context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


class Pair:
    """Two channels and a wire between them that carries as many bytes as the test chooses."""

    def __init__(self, pki: Pki, *, buffer: int = 4096) -> None:
        self.client_end, client = socket.socketpair()
        self.server_end, server = socket.socketpair()
        for sock in (self.client_end, client, self.server_end, server):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.client = TlsChannel(
            client,
            Limits(),
            build_client_context(pki.make_client_options()),
            server=False,
            server_name="127.0.0.1",
            peer="the server",
            is_local=True,
        )
        self.server = TlsChannel(
            server,
            Limits(),
            build_server_context(pki.make_server_options()),
            server=True,
            peer="the client",
            is_local=True,
            staging=16 << 10,
        )
        self.to_client = self.to_server = b""
        self.passed = 0
        self.cut_after: int | None = None
        self.flip_at: int | None = None

    def pump(self, most: int) -> int:
        """Carry up to `most` bytes in each direction and return their number."""
        moved = 0
        for source, target, name in (
            (self.client_end, self.server_end, "to_server"),
            (self.server_end, self.client_end, "to_client"),
        ):
            held: bytes = getattr(self, name)
            if not held:
                try:
                    held = source.recv(most)
                except BlockingIOError:
                    continue
                if name == "to_client":
                    held = self._spoiled(held)
                    if not held:
                        continue
            try:
                sent = target.send(held)
            except BlockingIOError:
                sent = 0
            setattr(self, name, held[sent:])
            moved += sent
        return moved

    def _spoiled(self, data: bytes) -> bytes:
        begin, self.passed = self.passed, self.passed + len(data)
        if self.flip_at is not None and begin <= self.flip_at < self.passed:
            at = self.flip_at - begin
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if self.cut_after is not None and self.passed >= self.cut_after:
            if begin <= self.cut_after:
                self.client_end.send(data[: self.cut_after - begin])
                self.client_end.shutdown(socket.SHUT_WR)
            return b""
        return data

    def close(self) -> None:
        self.client.close()
        self.server.abort()
        self.client_end.close()
        self.server_end.close()

    def run(
        self, sizes: Iterator[int], there: Sequence[OutgoingFrame], back: Sequence[OutgoingFrame]
    ) -> tuple[list[IncomingFrame], list[IncomingFrame]]:
        """Let both ends send frames until all of them have arrived."""
        self.client.queue(there)
        queued = False
        at_client: list[IncomingFrame] = []
        at_server: list[IncomingFrame] = []
        idle = 0
        while len(at_client) < len(back) or len(at_server) < len(there):
            if not queued and self.server.preface_received:  # a server speaks second
                queued = True
                self.server.queue(back)
            sent = self.client.send_some() & self.server.send_some()
            moved = self.pump(next(sizes))
            got = len(at_client) + len(at_server)
            at_client += self.client.receive_some()
            at_server += self.server.receive_some()
            still = not moved and got == len(at_client) + len(at_server)
            idle = idle + 1 if still else 0
            assert idle < 50, f"nothing moves any more (all sent: {sent})"
        return at_client, at_server


def frames_of(sizes: list[int], seed: int) -> list[OutgoingFrame]:
    draw = random.Random(seed)
    frames: list[OutgoingFrame] = []
    for number, size in enumerate(sizes):
        data = draw.randbytes(size)
        if number % 3 == 0:
            frames.append(UntaggedFrame(data[:1000]))
        else:
            cut = draw.randrange(size + 1)
            parts = (pa.py_buffer(data[:cut]), data[cut:])
            frames.append(TaggedFrame((1 << 40) + number, size, parts))
    return frames


def check_same(sent: list[OutgoingFrame], received: list[IncomingFrame]) -> None:
    assert len(sent) == len(received)
    for frame, got in zip(sent, received, strict=True):
        if isinstance(frame, UntaggedFrame):
            assert got == frame
        else:
            assert isinstance(got, ReceivedFrame)
            assert got.tag == frame.tag
            assert bytes(got.body) == b"".join(bytes(part) for part in frame.buffers)


def test_bodies_of_every_size_arrive_in_both_directions(pki: Pki) -> None:
    sizes = [0, 1, 24, 500, 16_383, 16_384, 7, 16_385, 40_000, 0, 262_144, 262_145, 1, 1_500_000]
    there, back = frames_of(sizes, 1), frames_of(sizes, 2)
    with closing(Pair(pki, buffer=1 << 16)) as pair:
        at_client, at_server = pair.run(iter(lambda: 1 << 16, 0), there, back)
        check_same(there, at_server)
        check_same(back, at_client)
        assert pair.client.at_boundary
        assert pair.server.bytes_sent >= 2_000_000
        assert pair.client.bytes_received == pair.server.bytes_sent


def test_frames_arrive_one_byte_at_a_time(pki: Pki) -> None:
    there, back = frames_of([500, 3000, 0, 20_000], 3), frames_of([0, 1, 2, 300], 4)
    with closing(Pair(pki)) as pair:
        at_client, at_server = pair.run(iter(lambda: 1, 0), there, back)
        check_same(there, at_server)
        check_same(back, at_client)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    pieces=st.lists(st.integers(100, 30_000), min_size=1, max_size=10),
)
def test_frames_arrive_in_pieces_of_any_size(
    pki: Pki, sizes: list[int], seed: int, pieces: list[int]
) -> None:
    there, back = frames_of(sizes, seed), frames_of(sizes, seed + 1)
    draw = random.Random(seed)
    with closing(Pair(pki, buffer=draw.choice([2048, 8192, 65536]))) as pair:
        at_client, at_server = pair.run(iter(lambda: draw.choice(pieces), 0), there, back)
        check_same(there, at_server)
        check_same(back, at_client)


def drain(pair: Pair, expected: int) -> list[IncomingFrame]:
    """Receive at the client until an error occurs. The test fails without an error."""
    received: list[IncomingFrame] = []
    for _ in range(10_000):
        pair.server.send_some()
        pair.pump(4096)
        pair.server.receive_some()
        received += pair.client.receive_some()
        assert len(received) < expected
    raise AssertionError("nothing went wrong")


@contextmanager
def make_connected_pair(pki: Pki) -> Generator[Pair]:
    """Return a pair that has exchanged its handshake and prefaces."""
    with closing(Pair(pki, buffer=1 << 16)) as pair:
        greet(pair)
        pair.passed = 0
        yield pair


def greet(pair: Pair) -> None:
    hello = [UntaggedFrame(b"hello")]
    assert pair.run(iter(lambda: 1 << 16, 0), hello, hello) == (hello, hello)


def test_a_cut_anywhere_is_detected(pki: Pki) -> None:
    draw = random.Random(5)
    frames = frames_of([100, 50_000, 3, 500, 20_000], 5)
    total = 70_000
    for cut in [0, 1, 5, 6, *(draw.randrange(total) for _ in range(30))]:
        with make_connected_pair(pki) as pair:
            pair.cut_after = cut
            pair.server.queue(frames)
            with pytest.raises(ConnectionLostError):
                drain(pair, len(frames))


def test_a_flipped_bit_is_detected(pki: Pki) -> None:
    draw = random.Random(6)
    frames = frames_of([100, 50_000, 3, 500, 20_000], 6)
    for at in [0, 1, 2, 3, 4, 5, *(draw.randrange(70_000) for _ in range(30))]:
        with make_connected_pair(pki) as pair:
            pair.flip_at = at
            pair.server.queue(frames)
            try:
                drain(pair, len(frames))
            except TransportError:
                continue
            except AssertionError:
                # A length that has grown waits for more; the handshake was good, so it must
                # not have shown a frame that is not as it was sent.
                assert at in (3, 4)


def test_a_flipped_bit_in_the_handshake_is_detected(pki: Pki) -> None:
    draw = random.Random(7)
    for at in [0, *(draw.randrange(800) for _ in range(40))]:
        with closing(Pair(pki, buffer=1 << 16)) as pair:
            pair.flip_at = at
            try:
                greet(pair)
            except (SplitArrowError, AssertionError):
                continue
            assert at in (1, 2), "a handshake that was tampered with passed"


def test_regions_of_files_are_read_in_pieces(pki: Pki, tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = random.Random(8).randbytes(1_300_000)
    path.write_bytes(data)
    with closing(SourceFile(path)) as file, make_connected_pair(pki) as pair:
        region = FileSpan(file, 1000, 1_200_000)
        small = FileSpan(file, 5, 100)
        parts = (b"begin", region, b"between", small, region)
        pair.server.queue([TaggedFrame(1 << 40, 5 + 1_200_000 + 7 + 100 + 1_200_000, parts)])
        received: list[IncomingFrame] = []
        while not received:
            pair.server.send_some()
            pair.pump(1 << 16)
            received = pair.client.receive_some()
        assert isinstance(received[0], ReceivedFrame)
        middle = data[1000 : 1000 + 1_200_000]
        assert bytes(received[0].body) == b"begin" + middle + b"between" + data[5:105] + middle
        assert (region.offset, region.nbytes) == (1000, 1_200_000)  # the caller's stays as it was


def test_a_file_that_shrinks_is_an_error(pki: Pki, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(1_000_000))
    with (
        closing(SourceFile(path, refuse_writers=False)) as file,
        make_connected_pair(pki) as pair,
    ):
        pair.server.queue([TaggedFrame(1 << 40, 1_000_000, (FileSpan(file, 0, 1_000_000),))])
        pair.server.send_some()
        path.write_bytes(bytes(300_000))
        with pytest.raises(DatasetError, match="ends at byte"):
            drain(pair, 1)


def test_receiving_continues_while_sending_is_blocked(pki: Pki) -> None:
    with make_connected_pair(pki) as pair:
        pair.server.queue([TaggedFrame(1 << 40, 1 << 20, (bytes(1 << 20),))])
        while pair.server.send_some() or pair.server.bytes_sent < 60_000:
            pass
        assert not pair.server.send_some()
        assert not pair.server.send_waits_readable
        pair.client.queue([UntaggedFrame(b"stop")])
        pair.client.send_some()
        pair.server_end.send(pair.client_end.recv(1 << 16))
        assert pair.server.receive_some() == [UntaggedFrame(b"stop")]


def test_before_the_handshake_sending_waits_for_the_peer(pki: Pki) -> None:
    with closing(Pair(pki)) as pair:
        pair.server.queue([UntaggedFrame(b"x")])
        assert not pair.server.send_some()
        assert pair.server.send_waits_readable
        assert pair.server.receive_some() == []
        assert pair.server.wake_at is None
        with pytest.raises(StallError):
            blocking.receive(pair.server, 0.05)


def test_a_handshake_without_room_is_retried(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver waits for the peer, so the channel sets `wake_at` to be called."""
    monkeypatch.setattr(channel_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    with closing(Pair(pki)) as pair:
        pair.client.send_some()
        hello = pair.client_end.recv(1 << 16)
        filler = pair.server._socket
        try:
            while True:
                filler.send(b"\0")
        except BlockingIOError:
            pass
        pair.server_end.send(hello)
        assert pair.server.receive_some() == []
        assert pair.server.has_unsent_bytes
        assert not pair.server.send_waits_readable
        assert pair.server.wake_at == 100.01
        while select.select([pair.server_end], [], [], 0)[0]:
            pair.server_end.recv(1 << 16)
        assert pair.server.receive_some() == []
        assert not pair.server.has_unsent_bytes
        assert pair.server.wake_at is None


def test_small_parts_share_a_record(pki: Pki) -> None:
    """A record takes 22 bytes more than its contents, which are 16 KiB at most."""
    with make_connected_pair(pki) as pair:
        before = pair.server.bytes_sent
        frames: list[OutgoingFrame] = [TaggedFrame(1 << 40, 100, (b"x" * 50, b"y" * 50))] * 300
        plain = sum(len(bytes(part)) for part in encode_frames(frames))
        pair.server.queue(frames)
        assert pair.server.send_some()
        records = (pair.server.bytes_sent - before - plain) / 22
        assert records in (least := -(-plain // (16 << 10)), least + 1)
        assert pair.server.send_waits_readable is False


def test_limits_are_enforced(pki: Pki) -> None:
    with make_connected_pair(pki) as pair:
        pair.server.queue([UntaggedFrame(bytes(17 << 20))])
        with pytest.raises(ProtocolError, match="the limit is"):
            drain(pair, 1)


def test_close_and_abort_are_idempotent(pki: Pki) -> None:
    with make_connected_pair(pki) as pair:
        pair.client.close()
        pair.client.close()
        pair.client.abort()
        assert pair.client.fileno() == -1
        pair.pump(1 << 16)
        pair.server_end.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLostError, match="the client closed the connection"):
            pair.server.receive_some()
        pair.server.abort()
        with pytest.raises(ConnectionLostError, match="closed"):
            pair.server.receive_some()


@contextmanager
def connected(pki: Pki) -> Generator[tuple[TlsChannel, TlsChannel]]:
    """Two channels over real TCP, each for a thread of its own."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    client = TlsChannel(
        near,
        Limits(),
        build_client_context(pki.make_client_options()),
        server=False,
        server_name="127.0.0.1",
        peer="server",
        is_local=True,
    )
    server = TlsChannel(
        far,
        Limits(),
        build_server_context(pki.make_server_options()),
        server=True,
        peer="client",
        is_local=True,
    )
    with closing(client), closing(server):
        yield client, server


def test_two_threads_may_send_and_receive(pki: Pki) -> None:
    """OpenSSL itself does not support two threads on one connection."""
    count, body = 60, bytes(100_000)
    frames = [TaggedFrame((1 << 40) + n, len(body), (body,)) for n in range(count)]
    got: dict[str, int] = {}

    def receive(channel: TlsChannel, name: str) -> None:
        while got.get(name, 0) < count:
            got[name] = got.get(name, 0) + len(blocking.receive(channel, 20))

    def send(channel: TlsChannel) -> None:
        for frame in frames:
            blocking.send(channel, [frame], 20)

    with connected(pki) as (client, server):
        hello = threading.Thread(target=blocking.receive, args=(server, 20))
        hello.start()
        blocking.send(client, [UntaggedFrame(b"hello")], 20)
        hello.join()
        threads = [
            threading.Thread(target=send, args=(client,)),
            threading.Thread(target=send, args=(server,)),
            threading.Thread(target=receive, args=(server, "server")),
            threading.Thread(target=receive, args=(client, "client")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == {"server": count, "client": count}


def test_interrupt_ends_a_wait(pki: Pki) -> None:
    with connected(pki) as (client, server):
        hello = threading.Thread(target=blocking.receive, args=(server, 20))
        hello.start()
        blocking.send(client, [UntaggedFrame(b"hello")], 20)
        hello.join()
        timer = threading.Timer(0.02, client.interrupt)
        timer.start()
        with pytest.raises(TransportError):
            blocking.receive(client, 20)
        timer.join()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "the client does not use TLS"),
        (PREFACE, "the client uses plain tcp; its URI must begin with tcp\\+tls"),
    ],
)
def test_a_client_without_tls_is_named(pki: Pki, data: bytes, why: str) -> None:
    with closing(Pair(pki)) as pair:
        pair.server_end.send(data)
        with pytest.raises(NotAPeerError, match=why):
            pair.server.shake_hands()


class Recorder:
    """Stands for OpenSSL: it notes what it encrypts, and takes some bytes of it at a time."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most
        self.writes: list[int] = []
        self.data = b""

    def write(self, data: bytes | memoryview) -> int:
        taken = min(len(data), self.most)
        self.writes.append(taken)
        self.data += bytes(data[:taken])
        return taken


def encrypting(pki: Pki, recorder: Recorder, *parts: Any) -> tuple[Pair, Any]:
    pair = Pair(pki)
    channel: Any = pair.client
    channel._tls = recorder
    channel._parts.clear()
    channel._parts.extend(parts)
    return pair, channel


def view(nbytes: int) -> memoryview:
    return memoryview(bytes(nbytes))


@pytest.mark.parametrize(
    ("sizes", "records"),
    [
        ([8192, 8192, 1], [16384, 1]),
        ([8192, 8193], [8192, 8193]),
        ([16383, 1, 1], [16384, 1]),
        ([16384, 1], [16384, 1]),
        ([1, 16384], [1, 16384]),
        ([1, 20_000, 1], [1, 20_000, 1]),
        ([300_000], [256 << 10]),
        ([200_000, 100_000], [200_000, (256 << 10) - 200_000]),
        ([256 << 10, 5], [256 << 10]),
        ([(256 << 10) - 1, 5, 5], [(256 << 10) - 1, 10]),
    ],
)
def test_parts_are_encrypted_in_records_and_256_kib_at_a_time(
    pki: Pki, sizes: list[int], records: list[int]
) -> None:
    recorder = Recorder()
    pair, channel = encrypting(pki, recorder, *map(view, sizes))
    channel._encrypt()
    assert recorder.writes == records
    assert sum(part.nbytes for part in channel._parts) == sum(sizes) - sum(records)
    assert all(part.nbytes for part in channel._parts)
    pair.close()


def test_openssl_may_take_a_part_of_the_bytes(pki: Pki) -> None:
    recorder = Recorder(most=7)
    pair, channel = encrypting(pki, recorder, memoryview(bytes(range(20))))
    channel._encrypt()
    assert recorder.writes == [7, 7, 6]
    assert recorder.data == bytes(range(20))
    pair.close()


def test_a_file_is_encrypted_in_pieces_between_the_other_parts(pki: Pki, tmp_path: Path) -> None:
    data = random.Random(9).randbytes(600_000)
    (tmp_path / "x").write_bytes(data)
    recorder = Recorder()
    with closing(SourceFile(tmp_path / "x")) as file:
        span = FileSpan(file, 100, 500_000)
        pair, channel = encrypting(pki, recorder, view(3), span, view(4))
        left: list[int] = []
        while channel._parts:
            channel._encrypt()
            left.append(sum(part.nbytes for part in channel._parts))
        pair.close()
    assert recorder.data == bytes(3) + data[100:500_100] + bytes(4)
    assert recorder.writes == [3, 256 << 10, 500_000 - (256 << 10), 4]
    assert left == [500_004 - (256 << 10), 0]
    assert (span.offset, span.nbytes) == (500_100, 0)


def test_a_read_takes_1_mib_at_most(pki: Pki) -> None:
    with make_connected_pair(pki) as pair:
        channel: Any = pair.client
        original, channel._tls = channel._tls, SimpleNamespace()
        channel._tls.read = lambda most, target: min(most, 16 << 10)
        assert channel._receive_into([view(3 << 20)]) == 1 << 20
        assert channel._receive_into([view(100), view(40_000)]) == 40_100
        channel._tls.read = lambda most, target: min(most, (1 << 20) - 1)
        assert channel._receive_into([view(3 << 20), view(5)]) == 2 * ((1 << 20) - 1)
        channel._tls = original


class Sink:
    """A socket that sends everything, or raises an error."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.sent = 0

    def send(self, data: memoryview, flags: int) -> int:
        assert flags == socket.MSG_NOSIGNAL
        if self.error is not None:
            raise self.error
        self.sent += len(data)
        return len(data)

    def recv_into(self, target: memoryview) -> int:
        raise BlockingIOError


def test_what_openssl_answers_while_reading_is_sent_at_once(pki: Pki) -> None:
    """It answers an update of the keys, and refuses what is malformed."""
    with make_connected_pair(pki) as pair:
        channel: Any = pair.client

        def read(most: int, target: memoryview) -> int:
            channel._outgoing.write(b"answer")
            raise ssl.SSLZeroReturnError

        original, channel._tls = channel._tls, SimpleNamespace(read=read)
        assert channel._receive_into([view(5)]) == 0
        assert pair.client_end.recv(100) == b"answer"
        channel._socket, sock = Sink(BrokenPipeError()), channel._socket
        assert channel._receive_into([view(5)]) == 0  # the peer may be gone
        channel._tls, channel._socket = original, sock


def test_nothing_is_decrypted_before_the_handshake(pki: Pki) -> None:
    with closing(Pair(pki)) as pair:
        channel: Any = pair.client

        def shake() -> None:
            raise ssl.SSLWantReadError

        original, channel._tls = channel._tls, SimpleNamespace(do_handshake=shake)
        assert channel.receive_some() == []
        channel._tls = original


def test_a_turn_ends_when_enough_ciphertext_was_sent(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = (256 << 10) + 17 * 22  # a record for the header, and 16 for the body
    for turn, sent in ((1, piece), (piece, piece), (piece + 1, 2 * piece - 22)):
        monkeypatch.setattr(channel_module, "TURN_BYTES", turn)
        with make_connected_pair(pki) as pair:
            channel: Any = pair.client
            before = channel.bytes_sent
            original, channel._socket = channel._socket, Sink()
            channel.queue([TaggedFrame(7, 600_000, (bytes(600_000),))])
            assert channel.send_some() is False
            assert channel.bytes_sent - before == channel._socket.sent == sent
            while not channel.send_some():
                pass
            assert channel.send_some() is True
            assert channel._socket.sent > 600_000
            channel._socket = original


def test_a_connection_that_breaks_while_sending_is_lost(pki: Pki) -> None:
    for name in ("client", "server"):
        with make_connected_pair(pki) as pair:
            channel: Any = getattr(pair, name)
            channel.queue([UntaggedFrame(b"x")])
            original, channel._socket = channel._socket, Sink(BrokenPipeError(32, "Broken pipe"))
            with pytest.raises(ConnectionLostError, match=r"broke: Broken pipe"):
                channel.send_some()
            channel._socket = original


def test_a_finished_handshake_leaves_nothing_unsent(pki: Pki) -> None:
    with closing(Pair(pki, buffer=1 << 16)) as pair:
        for channel in (pair.client, pair.server):
            with pytest.raises(BlockingIOError):
                channel.shake_hands()
            assert not channel.has_unsent_bytes
            pair.pump(1 << 16)
        with pytest.raises(BlockingIOError):
            pair.server.shake_hands()
        pair.pump(1 << 16)
        pair.client.shake_hands()
        assert (pair.client.established, pair.client.has_unsent_bytes) == (True, False)
        pair.pump(1 << 16)
        pair.server.shake_hands()
        assert (pair.server.established, pair.server.has_unsent_bytes) == (True, False)


def test_a_plain_client_receives_an_alert_and_a_plain_server_none(pki: Pki) -> None:
    with closing(Pair(pki)) as pair:
        pair.server_end.send(PREFACE[:7])
        with pytest.raises(NotAPeerError, match="the client uses plain tcp"):
            pair.server.shake_hands()
        assert pair.server_end.recv(100) == b"\x15\x03\x03\x00\x02\x02\x46"
        pair.client_end.send(b"x" * 40)
        with pytest.raises(
            NotAPeerError, match=f"server does not use TLS: it answered b'{'x' * 32}'$"
        ):
            pair.client.shake_hands()
    with closing(Pair(pki)) as pair:
        pair.server_end.send(PREFACE[:6])
        with pytest.raises(NotAPeerError, match=r"the client does not use TLS$"):
            pair.server.shake_hands()


def test_a_handshake_that_the_other_end_leaves_is_explained(pki: Pki) -> None:
    for name, error, why in (
        (
            "server",
            ConnectionLostError,
            "the client closed the connection during the TLS handshake$",
        ),
        ("client", NotAPeerError, r"during the TLS handshake; does it use plain tcp://\?$"),
    ):
        with closing(Pair(pki)) as pair:
            getattr(pair, f"{name}_end").shutdown(socket.SHUT_WR)
            with pytest.raises(error, match=why):
                getattr(pair, name).shake_hands()
            assert not getattr(pair, name).established


@pytest.mark.parametrize("kind", [0, 20, 23, 24, 255])
def test_a_connection_with_tls_begins_with_a_handshake_or_an_alert(pki: Pki, kind: int) -> None:
    with closing(Pair(pki)) as pair:
        for end, channel in ((pair.client_end, pair.client), (pair.server_end, pair.server)):
            end.send(bytes([kind, 3, 3, 0, 2, 2, 70]))
            with pytest.raises(NotAPeerError, match="does not use TLS"):
                channel.shake_hands()
    with closing(Pair(pki)) as pair:
        pair.client_end.send(bytes([21, 3, 3, 0, 2, 2, 70]))
        with pytest.raises(ConnectError, match="refuses the TLS connection: it does not support"):
            pair.client.shake_hands()


def test_a_channel_reads_ciphertext_into_the_size_of_its_staging_area(pki: Pki) -> None:
    with closing(Pair(pki)) as pair:
        sizes = [len(channel._ciphertext) for channel in (pair.client, pair.server)]
        assert sizes == [256 << 10, 16 << 10]
