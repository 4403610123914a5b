"""Both ends of a connection, with stubs in place of the worker and of both halves."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.ucx_header import Header
from splitarrow.errors import ConnectionLostError, ProtocolError
from splitarrow.protocol.frames import TaggedFrame, UntaggedFrame
from splitarrow.protocol.limits import Limits
from splitarrow.transport.base import Capabilities
from splitarrow.transport.ucx import channel as channels
from splitarrow.transport.ucx import links, sending
from splitarrow.transport.ucx import worker as worker_module
from splitarrow.transport.ucx.channel import UcxChannel, UcxReaderChannel, UcxServerChannel
from splitarrow.transport.ucx.context import Reach
from splitarrow.transport.ucx.ffi import OK, StatusError
from splitarrow.transport.ucx.links import Link
from splitarrow.transport.ucx.uri import RemoteTags
from splitarrow.transport.ucx.worker import Wakeup

FAILED = Header.UCS_ERR_NO_MEMORY
RESET = Header.UCS_ERR_CONNECTION_RESET


def is_readable(descriptor: int, seconds: float = 0) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


class Worker:
    """A worker that makes progress as often as `work` states, and does `tasks` meanwhile."""

    is_inherited = False

    def __init__(self, descriptor: int) -> None:
        self.handle = "worker"
        self.context = "context"
        self.descriptor = descriptor
        self.lock = threading.RLock()
        self.events: Any = SimpleNamespace(error=OK, metadata=[], rendezvous=[], refusal=None)
        self.work = 0
        self.tasks: list[Callable[[], object]] = []
        self.can_sleep = True
        self.failure: StatusError | None = None
        self.closed: list[Any] = []

    def progress(self) -> bool:
        if self.failure is not None:
            raise self.failure
        if self.tasks:
            self.tasks.pop(0)()
        self.work -= 1
        return self.work >= 0

    def arm(self) -> bool:
        return self.can_sleep

    def arm_for(self, wakeup: Wakeup) -> bool:
        return True

    def close_endpoint(self, endpoint: Any) -> None:
        self.closed.append(endpoint)

    def destroy(self) -> None:
        self.closed.append("worker")


class Sender:
    """A sender whose turns end as `turns` states."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.bytes_sent = 3
        self.is_done = True
        self.is_idle = True
        self.has_completed = False
        self.turns: list[bool] = []
        self.limits: list[int] = []
        self.reaped = 0
        self.failure: StatusError | None = None
        self.sent: list[Any] = []

    def add(self, frames: Any) -> None:
        self.queue += frames

    def reap(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.reaped += 1

    def post(self, limit: int) -> bool:
        self.limits.append(limit)
        return self.turns.pop(0) if self.turns else False

    def send_free_data(self, tag: int, payload: bytes) -> None:
        self.sent.append((tag, payload))

    def send_farewell(self) -> None:
        self.sent.append("farewell")

    def abandon(self) -> list[object]:
        return ["sent"]


class Receiver:
    """A receiver of the frames in `arrived`, one list for each call, with their bytes."""

    def __init__(self) -> None:
        self.arrived: list[tuple[list[Any], int]] = []
        self.bytes_received = 5
        self.at_boundary = True
        self.has_ended = False
        self.has_work = False
        self.failure: Exception | None = None
        self.freed: list[int] = []
        self.limits: list[int] = []

    def take(self, frames: list[Any], limit: int) -> None:
        self.limits.append(limit)
        if self.arrived:
            new, nbytes = self.arrived.pop(0)
            frames += new
            self.bytes_received += nbytes
        elif self.failure is not None:
            raise self.failure

    def take_freed(self) -> list[int]:
        freed, self.freed = self.freed, []
        return freed

    def abandon(self) -> list[object]:
        return ["received"]


class Parts:
    """A channel and the stubs that it is made of."""

    def __init__(self, descriptor: int, retained: list[object], kind: Any = UcxChannel) -> None:
        self.worker: Any = Worker(descriptor)
        self.sender: Any = Sender()
        self.receiver: Any = Receiver()
        self.link = Link(self.worker, "endpoint", "the peer", reach=Reach.HOST)
        self.retained = retained
        self.map: Any = None
        self.channel = kind(self.link, self.sender, self.receiver)


@pytest.fixture
def descriptor() -> Iterator[int]:
    """In place of a worker's descriptor: nothing arrives there."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours.fileno()


@pytest.fixture
def parts(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    retained: list[object] = []
    monkeypatch.setattr(channels, "retain", retained.append)
    made = Parts(descriptor, retained)
    yield made
    made.channel.abort()


def test_a_new_channel(parts: Parts) -> None:
    channel = parts.channel
    assert (channel.peer, channel.is_local, channel.capabilities) == (
        *("the peer", True, Capabilities()),
    )
    assert (channel.send_waits_readable, channel.delays_writer) == (True, False)
    assert (channel.unread_bytes, channel.wake_at, channel.user) == (0, None, None)
    assert (channel.bytes_sent, channel.bytes_received, channel.at_boundary) == (3, 5, True)
    assert Capabilities(offset_bodies=True, remote_reads=True) == channels.REMOTE_CAPABILITIES
    assert parts.link.spin_seconds == 0
    assert not is_readable(channel.fileno())
    assert not is_readable(channel.send_fileno())
    assert channel.fileno() != channel.send_fileno()
    channel.queue(["a", "b"])
    assert parts.sender.queue == ["a", "b"]


def test_a_channel_without_descriptors_closes_those_that_it_got(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker_module.create_timer
    calls: list[int] = []

    def create() -> int:
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        calls.append(real())
        return calls[-1]

    monkeypatch.setattr(worker_module, "create_timer", create)
    worker: Any = Worker(descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        UcxChannel(Link(worker, "endpoint", "the peer", True), Sender(), Receiver())  # pyright: ignore
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(calls[0])
    assert worker.closed == []  # the caller owns them


def test_the_lanes_are_asked_for_until_they_are_known(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [[], ["tcp/eth0"], ["other"]]
    monkeypatch.setattr(channels, "list_lanes", lambda endpoint: answers.pop(0))
    assert parts.channel.lanes == []
    assert parts.channel.lanes == ["tcp/eth0"]
    assert parts.channel.lanes == ["tcp/eth0"]
    assert answers == [["other"]]


# Sending.


def test_a_turn_of_sending_has_8_mib(parts: Parts) -> None:
    parts.sender.turns = [True]
    parts.sender.is_done = False
    assert parts.channel.send_some() is False
    assert parts.sender.limits == [8 << 20]
    assert is_readable(parts.channel.send_fileno(), 10)  # the next turn may begin at once
    parts.sender.is_done = True
    assert parts.channel.send_some() is True
    assert not is_readable(parts.channel.send_fileno())
    assert (parts.sender.reaped, parts.worker.work) == (2, -1)


@pytest.mark.parametrize(
    ("is_idle", "can_sleep", "wakes"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_the_receiving_side_completes_what_is_under_way(
    parts: Parts, is_idle: bool, can_sleep: bool, wakes: bool
) -> None:
    parts.sender.is_idle, parts.worker.can_sleep = is_idle, can_sleep
    assert parts.channel.send_some() is True
    assert is_readable(parts.channel.fileno(), 10 * wakes) is wakes
    assert parts.channel._arrival.is_set is wakes


@pytest.mark.parametrize("is_done", [True, False])
def test_sending_wakes_the_receiving_side_for_what_arrived(parts: Parts, is_done: bool) -> None:
    parts.sender.is_done = is_done
    parts.receiver.has_work = True
    assert parts.channel.send_some() is is_done
    assert is_readable(parts.channel.fileno(), 10)


def test_sending_goes_on_while_there_is_progress(parts: Parts) -> None:
    parts.sender.is_done = False
    parts.worker.work = 5
    pauses: list[bool] = []
    parts.channel._room.reset_pause = lambda: pauses.append(True)
    assert parts.channel.send_some() is False
    assert (parts.sender.reaped, len(pauses), parts.worker.work) == (6, 5, -1)


def test_sending_ends_a_wait_only_if_it_can_wait(parts: Parts) -> None:
    parts.sender.is_done = False
    answers = [False, False, True]
    parts.worker.arm_for = lambda wakeup: wakeup is parts.channel._room and answers.pop(0)
    assert parts.channel.send_some() is False
    assert (answers, parts.sender.reaped) == ([], 3)


def test_an_error_of_the_endpoint_ends_sending(parts: Parts) -> None:
    parts.sender.is_done = False
    parts.worker.events.error = FAILED
    with pytest.raises(ConnectionLostError, match="with the peer broke: out of memory"):
        parts.channel.send_some()
    parts.worker.events.error = OK
    parts.sender.failure = StatusError(RESET)
    with pytest.raises(ConnectionLostError, match="the peer closed the connection"):
        parts.channel.send_some()
    parts.worker.events.error = FAILED
    with pytest.raises(ConnectionLostError, match="out of memory"):  # it takes precedence
        parts.channel.send_some()


# Receiving.


def test_receiving_ends_once_nothing_more_arrives(parts: Parts) -> None:
    receiver, worker = parts.receiver, parts.worker
    receiver.arrived = [([], 0), (["a"], 7), (["b"], 0), (["late"], 0)]
    worker.work = 2
    pauses: list[bool] = []
    parts.channel._arrival.reset_pause = lambda: pauses.append(True)
    assert parts.channel.receive_some() == ["a", "b"]
    assert receiver.limits == [5 + (1 << 20)] * 3
    assert len(pauses) == 2
    assert parts.channel.receive_some() == ["late"]
    assert parts.channel.receive_some() == []
    assert not is_readable(parts.channel.fileno())


def test_a_turn_of_receiving_has_1_mib(parts: Parts) -> None:
    receiver, worker = parts.receiver, parts.worker
    receiver.arrived = [(["a"], (1 << 20) - 1), (["b"], 1), (["c"], 1)]
    worker.work = 100
    assert parts.channel.receive_some() == ["a", "b"]
    assert worker.work == 98


def test_receiving_waits_only_if_it_can(parts: Parts) -> None:
    answers = [False, False, True]
    parts.worker.arm_for = lambda wakeup: wakeup is parts.channel._arrival and answers.pop(0)
    assert parts.channel.receive_some() == []
    assert (answers, len(parts.receiver.limits)) == ([], 3)


@pytest.mark.parametrize("completed", [False, True])
def test_receiving_wakes_the_sending_side_for_room(parts: Parts, completed: bool) -> None:
    parts.sender.has_completed = completed
    parts.channel.receive_some()
    assert is_readable(parts.channel.send_fileno(), 10 * completed) is completed


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ProtocolError("malformed"), "malformed"),
        (StatusError(FAILED), "broke: out of memory"),
        (StatusError(RESET), "closed the connection"),
    ],
)
def test_frames_come_before_the_error_behind_them(
    parts: Parts, failure: Exception, expected: str
) -> None:
    parts.receiver.arrived = [(["a"], 1)]
    parts.receiver.failure = failure
    parts.worker.work = 5
    assert parts.channel.receive_some() == ["a"]
    assert is_readable(parts.channel.fileno(), 10)
    parts.receiver.failure = None
    for _ in range(2):
        with pytest.raises((ProtocolError, ConnectionLostError), match=expected):
            parts.channel.receive_some()
    assert not is_readable(parts.channel.fileno())


def test_an_error_without_frames_is_raised_at_once(parts: Parts) -> None:
    parts.worker.events.error = FAILED
    with pytest.raises(ConnectionLostError, match="out of memory"):
        parts.channel.receive_some()
    assert not is_readable(parts.channel.fileno())


@pytest.mark.parametrize("at_boundary", [True, False])
def test_the_farewell_of_the_peer_ends_the_connection(parts: Parts, at_boundary: bool) -> None:
    parts.receiver.has_ended = True
    parts.receiver.at_boundary = at_boundary
    if at_boundary:
        with pytest.raises(ConnectionLostError, match="the peer closed the connection"):
            parts.channel.receive_some()
    else:
        assert parts.channel.receive_some() == []


# Closing.


def test_an_interrupted_channel_wakes_both_sides(parts: Parts) -> None:
    parts.channel.interrupt()
    assert is_readable(parts.channel.fileno(), 10)
    assert is_readable(parts.channel.send_fileno(), 10)
    for call in (parts.channel.send_some, parts.channel.receive_some):
        with pytest.raises(ConnectionLostError, match="with the peer was interrupted"):
            call()


def test_an_idle_channel_is_closed_at_once(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "linger", lambda _: pytest.fail("it does not linger"))
    channel = parts.channel
    descriptors = [channel.fileno(), channel.send_fileno()]
    parts.worker.work = 4
    channel.close()
    channel.close()
    channel.abort()
    assert parts.worker.closed == ["endpoint", "worker"]
    assert parts.retained == [["sent", "received"]]
    assert (parts.worker.work, parts.sender.reaped) == (-1, 1)
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)
    for call in (channel.send_some, channel.receive_some):
        with pytest.raises(ConnectionLostError, match="with the peer is closed"):
            call()
    assert channel.finish(force=False)
    assert parts.worker.closed == ["endpoint", "worker"]


def test_a_busy_channel_lingers(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    lingering: list[Any] = []
    monkeypatch.setattr(channels, "linger", lingering.append)
    parts.sender.is_idle = False
    parts.channel.close()
    assert (lingering, parts.worker.closed) == ([parts.channel], [])
    assert not parts.channel.finish(force=False)
    assert parts.channel.finish(force=True)
    assert parts.worker.closed == ["endpoint", "worker"]


@pytest.mark.parametrize("how", ["idle", "error", "reap"])
def test_a_lingering_channel_ends_early(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(channels, "linger", lambda _: None)
    parts.sender.is_idle = False
    parts.channel.close()
    if how == "idle":
        parts.sender.is_idle = True
    elif how == "error":
        parts.worker.events.error = FAILED
    else:
        parts.sender.failure = StatusError(FAILED)
    assert parts.channel.finish(force=False)
    assert parts.worker.closed == ["endpoint", "worker"]


def test_a_channel_that_is_garbage_is_aborted(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "retain", lambda memory: None)
    made = Parts(descriptor, [])
    worker, number = made.worker, made.channel.fileno()
    del made.channel
    assert worker.closed == ["endpoint", "worker"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert links._closing == []


# The reader's end.


TAGS = RemoteTags(announcement=11, request=12, free_data=13)


def reader_parts(descriptor: int, tags: RemoteTags | None) -> Parts:
    made = Parts(
        descriptor, [], lambda link, sender, receiver: UcxReaderChannel(link, Limits(), tags)
    )
    made.channel._sender, made.channel._receiver = made.sender, made.receiver
    return made


def test_a_reader_requests_remote_bodies_by_their_tag(descriptor: int) -> None:
    frames = [
        TaggedFrame(11, 1, (b"x",)),
        TaggedFrame(5, 1, (b"y",)),
        UntaggedFrame(b"z"),
    ]
    made = reader_parts(descriptor, TAGS)
    made.channel.queue(frames)
    assert made.sender.queue == [TaggedFrame(12, 1, (b"x",)), *frames[1:]]
    assert made.channel.capabilities == channels.REMOTE_CAPABILITIES
    plain = reader_parts(descriptor, None)
    plain.channel.queue(frames)
    assert plain.sender.queue == frames
    assert plain.channel.capabilities == Capabilities()
    for each in (made, plain):
        each.channel.abort()


def test_freed_offsets_travel_in_messages_of_16384(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "pack_offsets", tuple)
    made = reader_parts(descriptor, TAGS)
    made.channel.receive_some()
    assert (made.sender.sent, made.sender.reaped) == ([], 0)
    made.receiver.freed = list(range((1 << 14) + 1))
    made.channel.receive_some()
    assert made.sender.sent == [(13, tuple(range(1 << 14))), (13, (1 << 14,))]
    assert made.sender.reaped == 1
    plain = reader_parts(descriptor, None)
    plain.receiver.freed = [1]
    plain.channel.receive_some()
    assert (plain.sender.sent, plain.receiver.freed) == ([], [1])
    for each in (made, plain):
        each.channel.abort()


def test_a_reader_expects_a_farewell_and_a_server_does_not(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "list_direct_types", lambda context: frozenset())
    worker: Any = Worker(descriptor)
    link = Link(worker, "endpoint", "the peer", reach=Reach.HOST)
    reader, server = UcxReaderChannel(link, Limits(), TAGS), UcxServerChannel(link, Limits())
    assert reader._receiver._farewell_tag == sending.FAREWELL == 0x00FF_FFFF_FFFF_FFFF
    assert reader._receiver._remote_reads is not None
    assert reader._receiver._remote_reads.announcement_tag == 11
    assert server._receiver._farewell_tag is None
    assert server._receiver._remote_reads is None
    for each in (reader, server):
        each.abort()


# The server's end.


def server_parts(descriptor: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Parts:
    monkeypatch.setattr(channels, "list_direct_types", lambda context: frozenset({1, 2}))
    made = Parts(
        descriptor, [], lambda link, sender, receiver: UcxServerChannel(link, Limits(), **options)
    )
    made.map = made.channel._sender._map_file
    made.channel._sender, made.channel._receiver = made.sender, made.receiver
    return made


@pytest.mark.parametrize("remote", [False, True])
def test_a_server_states_what_it_can_send(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    made = server_parts(descriptor, monkeypatch, offers_remote_bodies=remote)
    assert made.channel.capabilities == Capabilities(
        offset_bodies=remote, remote_reads=remote, devices=frozenset({1, 2})
    )
    default = server_parts(descriptor, monkeypatch)
    assert default.channel.capabilities.remote_reads is False
    for each in (made, default):
        each.channel.abort()


@pytest.mark.parametrize(
    ("lanes", "pins"),
    [([], True), (["tcp/eth0", "posix/memory"], False), (["tcp/eth0", "rc_mlx5/mlx5_0:1"], True)],
)
def test_a_file_is_mapped_unless_its_pages_are_pinned(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, lanes: list[str], pins: bool
) -> None:
    queries: list[Any] = []

    def list_lanes(endpoint: Any) -> list[str]:
        queries.append(endpoint)
        return lanes

    monkeypatch.setattr(channels, "list_lanes", list_lanes)
    made: Any = server_parts(descriptor, monkeypatch, map_file=lambda file: ("mapped", file))
    assert made.channel.pins_memory is pins
    assert made.channel.pins_memory is pins
    assert len(queries) == (1 if lanes else 2)
    assert made.map("file") == (None if pins else ("mapped", "file"))
    assert server_parts(descriptor, monkeypatch).map is None
    made.channel.abort()


@pytest.mark.parametrize(("error", "says"), [(OK, True), (FAILED, False)])
def test_a_server_says_farewell_unless_the_connection_broke(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, error: int, says: bool
) -> None:
    made = server_parts(descriptor, monkeypatch)
    made.worker.events.error = error
    made.channel.close()
    assert made.sender.sent == ["farewell"] * says
    assert made.worker.closed == ["endpoint", "worker"]
