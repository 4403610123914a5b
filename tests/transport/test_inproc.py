"""Connections within the process: their capacity, their memory, and the ends of both sides."""

from __future__ import annotations

import gc
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from splitarrow.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    LimitError,
    UriError,
    UsageError,
)
from splitarrow.protocol.frames import ReceivedFrame, TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import inproc
from splitarrow.transport.base import ConnectOptions, ListenOptions
from splitarrow.transport.inproc import TRANSPORT, InprocListener
from splitarrow.transport.memory.files import FileSpan, SourceFile

TAG = 1 << 40


@pytest.fixture
def listener() -> Iterator[InprocListener]:
    listener = TRANSPORT.listen(DataUri.parse("inproc://"), ListenOptions())
    yield listener
    listener.close()


@pytest.fixture
def ends(listener: InprocListener) -> Iterator[Any]:
    """The reader's end and the server's end of a connection."""
    reader = TRANSPORT.connect(listener.uri, ConnectOptions())
    server = listener.accept()
    assert server is not None
    yield reader, server
    reader.close()
    server.close()


def is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def body(nbytes: int) -> TaggedFrame:
    return TaggedFrame(TAG, nbytes, (bytes(nbytes),))


def test_frames_arrive_in_order(ends: Any) -> None:
    reader, server = ends
    assert not is_ready(server.fileno())
    reader.queue([UntaggedFrame(b"abc"), TaggedFrame(TAG, 4, (b"de", memoryview(b"fg")))])
    assert reader.send_some()
    assert is_ready(server.fileno())
    first, second = server.receive_some()
    assert first == UntaggedFrame(b"abc")
    assert (second.tag, bytes(second.body)) == (TAG, b"defg")
    assert second.body.start >= 11  # room for the metadata in front of the body
    assert reader.bytes_sent == server.bytes_received == 7
    assert not is_ready(server.fileno())
    assert server.receive_some() == []


def test_a_single_buffer_is_not_copied(ends: Any) -> None:
    reader, server = ends
    buffer = pa.py_buffer(b"x" * 100)
    reader.queue([TaggedFrame(TAG, 100, (buffer,))])
    assert reader.send_some()
    (frame,) = server.receive_some()
    assert isinstance(frame, ReceivedFrame)
    assert frame.body.buffer.address == buffer.address


def test_parts_of_files_are_read(ends: Any, tmp_path: Path) -> None:
    reader, server = ends
    (tmp_path / "x").write_bytes(b"0123456789")
    file = SourceFile(tmp_path / "x")
    reader.queue([TaggedFrame(TAG, 8, (b"a", FileSpan(file, 2, 3), b"b", FileSpan(file, 7, 3)))])
    assert reader.send_some()
    (frame,) = server.receive_some()
    assert bytes(frame.body) == b"a234b789"
    file.close()


def test_a_connection_holds_a_limited_number_of_bytes(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, server = ends
    monkeypatch.setattr(inproc, "_CAPACITY", 100)
    reader.queue([body(60), body(40), body(1)])
    assert not reader.send_some()
    assert not is_ready(reader.send_fileno())
    assert [frame.body.nbytes for frame in server.receive_some()] == [60, 40]
    assert is_ready(reader.send_fileno())
    assert reader.send_some()
    assert [frame.body.nbytes for frame in server.receive_some()] == [1]
    reader.queue([body(101)])  # A frame of any size fits alone.
    assert reader.send_some()
    reader.queue([body(1)])
    assert not reader.send_some()


def test_the_other_end_gets_what_was_sent_before_a_close(ends: Any) -> None:
    reader, server = ends
    reader.queue([body(1)])
    assert reader.send_some()
    reader.close()
    reader.close()
    assert is_ready(server.fileno())
    assert len(server.receive_some()) == 1
    assert is_ready(server.fileno())
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="the other end closed the connection"):
            server.receive_some()
    server.queue([body(1)])
    with pytest.raises(ConnectionLostError, match="the other end closed the connection"):
        server.send_some()
    with pytest.raises(ConnectionLostError, match="is closed"):
        reader.receive_some()


def test_an_abort_drops_what_was_sent(ends: Any) -> None:
    reader, server = ends
    reader.queue([body(1)])
    assert reader.send_some()
    reader.abort()
    with pytest.raises(ConnectionLostError):
        server.receive_some()


def test_an_interrupt_ends_a_wait(ends: Any) -> None:
    reader, _ = ends
    reader.interrupt()
    assert is_ready(reader.fileno())
    with pytest.raises(ConnectionLostError):
        reader.receive_some()


