"""A channel with faults differs from its channel in the frames that arrive, and in nothing else."""

from __future__ import annotations

import inspect
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, sentinel

import pyarrow as pa
import pytest

from helpers import faults as faults_module
from helpers.clock import Clock
from helpers.faults import Faults, FaultyChannel, inject_faults
from splitarrow.errors import ConnectionLostError
from splitarrow.protocol.frames import IncomingFrame, MessageRun, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.regions import RemoteBody
from splitarrow.protocol.uri import DataUri
from splitarrow.transport import inproc, registry
from splitarrow.transport.base import Channel, ConnectOptions, ListenOptions

PROPERTIES = sorted(
    name for name, member in inspect.getmembers(Channel) if isinstance(member, property)
)


@pytest.fixture
def channel() -> Any:
    """A channel whose properties are all different."""
    values = {name: getattr(sentinel, name) for name in PROPERTIES}
    return MagicMock(spec=Channel, **values)


@pytest.mark.parametrize("name", sorted({*PROPERTIES} - {"is_local", "wake_at"}))
def test_properties_are_those_of_the_channel(channel: Any, name: str) -> None:
    assert getattr(FaultyChannel(channel, Faults()), name) is getattr(sentinel, name)


def test_faulty_data_is_not_trusted_as_local_data(channel: Any) -> None:
    assert FaultyChannel(channel, Faults()).is_local is False


@pytest.mark.parametrize("name", ["fileno", "send_fileno", "send_some"])
def test_results_are_those_of_the_channel(channel: Any, name: str) -> None:
    getattr(channel, name).return_value = sentinel.result
    assert getattr(FaultyChannel(channel, Faults()), name)() is sentinel.result


@pytest.mark.parametrize("name", ["interrupt", "close", "abort"])
def test_the_end_reaches_the_channel(channel: Any, name: str) -> None:
    getattr(FaultyChannel(channel, Faults()), name)()
    getattr(channel, name).assert_called_once_with()


def test_frames_are_sent_unchanged(channel: Any) -> None:
    frames = [UntaggedFrame(b"\1\0\0\0\0")]
    FaultyChannel(channel, Faults(drop=1, corrupt=1)).queue(frames)
    channel.queue.assert_called_once_with(frames)


class Arrivals:
    """A channel that returns the frames of one list at each call, and then breaks."""

    peer = "the server"

    def __init__(self, *arrivals: list[IncomingFrame]) -> None:
        self.arrivals = list(arrivals)
        self.calls = 0
        self.aborts = 0

    def receive_some(self) -> list[IncomingFrame]:
        self.calls += 1
        if not self.arrivals:
            raise ConnectionLostError("the server closed the connection")
        return self.arrivals.pop(0)

    def abort(self) -> None:
        self.aborts += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(sentinel, name)


def numbered(count: int) -> list[IncomingFrame]:
    return [UntaggedFrame(bytes([number])) for number in range(count)]


def numbers(frames: list[IncomingFrame]) -> list[int]:
    return [frame.payload[0] for frame in frames if isinstance(frame, UntaggedFrame)]


def faulty(faults: Faults, *arrivals: list[IncomingFrame]) -> tuple[Any, FaultyChannel]:
    channel: Any = Arrivals(*arrivals)
    return channel, FaultyChannel(channel, faults)


def test_there_are_no_faults_by_default() -> None:
    assert Faults() == Faults(0, 0, 0.0, 0.0, 0.0, 0.0, None)


def test_without_faults_frames_arrive_as_they_are() -> None:
    _, channel = faulty(Faults(), numbered(3), [], numbered(2))
    assert [numbers(channel.receive_some()) for _ in range(3)] == [[0, 1, 2], [], [0, 1]]
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="the server closed"):
            channel.receive_some()
    assert channel.wake_at is None


def test_a_run_arrives_as_its_frames() -> None:
    run = MessageRun(7, b"m", 3, 0, 2, pa.py_buffer(bytearray(128)))
    _, channel = faulty(Faults(), [run])
    frames = channel.receive_some()
    assert [type(frame) for frame in frames] == [UntaggedFrame, ReceivedFrame] * 2


def test_a_seed_determines_which_frames_are_dropped_and_repeated() -> None:
    def receive(seed: int, **rates: Any) -> list[int]:
        return numbers(faulty(Faults(seed, **rates), numbered(200))[1].receive_some())

    assert receive(1, drop=1.0) == []
    kept = receive(1, drop=0.5)
    assert 50 < len(kept) < 150
    assert receive(1, drop=0.5) == kept != receive(2, drop=0.5)
    assert receive(1, duplicate=1.0) == sorted([*range(200)] * 2)
    twice = receive(1, duplicate=0.5)
    assert 250 < len(twice) < 350
    assert twice == sorted(twice)
    assert set(twice) == set(range(200))


def test_a_corrupt_frame_differs_in_one_bit() -> None:
    _, channel = faulty(Faults(corrupt=1.0), [UntaggedFrame(bytes(2))] * 400)
    found: set[int] = set()
    for frame in channel.receive_some():
        assert isinstance(frame, UntaggedFrame)
        assert len(frame.payload) == 2
        found.add(int.from_bytes(frame.payload, "little"))
    assert found == {1 << bit for bit in range(16)}


