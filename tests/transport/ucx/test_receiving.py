"""The receiving half of a connection, with a stub in place of the library."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from helpers.ucx_header import Header, read_numbers
from splitarrow.errors import LimitError, ProtocolError, UsageError
from splitarrow.protocol.frames import ReceivedFrame, UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.payloads import pack_spans
from splitarrow.protocol.regions import RemoteBody
from splitarrow.protocol.tags import BodyType, pack_body_tag
from splitarrow.transport.ucx import memory, receiving, remote_reads
from splitarrow.transport.ucx.ffi import IN_PROGRESS, NULL, OK, StatusError, ffi
from splitarrow.transport.ucx.receiving import Receiver
from splitarrow.transport.ucx.sending import FAREWELL

FAILED = Header.UCS_ERR_NO_MEMORY
MIB = 1 << 20
ANNOUNCEMENT = (1 << 40) + 1


class Message(NamedTuple):
    """A tagged message that waits at the worker, and how it is received."""

    tag: int
    payload: bytes | int
    """The payload, or its size."""
    request: Any = NULL


class Library:
    """Takes the place of the library: requests are texts, with their statuses."""

    def __init__(self) -> None:
        self.waiting: list[Message] = []
        self.statuses: dict[Any, int] = {}
        self.freed: list[Any] = []
        self.matched: list[tuple[int, int]] = []
        self.params: list[dict[str, int]] = []
        self.probes: list[int] = []
        self.sources: list[tuple[int, int]] = []
        self.reads: list[Any] = []
        self.destroyed = 0

    def ucp_tag_probe_nb(self, worker: Any, tag: int, mask: int, remove: int, info: Any) -> Any:
        assert (worker, tag, mask) == ("worker", 0, 0)
        self.probes.append(remove)
        if not self.waiting:
            return NULL
        message = self.waiting[0]
        payload = message.payload
        info.sender_tag = message.tag
        info.length = payload if isinstance(payload, int) else len(payload)
        return self.waiting.pop(0) if remove else message

    def ucp_tag_msg_recv_nbx(
        self, worker: Any, address: Any, count: int, message: Message, param: Any
    ) -> Any:
        assert worker == "worker"
        self.matched.append((message.tag, count))
        self.params.append(read_numbers(param))
        if count and isinstance(message.payload, bytes):
            ffi.memmove(address, message.payload, count)
        return message.request

    def ucp_am_recv_data_nbx(
        self, worker: Any, data: bytes, target: Any, length: int, param: Any
    ) -> Any:
        ffi.memmove(target, data, length)
        return "metadata"

    def ucp_get_nbx(
        self, endpoint: Any, target: Any, length: int, source: int, key: Any, param: Any
    ) -> Any:
        self.sources.append((source, length))
        return self.reads.pop(0) if self.reads else NULL

    def ucp_ep_rkey_unpack(self, endpoint: Any, key: bytes, created: Any) -> int:
        assert endpoint == "endpoint"
        return OK

    def ucp_rkey_destroy(self, key: Any) -> None:
        self.destroyed += 1

    def ucp_request_check_status(self, request: Any) -> int:
        return self.statuses[request]

    def ucp_request_free(self, request: Any) -> None:
        self.freed.append(request)

    def get_status(self, request: Any) -> int:
        return OK if request == NULL else self.statuses[request]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    for module in (receiving, remote_reads, memory):
        monkeypatch.setattr(module, "ucp", library)
    for module in (receiving, remote_reads):
        monkeypatch.setattr(module, "get_status", library.get_status)
    return library


def make(
    limits: Limits | None = None, *, farewell: bool = True, remote: bool = False
) -> tuple[Receiver, Any]:
    """Return a receiver, and the events of its worker."""
    events: Any = SimpleNamespace(metadata=MetadataQueue(), rendezvous=MetadataQueue())
    events.refusal = None
    worker: Any = SimpleNamespace(handle="worker", events=events)
    tag = ANNOUNCEMENT if remote else None
    receiver = Receiver(
        worker, "endpoint", limits or Limits(), expects_farewell=farewell, announcement_tag=tag
    )
    return receiver, events


class MetadataQueue(list[Any]):
    def popleft(self) -> Any:
        return self.pop(0)


def take(receiver: Receiver, limit: int = 1 << 40) -> list[Any]:
    frames: list[Any] = []
    receiver.take(frames, limit)
    return frames


def contents(frames: list[Any]) -> list[Any]:
    return [
        (frame.tag, bytes(frame.body)) if isinstance(frame, ReceivedFrame) else frame.payload
        for frame in frames
    ]


def test_a_receiver_needs_memory_of_the_host() -> None:
    worker: Any = SimpleNamespace(handle="worker", events=None)
    allocator: Any = SimpleNamespace(is_host=False)
    with pytest.raises(UsageError, match="into host memory"):
        Receiver(worker, "endpoint", Limits(), expects_farewell=True, allocator=allocator)


def test_messages_arrive_in_one_turn(library: Library) -> None:
    receiver, events = make()
    events.metadata += [b"\1first", b"\1second"]
    library.waiting = [Message(1, b"one"), Message(2, b""), Message(3, b"three")]
    assert contents(take(receiver)) == [
        *(b"\1first", (1, b"one"), b"\1second", (2, b""), (3, b"three")),
    ]
    assert receiver.bytes_received == 6 + 7 + 3 + 5
    assert library.params == [{"op_attr_mask": Header.UCP_OP_ATTR_FIELD_MEMORY_TYPE}] * 3
    assert library.probes == [1] * 4
    assert (receiver.at_boundary, receiver.has_ended) == (True, False)
    assert take(receiver) == []


@pytest.mark.parametrize(("limit", "expected"), [(0, 0), (1, 1), (3, 1), (4, 2), (100, 3)])
def test_a_turn_ends_at_its_limit(library: Library, limit: int, expected: int) -> None:
    receiver, _ = make()
    library.waiting = [Message(number, b"xyz") for number in range(3)]
    assert len(take(receiver, limit)) == expected
    assert len(library.waiting) == 3 - expected


def test_the_headroom_of_a_body_holds_the_metadata_before_it(library: Library) -> None:
    """An encapsulated message has a prefix of 8 bytes, in place of the 5 of the protocol."""
    receiver, events = make()
    starts: list[int] = []
    allocate = receiver._pool.allocate

    def record(nbytes: int, headroom: int, tag: int) -> Any:
        starts.append(headroom)
        return allocate(nbytes, headroom, tag)

    receiver._pool = SimpleNamespace(allocate=record)  # pyright: ignore[reportAttributeAccessIssue]
    library.waiting = [Message(1, b"x")]
    take(receiver)
    events.metadata += [bytes([1]) * 2005]
    library.waiting = [Message(2, b"x")]
    take(receiver)
    assert starts == [1024, 2008]


def test_a_body_arrives_later(library: Library) -> None:
    receiver, events = make()
    library.waiting = [Message(1, 1000, "a"), Message(2, 50, "b")]
    library.statuses = {"a": IN_PROGRESS, "b": IN_PROGRESS}
    assert take(receiver) == []
    assert (receiver.at_boundary, receiver.has_work, receiver.bytes_received) == (False, False, 0)
    library.statuses["b"] = OK
    assert receiver.has_work
    events.metadata.append(b"\0end")
    assert [frame.tag for frame in take(receiver)] == [2]
    library.statuses["a"] = OK
    first, end = take(receiver)
    assert (first.tag, first.body.nbytes, end) == (1, 1000, UntaggedFrame(b"\0end"))
    assert take(receiver) == []
    assert (library.freed, receiver.at_boundary) == (["b", "a"], True)
    assert receiver.bytes_received == 1050 + 4


def test_a_body_that_cannot_be_received_is_an_error(library: Library) -> None:
    receiver, _ = make()
    library.waiting = [Message(1, 10, "a"), Message(2, 10, "b"), Message(3, 10, "c")]
    library.statuses = {"a": IN_PROGRESS, "b": IN_PROGRESS, "c": FAILED}
    with pytest.raises(StatusError) as caught:
        take(receiver)
    assert caught.value.status == FAILED
    library.statuses |= {"a": OK, "b": -5}
    frames: list[Any] = []
    with pytest.raises(StatusError) as caught:
        receiver.take(frames, 1 << 40)
    assert caught.value.status == -5
    assert [frame.tag for frame in frames] == [1]
    assert (library.freed, receiver.at_boundary) == (["a", "b"], True)


@pytest.mark.parametrize("request_", [NULL, "pending"])
def test_too_large_a_body_is_matched_without_memory(library: Library, request_: Any) -> None:
    receiver, _ = make(Limits(body_bytes=100))
    library.waiting = [Message(1, bytes(100)), Message(2, 101, request_)]
    library.statuses = {"pending": IN_PROGRESS}
    frames: list[Any] = []
    with pytest.raises(LimitError, match="limit is 100") as caught:
        receiver.take(frames, 1 << 40)
    assert caught.value.tag == 2
    assert [frame.tag for frame in frames] == [1]
    assert library.matched == [(1, 100), (2, 0)]
    assert library.freed == ([] if request_ == NULL else ["pending"])


def test_metadata_that_waits_at_the_peer_is_fetched(library: Library) -> None:
    receiver, events = make()
    library.statuses["metadata"] = IN_PROGRESS
    events.rendezvous += [(b"\1large", 6)]
    assert take(receiver) == []
    assert (receiver.at_boundary, receiver.has_work, events.rendezvous) == (False, False, [])
    library.statuses["metadata"] = OK
    assert receiver.has_work
    assert take(receiver) == [UntaggedFrame(b"\1large")]
    assert (receiver.at_boundary, library.freed) == (True, ["metadata"])
    events.rendezvous += [(b"\1again", 6)]
    library.statuses["metadata"] = IN_PROGRESS
    take(receiver)
    library.statuses["metadata"] = FAILED
    with pytest.raises(StatusError):
        take(receiver)
    assert receiver.at_boundary


def test_a_refusal_comes_after_what_arrived(library: Library) -> None:
    receiver, events = make()
    events.metadata += [b"\1ok"]
    events.refusal = LimitError("too large")
    frames: list[Any] = []
    with pytest.raises(LimitError, match="too large"):
        receiver.take(frames, 1 << 40)
    assert frames == [UntaggedFrame(b"\1ok")]


def test_a_receiver_has_work_if_a_message_waits(library: Library) -> None:
    receiver, _ = make()
    assert not receiver.has_work
    library.waiting = [Message(1, 10, "a")]
    assert receiver.has_work
    assert (len(library.waiting), library.probes) == (1, [0, 0])  # it stays there
    library.waiting = [Message(n, 10, "a") for n in range(17)]
    library.statuses["a"] = IN_PROGRESS
    take(receiver)
    assert (len(library.waiting), receiver.has_work) == (1, False)  # 16 are under way


# The farewell.


def test_a_farewell_is_matched_after_all_else(library: Library) -> None:
    receiver, _ = make()
    library.waiting = [Message(1, 10, "a"), Message(FAREWELL, b"")]
    library.statuses["a"] = IN_PROGRESS
    assert take(receiver) == []
    assert (library.matched, receiver.has_ended) == ([(1, 10)], False)
    library.statuses["a"] = OK
    assert len(take(receiver)) == 1
    assert (library.matched[1:], receiver.has_ended) == ([(FAREWELL, 0)], True)
    assert take(receiver) == []
    assert len(library.matched) == 2
    assert receiver.abandon() == []
    assert len(library.matched) == 2


def test_what_follows_a_farewell_arrives_in_the_same_turn(library: Library) -> None:
    receiver, _ = make()
    library.waiting = [Message(FAREWELL, b""), Message(2, b"x")]
    assert contents(take(receiver)) == [(2, b"x")]
    assert receiver.has_ended


def test_a_server_receives_the_tag_of_farewells_like_any_other(library: Library) -> None:
    receiver, _ = make(farewell=False)
    library.waiting = [Message(FAREWELL, b"x")]
    assert contents(take(receiver)) == [(FAREWELL, b"x")]
    assert not receiver.has_ended


def test_an_abandoned_receiver_returns_what_may_still_be_written_to(library: Library) -> None:
    receiver, events = make(remote=True)
    library.statuses = {"a": IN_PROGRESS, "metadata": IN_PROGRESS, "farewell": IN_PROGRESS}
    library.waiting = [
        Message(ANNOUNCEMENT, struct.pack("<QQ", 4096, 1 << 20) + b"key"),
        remote_body((0, 100)),
        Message(1, 10, "a"),
        Message(FAREWELL, 0, "farewell"),
    ]
    library.reads, library.statuses["read"] = ["read"], IN_PROGRESS
    events.rendezvous += [(b"\1", 1)]
    take(receiver)
    body, metadata, read = receiver.abandon()
    assert body.nbytes == 10  # pyright: ignore[reportAttributeAccessIssue]
    assert metadata.memory == b"\1"  # pyright: ignore[reportAttributeAccessIssue]
    assert read.nbytes == 128  # pyright: ignore[reportAttributeAccessIssue]
    assert library.matched[-1] == (FAREWELL, 0)
    assert library.freed == ["farewell", "a", "metadata", "read"]
    assert library.destroyed == 1
    assert receiver.abandon() == []
    assert (len(library.freed), library.destroyed, receiver.at_boundary) == (4, 1, True)


# Remote bodies.


def remote_body(*spans: tuple[int, int], sequence: int = 7) -> Message:
    return Message(pack_body_tag(sequence, BodyType.OFFSETS), pack_spans(list(spans)))


def announcement(address: int) -> Message:
    return Message(ANNOUNCEMENT, struct.pack("<QQ", address, 1 << 20) + b"key")


def test_a_remote_body_is_read_from_the_latest_region(library: Library) -> None:
    receiver, _ = make(remote=True)
    bodies = [remote_body((64, 100)), remote_body((0, 64), (128, 5), (0, 0))]
    library.waiting = [announcement(1 << 20), announcement(1 << 30), *bodies]
    first, second = take(receiver)
    assert isinstance(first.body, RemoteBody)
    assert (first.tag, second.tag) == (bodies[0].tag, bodies[1].tag)
    assert library.sources == [((1 << 30) + 64, 100), (1 << 30, 133)]
    assert receiver.take_freed() == [64, 0, 128]
    assert receiver.take_freed() == []
    payloads = sum(len(each.payload) for each in bodies if isinstance(each.payload, bytes))
    assert receiver.bytes_received == 2 * 19 + payloads + 100 + 133
    assert receiver.at_boundary


def test_a_body_counts_from_the_region_announced_before_it(library: Library) -> None:
    receiver, _ = make(remote=True)
    late = remote_body((0, 64))._replace(request="late")
    library.waiting = [announcement(1 << 20), late, announcement(1 << 30)]
    library.statuses["late"] = IN_PROGRESS
    take(receiver)
    library.statuses["late"] = OK
    assert len(take(receiver)) == 1
    assert library.sources == [(1 << 20, 64)]


def test_a_read_under_way_holds_back_the_end(library: Library) -> None:
    receiver, events = make(remote=True)
    library.waiting = [announcement(1 << 20), remote_body((0, 64))]
    library.reads, library.statuses["read"] = ["read"], IN_PROGRESS
    assert take(receiver) == []
    events.metadata += [b"\0end"]
    assert take(receiver) == []
    assert (receiver.at_boundary, receiver.has_work) == (False, False)
    library.statuses["read"] = OK
    assert receiver.has_work
    body, end = take(receiver)
    assert isinstance(body.body, RemoteBody)
    assert end == UntaggedFrame(b"\0end")
    assert (receiver.at_boundary, receiver.take_freed()) == (True, [0])


def test_a_read_that_fails_is_an_error(library: Library) -> None:
    receiver, _ = make(remote=True)
    library.waiting = [announcement(1 << 20), remote_body((0, 64)), remote_body((64, 64))]
    library.reads, library.statuses = ["a", "b"], {"a": IN_PROGRESS, "b": IN_PROGRESS}
    take(receiver)
    library.statuses = {"a": -5, "b": OK}
    frames: list[Any] = []
    with pytest.raises(StatusError) as caught:
        receiver.take(frames, 1 << 40)
    assert caught.value.status == -5
    assert len(frames) == 1
    assert receiver.take_freed() == [64]


def test_without_remote_bodies_each_tag_is_a_body(library: Library) -> None:
    receiver, _ = make()
    library.waiting = [announcement(1 << 20), remote_body((0, 64))]
    assert [type(frame.body).__name__ for frame in take(receiver)] == ["ReceivedBody"] * 2
    assert receiver.take_freed() == []


def test_a_remote_body_before_any_region_is_refused(library: Library) -> None:
    receiver, _ = make(remote=True)
    library.waiting = [remote_body((0, 64))]
    with pytest.raises(ProtocolError, match="before any region"):
        take(receiver)
    packed = Message(pack_body_tag(3), b"packed")
    library.waiting = [packed]
    assert contents(take(receiver)) == [(packed.tag, b"packed")]
