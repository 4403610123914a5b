"""The window of a connection over UCX, and the bodies that are sent synchronously, without a peer.

A stub takes the place of the library, because a real one decides by itself when messages leave.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.errors import DatasetError, ProtocolError, UsageError
from splitarrow.protocol.frames import TaggedFrame, UntaggedFrame
from splitarrow.protocol.memory import DeviceSpan
from splitarrow.protocol.regions import RegionAnnouncement
from splitarrow.transport.memory.files import FileSpan, SourceFile
from splitarrow.transport.ucx import sending
from splitarrow.transport.ucx.channel import UcxChannel
from splitarrow.transport.ucx.ffi import (
    IN_PROGRESS,
    NULL,
    OK,
    REQUEST_FIELD_DATATYPE,
    StatusError,
    ffi,
)
from splitarrow.transport.ucx.sending import FAREWELL, Sender

WINDOW_BYTES = 8 << 20
SYNC_BYTES = 64 << 10
"""The bytes in flight, and those after which a body is sent synchronously."""
FAILED = -3


class Library:
    """Keeps what was sent. Every message is under way until `statuses` says otherwise."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any, bytes]] = []
        self.statuses: dict[int, int] = {}
        self.freed: list[int] = []
        self.leaves_at_once = False

    def _send(self, kind: str, tag: Any, contents: bytes) -> Any:
        self.sent.append((kind, tag, contents))
        return NULL if self.leaves_at_once else len(self.sent)

    def ucp_am_send_nbx(
        self, endpoint: Any, number: int, header: Any, size: int, data: Any, length: int, param: Any
    ) -> Any:
        assert (endpoint, number, header, size) == ("endpoint", 0, NULL, 0)
        return self._send("metadata", None, bytes(ffi.buffer(data, length)))

    def ucp_tag_send_nbx(self, *arguments: Any) -> Any:
        return self._send_tagged("eager", *arguments)

    def ucp_tag_send_sync_nbx(self, *arguments: Any) -> Any:
        return self._send_tagged("sync", *arguments)

    def _send_tagged(
        self, kind: str, endpoint: Any, data: Any, count: int, tag: int, param: Any
    ) -> Any:
        assert endpoint == "endpoint"
        is_gathered = bool(param.op_attr_mask & REQUEST_FIELD_DATATYPE)
        assert param.datatype == (2 if is_gathered else 0)
        if is_gathered:
            parts = [bytes(ffi.buffer(data[i].buffer, data[i].length)) for i in range(count)]
            return self._send(f"{kind} gathered", tag, b"|".join(parts))
        return self._send(kind, tag, bytes(ffi.buffer(data, count)) if count else b"")

    def ucp_request_check_status(self, request: int) -> int:
        return self.statuses.get(request, IN_PROGRESS)

    def ucp_request_free(self, request: int) -> None:
        self.freed.append(request)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    monkeypatch.setattr(sending, "ucp", library)
    monkeypatch.setattr(sending, "get_status", library.ucp_request_check_status)
    return library


def make_sender() -> Sender:
    worker: Any = None
    return Sender(worker, "endpoint")


def body(nbytes: int, tag: int = 7) -> TaggedFrame:
    return TaggedFrame(tag, nbytes, (bytes(nbytes),))