def test_a_corrupt_body_keeps_its_tag_its_headroom_and_its_region() -> None:
    region: Any = sentinel.region
    plain, remote = ReceivedBody.copy(b"ab", 64), ReceivedBody.copy(b"cd", 64)
    frames: list[IncomingFrame] = [
        ReceivedFrame(5, plain),
        ReceivedFrame(6, RemoteBody(remote, region)),
        UntaggedFrame(b""),
        ReceivedFrame(7, ReceivedBody.copy(b"")),
    ]
    _, channel = faulty(Faults(corrupt=1.0), frames)
    first, second, third, fourth = channel.receive_some()
    assert isinstance(first, ReceivedFrame)
    assert isinstance(second, ReceivedFrame)
    assert (first.tag, second.tag, first.body.start, second.body.start) == (5, 6, 64, 64)
    for frame, original in ((first, b"ab"), (second, b"cd")):
        changed = int.from_bytes(bytes(frame.body)) ^ int.from_bytes(original)
        assert changed.bit_count() == 1
    assert not isinstance(first.body, RemoteBody)
    assert isinstance(second.body, RemoteBody)
    assert second.body.region is region
    assert (third, fourth) == (frames[2], frames[3])  # nothing to corrupt
    assert (bytes(plain), bytes(remote)) == (b"ab", b"cd")


def test_frames_are_shuffled_within_each_window() -> None:
    _, channel = faulty(Faults(3, reorder=4), numbered(10))
    got = numbers(channel.receive_some())
    assert [sorted(got[at : at + 4]) for at in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert got != sorted(got)
    assert channel.wake_at is None
    assert numbers(faulty(Faults(3, reorder=1), numbered(10))[1].receive_some()) == [*range(10)]


def test_too_few_frames_for_a_window_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(faults_module, "time", SimpleNamespace(monotonic=clock))
    inner, channel = faulty(Faults(reorder=4), numbered(1), numbered(2), [], numbered(4))
    assert channel.receive_some() == []
    assert channel.wake_at == clock.now + 0.005
    first = channel.wake_at
    clock.now += 0.004
    assert channel.receive_some() == []
    assert (channel.wake_at, inner.calls) == (first, 1)
    assert first is not None
    clock.now = first
    assert channel.receive_some() == []
    assert channel.wake_at == clock.now + 0.005
    clock.now += 0.005
    assert sorted(numbers(channel.receive_some())) == [0, 0, 1]  # nothing else has arrived
    assert channel.wake_at is None
    assert sorted(numbers(channel.receive_some())) == [0, 1, 2, 3]
    assert inner.calls == 4


def test_the_frames_before_a_broken_connection_arrive_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(faults_module, "time", SimpleNamespace(monotonic=clock))
    inner, channel = faulty(Faults(reorder=4), numbered(2))
    assert channel.receive_some() == []
    clock.now += 1
    assert sorted(numbers(channel.receive_some())) == [0, 1]
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="the server closed"):
            channel.receive_some()
    assert (inner.calls, inner.aborts) == (2, 0)


def test_a_read_is_delayed_by_a_part_of_the_longest_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100.0)
    monkeypatch.setattr(faults_module, "time", SimpleNamespace(monotonic=clock))
    inner, channel = faulty(Faults(delay=8.0), numbered(1), numbered(2))
    delays: list[float] = []
    for count in (1, 2):
        assert channel.receive_some() == []
        assert inner.calls == count - 1
        assert channel.wake_at is not None
        delays.append(channel.wake_at - clock.now)
        clock.now = channel.wake_at
        assert len(channel.receive_some()) == count
        assert channel.wake_at is None
    assert all(0 < delay < 8 for delay in delays)
    assert delays[0] != delays[1]


@pytest.mark.parametrize(
    ("after", "arrivals", "delivered"),
    [
        (0, (3,), []),
        (3, (3,), [3]),
        (4, (3, 3), [3, 1]),
        (6, (3, 3), [3, 3]),
        (6, (3, 4), [3, 3]),
    ],
)
def test_a_connection_is_cut_after_a_number_of_frames(
    after: int, arrivals: tuple[int, ...], delivered: list[int]
) -> None:
    inner, channel = faulty(Faults(cut_after=after), *(numbered(count) for count in arrivals))
    for count in delivered:
        assert inner.aborts == 0
        assert len(channel.receive_some()) == count
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="with the server was cut on purpose"):
            channel.receive_some()
        assert inner.aborts >= 1
    assert inner.calls == len(arrivals)


def test_a_connection_is_not_cut_before() -> None:
    inner, channel = faulty(Faults(cut_after=4), numbered(3), [])
    assert len(channel.receive_some()) == 3
    assert channel.receive_some() == []
    assert inner.aborts == 0


def test_faults_last_as_long_as_their_context() -> None:
    uri = DataUri("inproc", "faults")
    with closing(inproc.TRANSPORT.listen(uri, ListenOptions())):
        with inject_faults("inproc", Faults(cut_after=0)):
            transport = registry.find_transport(uri)
            assert transport.scheme == "inproc"
            assert transport.traits is inproc.TRANSPORT.traits
            assert transport.diagnose() == inproc.TRANSPORT.diagnose()
            listener = transport.listen(DataUri("inproc"), ListenOptions())
            assert isinstance(listener, inproc.InprocListener)
            listener.close()
            with closing(transport.connect(uri, ConnectOptions())) as channel:
                assert isinstance(channel, FaultyChannel)
                with pytest.raises(ConnectionLostError, match="cut on purpose"):
                    channel.receive_some()
        assert registry.find_transport(uri) is inproc.TRANSPORT
