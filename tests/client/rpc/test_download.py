"""DoGet: the messages of a server become record batches, and its silence an error."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from helpers.streams import ipc_stream, split_messages
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.rpc import download
from splitarrow.client.rpc.download import FlightStream
from splitarrow.errors import (
    ClosedError,
    InvalidDataError,
    LimitError,
    ProtocolError,
    StallError,
    UnavailableError,
)
from splitarrow.formats.flight_data import KEEP_ALIVE_METADATA, pack_flight_data
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import DataUri

BATCH = pa.record_batch({"n": [1, 2, 3], "s": pa.array(["a", "b", "a"]).dictionary_encode()})
MESSAGES = [
    pack_flight_data(message.metadata, message.body, message.body_length)
    for message in split_messages(ipc_stream([BATCH] * 2, BATCH.schema))
]
KEEP_ALIVE = pack_flight_data(app_metadata=KEEP_ALIVE_METADATA)
OTHER = pack_flight_data(app_metadata=b"other")


class Call:
    """A call of DoGet that yields messages, raises errors, or waits until it is cancelled."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self.is_cancelled = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        for item in self._items:
            if item is None:
                assert self.is_cancelled.wait(60)
                raise grpc.RpcError
            if isinstance(item, Exception):
                raise item
            yield item

    def cancel(self) -> None:
        self.is_cancelled.set()


class Channel:
    """A channel whose only call yields given items."""

    uri = DataUri("grpc", "host", 1)

    def __init__(self, *items: Any) -> None:
        self.call = Call(items)
        self.requests: list[tuple[bytes, float | None]] = []

    def do_get(self, message: bytes, keep_alive_seconds: float | None, plan: None) -> Call:
        self.requests.append((flight.Ticket.FromString(message).ticket, keep_alive_seconds))
        return self.call

    def convert_error(self, error: Exception, name: str, *, closed: bool) -> Exception:
        return ClosedError("closed") if closed else UnavailableError(f"failed {name}")


def open_stream(channel: Channel, **options: Any) -> FlightStream:
    any_channel: Any = channel
    return FlightStream(any_channel, b"ticket", "d", StreamOptions(**options))


def test_batches_arrive_in_order_and_bytes_are_counted() -> None:
    channel = Channel(*MESSAGES)
    stream = open_stream(channel, stall_timeout=30.0)
    assert channel.requests == [(b"ticket", 10.0)]
    assert stream.schema == BATCH.schema
    assert stream.transport == "flight"
    assert stream.bytes_received == len(MESSAGES[0])
    assert list(stream) == [BATCH, BATCH]
    assert stream.bytes_received == sum(map(len, MESSAGES))
    assert list(stream) == []
    stream.close()
    assert not channel.call.is_cancelled.is_set()
    assert list(stream) == []


def test_without_a_time_limit_no_keep_alives_are_requested() -> None:
    channel = Channel(*MESSAGES)
    open_stream(channel, stall_timeout=None).close()
    assert channel.requests == [(b"ticket", None)]
    assert channel.call.is_cancelled.is_set()


def test_application_metadata_is_no_message() -> None:
    items = [OTHER, MESSAGES[0], KEEP_ALIVE, KEEP_ALIVE, *MESSAGES[1:], OTHER]
    assert list(open_stream(Channel(*items))) == [BATCH, BATCH]


def test_keep_alives_are_bounded_in_succession() -> None:
    limits = Limits(duplicates=2)
    items = [MESSAGES[0], KEEP_ALIVE, KEEP_ALIVE, *MESSAGES[1:3], KEEP_ALIVE, KEEP_ALIVE]
    stream = open_stream(Channel(*items, *MESSAGES[3:]), limits=limits)
    assert len(list(stream)) == 2
    stream = open_stream(Channel(MESSAGES[0], *[KEEP_ALIVE] * 3), limits=limits)
    with pytest.raises(LimitError, match="3 keep-alives arrived in succession; the limit is 2"):
        next(stream)


