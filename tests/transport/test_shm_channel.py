"""A connection over a Unix socket: announcements, their descriptors, and its end."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from splitarrow.errors import LimitError, NotAPeerError, ProtocolError
from splitarrow.protocol.frames import ReceivedFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.payloads import pack_spans
from splitarrow.protocol.regions import RemoteBody
from splitarrow.protocol.tags import BodyType, pack_body_tag
from splitarrow.transport import shm as channels
from splitarrow.transport.base import Capabilities
from splitarrow.transport.shm import ShmChannel, pack_announcement, parse_announcement

WANT = (1 << 40) + 1
HANDLE = bytes(range(16))
DATA = bytes(range(256)) * 16
BODY = pack_body_tag(1, BodyType.OFFSETS)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class Memory:
    """Sealed memory, as a server announces it."""

    def __init__(self, data: bytes = DATA) -> None:
        self._descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.write(self._descriptor, data)
        fcntl.fcntl(self._descriptor, 1033, 2 | 4 | 8)

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class Ends:
    """Both ends of a connection."""

    def __init__(self, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        limits = Limits()
        options = {"region_tag": WANT, "handle": HANDLE} | options
        self.server = ShmChannel(ours, limits, server=True, peer="a reader", handle=HANDLE)
        self.reader = ShmChannel(theirs, limits, server=False, peer="a server", **options)
        self.reader.queue([TaggedFrame(WANT, 1, (b"t",))])
        assert self.reader.send_some()
        assert len(self.server.receive_some()) == 1

    def announce(self, *descriptors: Any, size: int = len(DATA)) -> TaggedFrame:
        part = self.server.announce(size, descriptors)
        return TaggedFrame(WANT, part.nbytes, (part,))

    def transfer(self, *frames: Any) -> list[Any]:
        """Send frames to the reader; return those that it receives."""
        self.server.queue(frames)
        assert self.server.send_some()
        return self.reader.receive_some()

    def close(self) -> None:
        self.reader.abort()
        self.server.abort()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def remote_body(*spans: tuple[int, int]) -> TaggedFrame:
    payload = pack_spans(list(spans))
    return TaggedFrame(BODY, len(payload), (payload,))


def contents(frame: Any) -> list[bytes]:
    assert isinstance(frame.body, RemoteBody)
    flat = struct.unpack(f"<{frame.body.nbytes // 8}Q", bytes(frame.body))
    return [
        frame.body.region.buffer(offset, nbytes, None).to_pybytes()
        for offset, nbytes in zip(flat[2::2], flat[3::2], strict=True)
    ]


def test_an_announcement_has_the_documented_layout() -> None:
    """See docs/wire.md: the identifier, and the size."""
    payload = pack_announcement(HANDLE, 4097)
    assert payload == HANDLE + (4097).to_bytes(8, "little")
    assert parse_announcement(payload, HANDLE) == 4097
    assert parse_announcement(memoryview(payload), HANDLE) == 4097
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(ProtocolError, match=f"in {len(wrong)} bytes; expected 24"):
            parse_announcement(wrong, HANDLE)
    with pytest.raises(NotAPeerError, match="the server has restarted"):
        parse_announcement(payload, bytes(16))


def test_a_new_channel(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends.reader.capabilities == Capabilities(offset_bodies=True)
    assert (ends.reader.user, ends.reader.is_local) == (os.geteuid(), True)
    assert (ends.reader.peer, ends.server.peer) == ("a server", "a reader")
    assert channels.get_peer_credentials(ends.server._socket) == (os.getpid(), os.geteuid())
    sizes: list[int] = []
    decoder = "splitarrow.transport.socket_channel.FrameDecoder"
    monkeypatch.setattr(decoder, lambda limits, *, staging, **_: sizes.append(staging))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ShmChannel(ours, Limits(), server=True, peer="")
        ShmChannel(theirs, Limits(), server=True, peer="", staging=5)
    assert sizes == [64 << 10, 5]


def test_a_region_arrives_before_the_bodies_in_it(ends: Ends) -> None:
    memory, later = Memory(), Memory(DATA[::-1])
    frames = ends.transfer(
        UntaggedFrame(b"\1before"),
        ends.announce(memory),
        UntaggedFrame(b"\1between"),
        remote_body((0, 10), (300, 20)),
        ends.announce(later),
        remote_body((1, 2)),
    )
    while more := ends.reader.receive_some():
        frames += more
    assert [type(frame) for frame in frames] == [UntaggedFrame] * 2 + [ReceivedFrame] * 2
    assert [frame.payload for frame in frames[:2]] == [b"\1before", b"\1between"]
    assert contents(frames[2]) == [DATA[:10], DATA[300:320]]
    assert contents(frames[3]) == [DATA[::-1][1:3]]
    assert frames[2].tag == BODY
    packed = TaggedFrame(pack_body_tag(3), 6, (b"packed",))
    (frame,) = ends.transfer(packed)
    assert (frame.tag, bytes(frame.body)) == (packed.tag, b"packed")


def test_an_announcement_alone_is_no_frame(ends: Ends) -> None:
    assert ends.transfer(ends.announce(Memory())) == []
    (frame,) = ends.transfer(remote_body((5, 1)))
    assert contents(frame) == [DATA[5:6]]


def test_the_bytes_of_announcements_count(ends: Ends) -> None:
    start(ends)
    sent, received = ends.server.bytes_sent, ends.reader.bytes_received
    ends.transfer(ends.announce(Memory()))
    assert ends.server.bytes_sent == sent + 48
    assert ends.reader.bytes_received == received + 48


def test_an_announcement_may_be_sent_in_parts(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ends.server._socket
    sizes: list[int] = []

    class Socket:
        """Sends an announcement's first ten bytes, with its descriptors."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def sendmsg(self, views: list[Any], rights: Any, flags: int) -> int:
            assert flags & socket.MSG_NOSIGNAL
            sizes.append(len(rights))
            if rights:
                return real.sendmsg([views[0][:10]], rights, flags)
            return real.sendmsg(views, rights, flags)

    monkeypatch.setattr(ends.server, "_socket", Socket())
    ours, theirs = socket.socketpair()
    with ours:
        (frame,) = ends.transfer(ends.announce(Memory(), theirs), remote_body((5, 1)))
        assert theirs.fileno() == -1  # only the reader has it now
        assert contents(frame) == [DATA[5:6]]
    assert sizes.count(1) == 1


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_descriptors_of_unsent_announcements_are_closed(ends: Ends, how: str) -> None:
    memory, (ours, theirs) = Memory(), socket.socketpair()
    with ours:
        ends.server.queue([UntaggedFrame(b"\1x"), ends.announce(memory, theirs)])
        getattr(ends.server, how)()
        assert theirs.fileno() == -1
        assert is_open(memory.fileno())


