"""The steps of receiving: what may be under way, and what is pending."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_requests import Library
from splitarrow.protocol.frames import UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.transport.ucx import (
    receiving,
)
from splitarrow.transport.ucx.ffi import IN_PROGRESS, OK, StatusError, ffi
from splitarrow.transport.ucx.receiving import Receiver

MIB = 1 << 20


@pytest.mark.parametrize(
    ("bodies", "reads", "read_bytes", "has_room"),
    [
        ([], None, 0, True),
        ([99 * MIB], None, 0, True),
        ([99 * MIB], 0, 0, True),
        ([], 1, 99 * MIB, True),
        ([16 * MIB] * 2, None, 0, False),
        ([16 * MIB, 16 * MIB - 1], None, 0, True),
        ([16 * MIB], 1, 16 * MIB, False),
        ([16 * MIB], 1, 16 * MIB - 1, True),
        ([1] * 15, None, 0, True),
        ([1] * 16, None, 0, False),
        ([1] * 14, 1, 1, True),
        ([1] * 14, 2, 2, False),
    ],
)
def test_two_to_16_bodies_are_received_at_a_time(
    bodies: list[int], reads: int | None, read_bytes: int, has_room: bool
) -> None:
    receiver: Any = Receiver.__new__(Receiver)
    receiver._bodies = [SimpleNamespace(body=SimpleNamespace(nbytes=size)) for size in bodies]
    receiver._device = receiver._remote_reads = None
    if reads is not None:
        receiver._remote_reads = SimpleNamespace(count=reads, nbytes=read_bytes)
    assert receiver._has_room is has_room


@pytest.fixture
def receiver() -> Any:
    stub: Any = SimpleNamespace(handle="worker", events=SimpleNamespace())
    return Receiver(stub, "endpoint", Limits(), expects_farewell=True)


def test_large_metadata_arrives_at_once_or_later(
    monkeypatch: pytest.MonkeyPatch, receiver: Any
) -> None:
    library = Library("now", "later", "broken")
    now: dict[str, int] = {"now": OK, "later": IN_PROGRESS, "broken": -3}
    monkeypatch.setattr(receiving, "ucp", library)
    monkeypatch.setattr(receiving, "get_status", now.__getitem__)
    frames: list[Any] = []
    receiver._receive_metadata(frames, b"abc", 3)
    assert frames == [UntaggedFrame(b"abc")]
    assert receiver.bytes_received == 3
    receiver._receive_metadata(frames, b"defgh", 5)
    assert (len(frames), receiver.at_boundary) == (1, False)
    with pytest.raises(StatusError):
        receiver._receive_metadata(frames, b"ijklmno", 7)
    library.statuses["later"] = IN_PROGRESS
    receiver._take_pending(frames)
    assert (len(frames), library.freed) == (1, [])
    library.statuses["later"] = OK
    receiver._take_pending(frames)
    assert frames[1:] == [UntaggedFrame(b"defgh")]
    assert (library.freed, receiver.at_boundary, receiver.bytes_received) == (["later"], True, 8)


def test_the_end_of_a_stream_is_kept_back(receiver: Any) -> None:
    frames: list[Any] = []
    for payload in (b"\1\0\0\0\0x", b"\0\1\0\0\0", b"\2\0\0\0\0{}", b""):
        receiver._add_untagged(frames, payload)
    assert frames == [UntaggedFrame(b"\1\0\0\0\0x"), UntaggedFrame(b"")]
    assert receiver._end == [b"\0\1\0\0\0", b"\2\0\0\0\0{}"]
    assert receiver.bytes_received == 6 + 5 + 7


def test_pending_messages_are_split_by_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    library.statuses = {1: OK, 2: IN_PROGRESS, 3: -3, 4: -5, 5: OK}
    monkeypatch.setattr(receiving, "ucp", library)
    pending: Any = [SimpleNamespace(request=number) for number in range(1, 6)]
    completed, under_way, failed = receiving._partition(pending)
    assert [each.request for each in completed] == [1, 5]
    assert [each.request for each in under_way] == [2]
    assert (failed, library.freed) == (-3, [1, 3, 4, 5])


@pytest.mark.parametrize("name", ["metadata", "rendezvous", "refusal"])
def test_each_kind_of_event_is_work(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A channel with work does not wait for its descriptor."""
    library: Any = Library()
    library.ucp_tag_probe_nb = lambda *_: ffi.NULL
    monkeypatch.setattr(receiving, "ucp", library)
    events = SimpleNamespace(metadata=[], rendezvous=[], refusal=None)
    stub: Any = SimpleNamespace(handle="worker", events=events)
    receiver = Receiver(stub, "endpoint", Limits(), expects_farewell=True)
    assert not receiver.has_work
    setattr(events, name, ["event"])
    assert receiver.has_work