@pytest.mark.parametrize(
    ("items", "error", "problem"),
    [
        ([], ProtocolError, "the stream ended before its schema"),
        ([MESSAGES[1]], ProtocolError, "expected a schema"),
        ([grpc.RpcError()], UnavailableError, "failed d"),
        ([b"\xff"], ProtocolError, "malformed"),
    ],
)
def test_a_stream_needs_a_schema(items: list[Any], error: type[Exception], problem: str) -> None:
    channel = Channel(*items)
    with pytest.raises(error, match=problem):
        open_stream(channel)
    assert channel.call.is_cancelled.is_set() == bool(items)


def test_metadata_is_bounded() -> None:
    size = max(
        len(message.metadata) for message in split_messages(ipc_stream([BATCH], BATCH.schema))
    )
    open_stream(Channel(*MESSAGES), limits=Limits(metadata_bytes=16 * size))
    with pytest.raises(ProtocolError, match=f"exceeds the limit of {size // 4}"):
        open_stream(Channel(*MESSAGES), limits=Limits(metadata_bytes=size // 4))


@pytest.mark.parametrize(("validate", "is_refused"), [(None, True), ("full", True), ("off", False)])
def test_batches_are_validated_in_full_unless_told_otherwise(
    validate: Any, is_refused: bool
) -> None:
    offsets = pa.py_buffer(struct.pack("<2i", 0, 1))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    batch = pa.record_batch({"not UTF-8": broken})
    messages = [
        pack_flight_data(message.metadata, message.body, message.body_length)
        for message in split_messages(ipc_stream([batch], batch.schema))
    ]
    stream = open_stream(Channel(*messages), validate=validate)
    if is_refused:
        with pytest.raises(InvalidDataError):
            next(stream)
    else:
        assert next(stream).num_rows == 1


def test_the_thread_that_watches_for_silence_ends_with_its_stream() -> None:
    def watching() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "splitarrow-stall"]

    before = watching()
    stream = open_stream(Channel(*MESSAGES), stall_timeout=60.0)
    (added,) = [each for each in watching() if each not in before]
    assert added.daemon
    stream.close()
    added.join(30)
    assert not added.is_alive()


def test_an_error_in_a_batch_ends_the_call() -> None:
    broken = pack_flight_data(split_messages(ipc_stream([BATCH], BATCH.schema))[2].metadata, [], 0)
    channel = Channel(MESSAGES[0], MESSAGES[1], broken)
    stream = open_stream(channel)
    with pytest.raises(InvalidDataError) as caught:
        next(stream)
    assert caught.value.sequence == 2
    assert channel.call.is_cancelled.is_set()


def test_a_failure_after_a_batch_is_raised() -> None:
    stream = open_stream(Channel(*MESSAGES[:3], grpc.RpcError()))
    assert next(stream) == BATCH
    with pytest.raises(UnavailableError, match="failed d"):
        next(stream)


@pytest.mark.parametrize("last", [(), (KEEP_ALIVE,)])
def test_silence_is_an_error(last: tuple[bytes, ...]) -> None:
    stream = open_stream(Channel(*MESSAGES[:3], *last, None), stall_timeout=0.05)
    assert next(stream) == BATCH
    with pytest.raises(StallError, match=r"nothing arrived for 0\.05 s") as caught:
        next(stream)
    assert caught.value.stream == "d"


def test_a_cancelled_or_closed_stream_raises() -> None:
    stream = open_stream(Channel(MESSAGES[0], None))
    threading.Timer(0.01, stream.cancel).start()
    with pytest.raises(ClosedError):
        next(stream)
    stream = open_stream(Channel(*MESSAGES))
    stream.close()
    with pytest.raises(ClosedError, match="the stream is closed"):
        next(stream)


class Timer:
    """Takes the place of the thread that watches waits, and records them."""

    def __init__(self, timeout: float | None, on_stall: Callable[[], None]) -> None:
        self.timeout = timeout
        self.on_stall = on_stall
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def reset(self) -> None:
        self.calls.append("reset")

    def stop(self) -> None:
        self.calls.append("stop")


def test_each_wait_for_a_message_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_StallTimer", Timer)
    channel = Channel(MESSAGES[0], MESSAGES[1], KEEP_ALIVE, OTHER, *MESSAGES[2:])
    stream = open_stream(channel, stall_timeout=7.0)
    timer: Any = stream._stall_timer
    assert (timer.timeout, timer.calls) == (7.0, ["start", "reset"])
    timer.calls.clear()
    assert next(stream) == BATCH
    # The dictionary, and the batch after a sign of life and a message that is none.
    assert timer.calls == ["start", "reset", "start", "start", "reset"]
    assert list(stream) == [BATCH]
    assert timer.calls[-2:] == ["start", "reset"]
    stream.close()
    assert timer.calls[-1] == "stop"
    failed = Channel(MESSAGES[0], grpc.RpcError())
    stream = open_stream(failed, stall_timeout=7.0)
    timer = stream._stall_timer
    with pytest.raises(UnavailableError):
        next(stream)
    assert timer.calls[-1] == "reset"
    timer.on_stall()
    assert failed.call.is_cancelled.is_set()


def test_silence_after_a_batch_is_an_error() -> None:
    stream = open_stream(Channel(*MESSAGES[:3], None), stall_timeout=0.05)
    assert next(stream) == BATCH
    with pytest.raises(StallError, match=r"nothing arrived for 0\.05 s"):
        next(stream)


def test_a_consumer_that_takes_its_time_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    naps: list[float] = []
    stalls: list[float] = []
    timer = download._StallTimer(None, lambda: stalls.append(now[0]))

    def nap(seconds: float) -> bool:
        """Let the thread of the timer sleep. The consumer returns late in the second nap."""
        naps.append(seconds)
        now[0] += seconds
        if len(naps) == 2:
            now[0] -= 4
            timer.start()
            now[0] += 4
        return False

    stopped: Any = SimpleNamespace(wait=nap)
    timer._stopped = stopped
    monkeypatch.setattr(download, "time", SimpleNamespace(monotonic=lambda: now[0]))
    timer._run(10.0)
    assert (naps, stalls) == ([10.0, 10.0, 6.0], [126.0])


def test_a_message_that_is_invalid_is_numbered() -> None:
    broken = pack_flight_data(split_messages(ipc_stream([BATCH], BATCH.schema))[2].metadata, [], 0)
    stream = open_stream(Channel(MESSAGES[0], MESSAGES[1], broken))
    with pytest.raises(InvalidDataError) as caught:
        next(stream)
    assert (caught.value.stream, caught.value.sequence) == ("d", 2)


@pytest.mark.parametrize("validate", [None, "off"])
def test_values_are_checked_unless_that_is_disabled(validate: Any) -> None:
    text = pa.record_batch({"s": ["ab"]})
    schema, message = split_messages(ipc_stream([text], text.schema))
    body = b"".join(map(bytes, message.body or ()))
    items = [
        pack_flight_data(schema.metadata),
        pack_flight_data(message.metadata, [body.replace(b"ab", b"\xff\xff")], len(body)),
    ]
    stream = open_stream(Channel(*items), validate=validate)
    if validate is None:
        with pytest.raises(InvalidDataError):
            next(stream)
    else:
        assert next(stream).num_rows == 1


def test_metadata_may_be_as_long_as_its_limit() -> None:
    for limit, problem in ((99, "100 bytes exceeds the limit of 99"), (100, "is not an Arrow")):
        channel = Channel(pack_flight_data(b"x" * 100))
        with pytest.raises(ProtocolError, match=problem):
            open_stream(channel, limits=Limits(metadata_bytes=limit))