def test_unread_bytes_are_those_in_the_socket(ends: Ends) -> None:
    ends.reader.receive_some()
    assert ends.server.unread_bytes == 0
    ends.server.queue([UntaggedFrame(b"\1" + bytes(1000))])
    ends.server.send_some()
    assert ends.server.unread_bytes > 1000
    ends.reader.receive_some()
    assert ends.server.unread_bytes == 0


# Servers that break the rules.


def send(ends: Ends, payload: bytes, *descriptors: int) -> None:
    """Send bytes and descriptors to the reader, past the server's channel."""
    numbers = array.array("i", descriptors)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if descriptors else []
    ends.server._socket.sendmsg([payload], rights)


def received_descriptors(before: set[str]) -> int:
    return len(set(os.listdir("/proc/self/fd")) - before)


def start(ends: Ends) -> None:
    """Send the preface of the server."""
    ends.server.queue([UntaggedFrame(b"\1x")])
    ends.server.send_some()
    assert len(ends.reader.receive_some()) == 1


@pytest.mark.parametrize(("count", "is_accepted"), [(16, True), (17, False)])
def test_at_most_16_regions_may_wait(ends: Ends, count: int, is_accepted: bool) -> None:
    start(ends)
    memory = Memory()
    before = set(os.listdir("/proc/self/fd"))
    header = struct.pack("<B7xQQ", 0, 100, 0)
    for number in range(count):
        send(ends, header if not number else b"x", memory.fileno())
    if is_accepted:
        assert ends.reader.receive_some() == []
        assert received_descriptors(before) == count
    else:
        with pytest.raises(
            LimitError, match="a server sent too many descriptors: at most 2 with each of 16"
        ):
            ends.reader.receive_some()
    ends.reader.abort()
    assert received_descriptors(before) == 0