def test_a_close_wakes_an_end_that_waits_for_room(
    ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, server = ends
    monkeypatch.setattr(inproc, "_CAPACITY", 1)
    reader.queue([body(1), body(1)])
    assert not reader.send_some()
    server.close()
    assert is_ready(reader.send_fileno())


def test_frames_are_bounded(listener: InprocListener) -> None:
    limits = Limits(metadata_bytes=10, body_bytes=20)
    reader = TRANSPORT.connect(listener.uri, ConnectOptions(limits=limits))
    server = listener.accept()
    assert server is not None
    server.queue([UntaggedFrame(bytes(10)), body(20)])
    server.send_some()
    assert len(reader.receive_some()) == 2
    for frame in (UntaggedFrame(bytes(11)), body(21)):
        server.queue([frame])
        server.send_some()
        with pytest.raises(LimitError):
            reader.receive_some()
    reader.close()
    server.close()


def test_a_name_belongs_to_one_listener() -> None:
    uri = DataUri.parse("inproc://a-name")
    first = TRANSPORT.listen(uri, ListenOptions())
    with pytest.raises(ConfigError, match="cannot listen on inproc://a-name: the name is in use"):
        TRANSPORT.listen(uri, ListenOptions())
    first.close()
    with pytest.raises(ConnectError, match="no server in this process has that name"):
        TRANSPORT.connect(uri, ConnectOptions())
    second = TRANSPORT.listen(uri, ListenOptions())
    first.close()
    TRANSPORT.connect(uri, ConnectOptions()).close()
    second.close()


def test_listeners_without_a_name_get_different_ones(listener: InprocListener) -> None:
    other = TRANSPORT.listen(DataUri.parse("inproc:///"), ListenOptions())
    assert other.uri.host != listener.uri.host
    other.close()
    for text in ("inproc://a/path", "inproc://a:1"):
        with pytest.raises(UriError, match="an inproc address has only a name"):
            TRANSPORT.listen(DataUri.parse(text), ListenOptions())


def test_clients_are_accepted_in_order_or_rejected(listener: InprocListener) -> None:
    assert listener.accept() is None
    assert not listener.reject()
    first, second, third = (TRANSPORT.connect(listener.uri, ConnectOptions()) for _ in range(3))
    assert is_ready(listener.fileno())
    accepted = listener.accept()
    assert accepted is not None
    first.queue([body(1)])
    first.send_some()
    assert len(accepted.receive_some()) == 1
    assert listener.reject()
    with pytest.raises(ConnectionLostError):
        second.receive_some()
    assert is_ready(listener.fileno())
    listener.close()
    with pytest.raises(ConnectionLostError):
        third.receive_some()
    accepted.close()


def test_device_memory_is_refused(listener: InprocListener) -> None:
    class Device:
        is_host = False

    allocator: Any = Device()
    with pytest.raises(UsageError, match="use a host allocator"):
        TRANSPORT.connect(listener.uri, ConnectOptions(allocator=allocator))


def count_event_descriptors() -> int:
    links: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("eventfd" in link for link in links)


def test_the_descriptors_of_a_connection_end_with_it(listener: InprocListener) -> None:
    gc.collect()
    before = count_event_descriptors()
    for _ in range(5):
        reader = TRANSPORT.connect(listener.uri, ConnectOptions())
        server = listener.accept()
        assert server is not None
        assert not any(os.get_inheritable(end.fileno()) for end in (reader, server, listener))
        reader.close()
        assert len({reader.fileno(), server.fileno(), reader.send_fileno()} - {-1}) == 3
        server.close()
        del reader, server
    assert count_event_descriptors() == before


def test_a_reader_that_is_forgotten_ends_its_connection() -> None:
    name = TRANSPORT.listen(DataUri("inproc"), ListenOptions())
    server: Any = None
    reader = TRANSPORT.connect(name.uri, ConnectOptions())
    server = name.accept()
    reader.queue([body(1)])
    reader.send_some()
    del reader
    assert is_ready(server.fileno())
    assert len(server.receive_some()) == 1
    with pytest.raises(ConnectionLostError):
        server.receive_some()
    server.close()
    name.close()


def test_a_closed_listener_has_no_descriptor(listener: InprocListener) -> None:
    descriptor = listener.fileno()
    assert descriptor >= 0
    listener.close()
    listener.close()
    assert listener.fileno() == -1
    assert listener.accept() is None


def test_a_connection_holds_4_mib(ends: Any) -> None:
    reader, server = ends
    buffer = pa.allocate_buffer(4 << 20)
    reader.queue([TaggedFrame(TAG, 1, (b"x",)), TaggedFrame(TAG, buffer.size - 1, (buffer,))])
    assert reader.send_some()
    reader.queue([body(1)])
    assert not reader.send_some()
    assert len(server.receive_some()) == 2
    assert reader.send_some()
    assert len(server.receive_some()) == 1


def test_a_body_has_headroom_for_the_metadata_before_it(ends: Any) -> None:
    reader, server = ends
    reader.queue([body(4), UntaggedFrame(bytes(120)), body(4), UntaggedFrame(bytes(121)), body(4)])
    assert reader.send_some()
    bodies = [frame.body for frame in server.receive_some() if isinstance(frame, ReceivedFrame)]
    assert [body.start for body in bodies] == [1024, 128, 192]


def test_the_ends_of_a_connection_name_each_other(ends: Any, listener: InprocListener) -> None:
    reader, server = ends
    assert (reader.peer, server.peer) == (listener.uri.address, "a reader in this process")
    for end in ends:
        assert end.is_local
        assert end.at_boundary
        assert end.send_waits_readable
        assert not end.delays_writer
        assert (end.unread_bytes, end.bytes_sent, end.bytes_received) == (0, 0, 0)


def test_an_abort_drops_what_waits_on_both_sides(ends: Any) -> None:
    reader, server = ends
    for end in ends:
        end.queue([body(1)])
        assert end.send_some()
    reader.queue([body(2)])
    reader.abort()
    for end in ends:
        with pytest.raises(ConnectionLostError):
            end.receive_some()
    assert reader.send_some()  # nothing is queued any more
    assert server.bytes_received == 0