def posted(library: Library, *frames: Any, limit: int = 1 << 40) -> int:
    """Return how many frames are posted at once."""
    sender = make_sender()
    sender.add(frames)
    assert not sender.post(limit)
    return len(library.sent)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([WINDOW_BYTES * 2] * 3, 2),
        ([WINDOW_BYTES // 4] * 5, 4),
        ([WINDOW_BYTES // 2, WINDOW_BYTES // 4, WINDOW_BYTES // 4, 0, 1], 4),
        ([WINDOW_BYTES // 2, WINDOW_BYTES // 4, WINDOW_BYTES // 4 + 1], 2),
        ([0] * 600, 512),
    ],
)
def test_no_more_is_under_way_than_the_window(
    library: Library, sizes: list[int], expected: int
) -> None:
    assert posted(library, *map(body, sizes)) == expected


def test_messages_that_have_left_make_room(library: Library) -> None:
    sender = make_sender()
    sender.add([body(WINDOW_BYTES)] * 4)
    assert not sender.post(1 << 40)
    assert (sender.is_idle, sender.is_done, sender.has_completed) == (False, False, False)
    assert sender.bytes_sent == 2 * WINDOW_BYTES
    library.statuses[2] = OK
    assert not sender.has_completed
    sender.reap()
    assert library.freed == []
    library.statuses[1] = OK
    assert sender.has_completed
    sender.reap()
    assert (library.freed, sender.is_idle) == ([1, 2], True)
    assert not sender.has_completed
    assert not sender.post(1 << 40)
    assert len(library.sent) == 4
    assert sender.is_done
    assert len(sender.abandon()) == 2
    assert (library.freed, sender.is_idle, sender.abandon()) == ([1, 2, 3, 4], True, [])


def test_what_has_left_no_longer_counts_against_the_window(library: Library) -> None:
    sender = make_sender()
    sender.add([body(WINDOW_BYTES // 4)] * 8)
    sender.post(1 << 40)
    assert len(library.sent) == 4
    library.statuses.update(dict.fromkeys(range(1, 5), OK))
    sender.reap()
    sender.post(1 << 40)
    assert len(library.sent) == 8


def test_a_message_that_could_not_be_sent_is_an_error(library: Library) -> None:
    sender = make_sender()
    sender.add([body(1), body(2), body(3)])
    sender.post(1 << 40)
    library.statuses = {1: OK, 2: FAILED, 3: OK}
    with pytest.raises(StatusError):
        sender.reap()
    assert library.freed == [1, 2]
    sender.reap()
    assert sender.is_idle
    library.statuses[4] = FAILED
    sender.add([body(1)])
    with pytest.raises(StatusError):
        sender.post(1)


def test_a_turn_ends_after_some_bytes(library: Library) -> None:
    sender = make_sender()
    sender.add([UntaggedFrame(b"x" * 60), body(40), body(100), body(1)])
    assert sender.post(100)
    assert sender.bytes_sent == 100
    assert sender.post(99)
    assert sender.bytes_sent == 200
    assert not sender.post(1)
    assert [len(contents) for _, _, contents in library.sent] == [60, 40, 100, 1]


@pytest.mark.parametrize(
    ("last", "waits"),
    [
        (UntaggedFrame(b"\0\1\0\0\0"), True),
        (UntaggedFrame(b"\2\1\0\0\0{}"), True),
        (UntaggedFrame(b"\1\1\0\0\0x"), False),
        (UntaggedFrame(b""), False),
        (body(0), False),
        (None, True),
    ],
)
def test_the_end_of_a_stream_waits_for_all_messages(
    library: Library, last: Any, waits: bool
) -> None:
    sender = make_sender()
    sender.add([body(1)])
    sender.add([] if last is None else [last])
    sender.post(1 << 40)
    assert sender.is_done is not waits
    library.statuses = {1: OK, 2: OK}
    sender.reap()
    assert sender.is_done


def test_bodies_are_sent_synchronously_every_so_often(library: Library) -> None:
    library.leaves_at_once = True
    sender = make_sender()
    sizes = [SYNC_BYTES - 1, 1, SYNC_BYTES // 2, SYNC_BYTES // 2 - 1, 1, SYNC_BYTES, 5]
    sender.add([body(size) for size in sizes])
    sender.post(1 << 40)
    kinds = [kind for kind, _, _ in library.sent]
    assert kinds == ["eager", "sync", "eager", "eager", "sync", "sync", "eager"]
    assert sender.is_idle
    sender.send_free_data(9, b"offsets")
    sender.add([body(1)])
    sender.send_farewell()
    assert library.sent[-2:] == [("eager", 9, b"offsets"), ("sync", FAREWELL, b"")]
    assert sender.is_done


@pytest.mark.parametrize(
    ("parts", "kind", "contents"),
    [
        ((), "eager", b""),
        ((b"ab",), "eager", b"ab"),
        ((b"ab", pa.py_buffer(b"cd"), memoryview(b"ef")), "eager", b"abcdef"),
        ((b"a" * 4095, b"b"), "eager", b"a" * 4095 + b"b"),
        ((b"a" * 4095, pa.py_buffer(b"bc")), "eager gathered", b"a" * 4095 + b"|bc"),
        ((RegionAnnouncement(b"announced", ()),), "eager", b"announced"),
    ],
)
def test_small_parts_are_joined(library: Library, parts: Any, kind: str, contents: bytes) -> None:
    nbytes = len(contents.replace(b"|", b""))
    assert posted(library, TaggedFrame(5, nbytes, parts)) == 1
    assert library.sent == [(kind, 5, contents)]


def test_an_array_on_a_device_describes_its_memory() -> None:
    interface: dict[str, Any] = {"typestr": "<f4", "shape": (3, 5), "data": (4096, False)}
    array: Any = SimpleNamespace(__cuda_array_interface__=interface)
    assert sending.is_on_device(array)
    assert not sending.is_on_device(b"bytes")
    address, nbytes = sending.get_address(array)
    assert (int(ffi.cast("uintptr_t", address)), nbytes) == (4096, 60)
    interface["strides"] = (40, 8)
    with pytest.raises(UsageError, match="contiguous"):
        sending.get_address(array)


@pytest.mark.parametrize(
    ("has_work", "error", "is_woken"),
    [(False, OK, False), (True, OK, True), (False, FAILED, True), (True, FAILED, True)],
)
def test_the_receiving_side_is_woken_for_what_arrived_meanwhile(
    has_work: bool, error: int, is_woken: bool
) -> None:
    woken: list[bool] = []
    channel: Any = SimpleNamespace(
        _receiver=SimpleNamespace(has_work=has_work),
        _worker=SimpleNamespace(events=SimpleNamespace(error=error)),
        _arrival=SimpleNamespace(set=lambda: woken.append(True)),
    )
    UcxChannel._notify_receiver(channel)
    assert woken == [True] * is_woken


@pytest.mark.parametrize(
    ("seconds", "progress", "expected"),
    [
        (0.0, [True], "armed"),
        (0.0025, [False, True], False),
        (0.0025, [False] * 9, "armed"),
    ],
)
def test_busy_polling_looks_for_work_before_it_waits(
    monkeypatch: pytest.MonkeyPatch, seconds: float, progress: list[bool], expected: Any
) -> None:
    """The clock advances by a millisecond each time it is read."""
    ticks = iter(range(100))
    clock = SimpleNamespace(monotonic=lambda: next(ticks) / 1000)
    monkeypatch.setattr("splitarrow.transport.ucx.channel.time", clock)
    polls = iter(progress)
    worker = SimpleNamespace(progress=lambda: next(polls), arm_for=lambda wakeup: wakeup)
    channel: Any = SimpleNamespace(_worker=worker, _spin_seconds=seconds)
    wakeup: Any = "armed"
    assert UcxChannel._can_wait(channel, wakeup) == expected
    assert len(list(polls)) == {0.0: 1}.get(seconds, 0 if progress[-1] else 7)


# Where the parts of a body come from.


class Region:
    """A mapped file whose bytes are `data`; its buffers fail with `error` if there is one."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data = data
        self.error = error
        self.populated: list[tuple[int, int]] = []

    def buffer(self, offset: int, nbytes: int, owner: object) -> pa.Buffer:
        if self.error is not None:
            raise self.error
        return pa.py_buffer(self.data[offset : offset + nbytes])

    def populate(self, offset: int, nbytes: int) -> None:
        self.populated.append((offset, nbytes))


@pytest.fixture
def span(tmp_path: Path) -> Iterator[FileSpan]:
    """Six bytes of a file, from its third on."""
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    with closing(SourceFile(path)) as file:
        yield FileSpan(file, 2, 6)


def send_span(span: FileSpan, map_file: Any) -> Sender:
    worker: Any = None
    sender = Sender(worker, "endpoint", map_file)
    sender.add([TaggedFrame(7, span.nbytes, (span,))])
    assert not sender.post(1 << 40)
    return sender


def test_a_span_of_a_file_is_sent_from_its_mapping(library: Library, span: FileSpan) -> None:
    region: Any = Region(b"abcdefghij")
    send_span(span, lambda file: region if file is span.file else None)
    assert library.sent == [("eager", 7, b"cdefgh")]
    assert region.populated == [(2, 6)]


@pytest.mark.parametrize("how", ["no mapper", "not mapped", "changing", "shorter"])
def test_a_span_that_cannot_be_mapped_is_read(library: Library, span: FileSpan, how: str) -> None:
    error = DatasetError("changing") if how == "changing" else ProtocolError("shorter")
    region: Any = Region(b"abcdefghij", error)
    mappers: dict[str, Any] = {"no mapper": None, "not mapped": lambda file: None}
    send_span(span, mappers.get(how, lambda file: region))
    assert library.sent == [("eager", 7, b"234567")]
    assert region.populated == []


def test_a_span_that_changes_while_it_is_read_is_not_sent(
    library: Library, span: FileSpan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FileSpan.read_into

    def write_meanwhile(self: FileSpan, target: memoryview) -> None:
        read(self, target)
        os.utime(self.file.path, ns=(0, 0))

    monkeypatch.setattr(FileSpan, "read_into", write_meanwhile)
    with pytest.raises(DatasetError, match="changed while it was read"):
        send_span(span, None)
    assert library.sent == []


def device_span(values: pa.Buffer, code: int) -> DeviceSpan:
    return DeviceSpan(values.address, values.size, code, None)


@pytest.fixture
def params(library: Library, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The parameters of each tagged message that is sent."""
    found: list[dict[str, int]] = []
    send = library._send_tagged

    def record(kind: str, *arguments: Any) -> Any:
        found.append(read_numbers(arguments[-1]))
        return send(kind, *arguments)

    monkeypatch.setattr(library, "_send_tagged", record)
    return found


HOST = Header.UCP_OP_ATTR_FIELD_MEMORY_TYPE
GATHERED = Header.UCP_OP_ATTR_FIELD_DATATYPE
IOV = Header.UCP_DATATYPE_IOV


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (1, Header.UCS_MEMORY_TYPE_HOST),
        (2, Header.UCS_MEMORY_TYPE_CUDA),
        (13, Header.UCS_MEMORY_TYPE_CUDA_MANAGED),
        (99, None),
    ],
)
def test_the_memory_of_a_device_is_named(
    library: Library, params: list[dict[str, int]], code: int, number: int | None
) -> None:
    part = device_span(pa.py_buffer(b"abc"), code)
    posted(library, TaggedFrame(1, 3, (part,)), TaggedFrame(2, 6, (part, part)))
    kind = {} if number is None else {"op_attr_mask": HOST}
    memory = {"memory_type": number} if number else {}
    mask = kind.get("op_attr_mask", 0) | GATHERED
    assert params == [kind | memory, {"op_attr_mask": mask, "datatype": IOV} | memory]
    assert library.sent == [("eager", 1, b"abc"), ("eager gathered", 2, b"abc|abc")]


def test_the_memory_of_the_host_is_named(library: Library, params: list[dict[str, int]]) -> None:
    parts = (b"a" * 5000, b"b")
    posted(library, TaggedFrame(1, 3, (b"abc",)), TaggedFrame(2, 5001, parts))
    assert params == [{"op_attr_mask": HOST}, {"op_attr_mask": HOST | GATHERED, "datatype": IOV}]


def test_an_array_names_no_memory(library: Library, params: list[dict[str, int]]) -> None:
    values = pa.py_buffer(b"abcdefgh")
    interface = {"typestr": "<i4", "shape": (2,), "data": (values.address, True)}
    posted(library, TaggedFrame(1, 8, (SimpleNamespace(__cuda_array_interface__=interface),)))
    assert params == [{}]
    assert library.sent == [("eager", 1, b"abcdefgh")]


def test_a_body_is_in_one_kind_of_memory(library: Library) -> None:
    values = pa.py_buffer(b"abc")
    parts = (device_span(values, 2), device_span(values, 13))
    with pytest.raises(UsageError, match="buffers in different memory"):
        posted(library, TaggedFrame(1, 6, parts))
    with pytest.raises(UsageError, match="buffers in different memory"):
        posted(library, TaggedFrame(1, 6, (device_span(values, 2), b"abc")))
    assert library.sent == []


def test_metadata_is_kept_until_it_has_left(library: Library) -> None:
    sender = make_sender()
    sender.add([UntaggedFrame(b"abc"), UntaggedFrame(b"\1")])
    sender.post(1 << 40)
    kept = sender.abandon()
    assert [bytes(ffi.buffer(each)) for each in kept] == [b"abc", b"\1"]
    assert library.freed == [1, 2]
    library.leaves_at_once = True
    sender.add([UntaggedFrame(b"abc")])
    sender.post(1 << 40)
    assert sender.is_idle


def test_a_farewell_drops_what_was_queued(library: Library) -> None:
    sender = make_sender()
    sender.add([body(1)])
    sender.send_farewell()
    assert library.sent == [("sync", FAREWELL, b"")]
    assert not sender.is_idle
    assert sender.is_done
    assert sender.bytes_sent == 0
    assert not sender.post(1 << 40)
    assert sender.abandon() == [None]


def test_an_abandoned_sender_has_its_whole_window(library: Library) -> None:
    sender = make_sender()
    sender.add([body(WINDOW_BYTES), body(1), body(1)])
    sender.post(1 << 40)
    assert len(sender.abandon()) == 2
    assert sender.is_done
    half = body(WINDOW_BYTES // 2)
    sender.add([half, half, body(0)])
    sender.post(1 << 40)
    assert [tag for _, tag, _ in library.sent] == [7] * 5