@pytest.mark.parametrize(("count", "is_accepted"), [(2, True), (3, False)])
def test_at_most_2_descriptors_come_with_a_region(
    ends: Ends, count: int, is_accepted: bool
) -> None:
    start(ends)
    memory = Memory()
    before = set(os.listdir("/proc/self/fd"))
    send(ends, b"\0", *[memory.fileno()] * count)
    if is_accepted:
        assert ends.reader.receive_some() == []
        assert received_descriptors(before) == count
        assert not any(os.get_inheritable(each) for each in ends.reader._descriptors[0])
    else:
        with pytest.raises(LimitError, match="too many descriptors"):
            ends.reader.receive_some()
    ends.reader.close()
    assert received_descriptors(before) == 0


def test_announcements_are_handled_before_8_of_them_wait(ends: Ends) -> None:
    """Otherwise the descriptors of a fast server would reach the limit."""
    enough = ends.reader._has_received_enough
    ends.reader._descriptors.extend([[]] * 7)
    assert not enough(0)
    ends.reader._descriptors.append([])
    assert enough(0)
    ends.reader._descriptors.clear()
    assert enough(1 << 20)


def test_frames_come_before_the_error_behind_them(ends: Ends) -> None:
    frames = ends.transfer(UntaggedFrame(b"\1x"), remote_body((0, 1)))
    assert [frame.payload for frame in frames] == [b"\1x"]
    for _ in range(2):
        with pytest.raises(ProtocolError, match="before any region"):
            ends.reader.receive_some()


@pytest.mark.parametrize(
    ("options", "descriptors", "error", "why"),
    [
        ({"handle": None}, 1, ProtocolError, "the URI has no remote_handle"),
        ({"handle": bytes(16)}, 1, NotAPeerError, "has restarted"),
        ({}, 0, ProtocolError, "without a descriptor"),
    ],
)
def test_a_region_that_was_not_offered_is_refused(
    options: dict[str, Any], descriptors: int, error: type[Exception], why: str
) -> None:
    ends = Ends(**options)
    start(ends)
    memory = Memory()
    payload = struct.pack("<B7xQQ", 1, 24, WANT) + pack_announcement(HANDLE, len(DATA))
    send(ends, payload, *[memory.fileno()] * descriptors)
    with pytest.raises(error, match=why):
        ends.reader.receive_some()
    ends.close()


def test_a_server_maps_nothing(ends: Ends) -> None:
    """The tag of a data request is that of announcements."""
    ends.reader.queue([TaggedFrame(WANT, 1, (b"t",)), remote_body((0, 1))])
    ends.reader.send_some()
    frames = ends.server.receive_some()
    assert [type(frame.body).__name__ for frame in frames if isinstance(frame, ReceivedFrame)] == [
        "ReceivedBody"
    ] * 2


def test_a_descriptor_that_is_closed_already_is_no_error(ends: Ends) -> None:
    ends.reader._descriptors.append([10**6, 10**6 + 1])
    ends.reader.close()
    assert not ends.reader._descriptors


def test_regions_outlive_their_connection(ends: Ends) -> None:
    (frame,) = ends.transfer(ends.announce(Memory()), remote_body((0, 100)))
    ends.reader.close()
    assert ends.reader._region is None
    assert contents(frame) == [DATA[:100]]


def test_other_messages_of_the_socket_are_ignored(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ends.reader._socket
    other = [
        (socket.SOL_SOCKET, 99, b"1234"),
        (99, socket.SCM_RIGHTS, b"1234"),
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("ii", 1000, 1001) + b"cut"),
    ]

    def receive(targets: Any, size: int, flags: int) -> Any:
        assert size == socket.CMSG_SPACE(8)
        assert flags == 0x40000000  # MSG_CMSG_CLOEXEC
        targets[0][:1] = b"S"
        return 1, other, 0, None

    monkeypatch.setattr(ends.reader, "_socket", SimpleNamespace(recvmsg_into=receive))
    received = ends.reader.bytes_received
    assert ends.reader._receive_into([memoryview(bytearray(10))]) == 1
    assert list(ends.reader._descriptors) == [[1000, 1001]]
    assert ends.reader.bytes_received == received + 1
    ends.reader._descriptors.clear()
    monkeypatch.setattr(ends.reader, "_socket", real)


def test_the_credentials_are_the_process_and_the_user() -> None:
    sock: Any = SimpleNamespace(getsockopt=lambda *_: struct.pack("iII", 12, 34, 56))
    assert channels.get_peer_credentials(sock) == (12, 34)
