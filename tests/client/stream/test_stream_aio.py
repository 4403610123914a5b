"""The asynchronous stream over a reader that needs no connection."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import anyio
import pyarrow as pa
import pytest

from splitarrow.client.arguments import StreamOptions
from splitarrow.client.stream import read_ahead
from splitarrow.client.stream import reader as readers
from splitarrow.client.stream import stream as streams
from splitarrow.client.stream.opening import Opening
from splitarrow.client.stream.read_ahead import ReadAhead, ReaderSource, Run
from splitarrow.client.stream.stream import AsyncStream, Stream
from splitarrow.client.uris import resolve_uris
from splitarrow.errors import ClosedError, ConnectionLostError, NotFoundError, SplitArrowError
from splitarrow.protocol.uri import Streams

BATCHES = [pa.record_batch({"n": [number]}) for number in range(3)]
URIS = resolve_uris("tcp://h:1?want_data=1&ticket=d")


class Channel:
    """A connection that counts its interruptions."""

    def __init__(self) -> None:
        self.interrupted = 0

    def interrupt(self) -> None:
        self.interrupted += 1

    def abort(self) -> None: ...


class Reader:
    """A reader whose messages have arrived; `batches` are decoded already."""

    def __init__(self, *messages: pa.RecordBatch) -> None:
        self.messages = list(messages)
        self.batches: deque[pa.RecordBatch] = deque()
        self.options = StreamOptions()
        self.channels = {Streams.METADATA: Channel(), Streams.BODY: Channel()}
        self.is_exhausted = False
        self.bytes_received = 24
        self.failures: list[SplitArrowError] = []
        self.fed: list[Any] = []

    def take(self) -> pa.RecordBatch | None:
        return self.messages.pop(0) if self.messages else None

    def expects_more(self) -> bool:
        if self.failures:
            raise self.failures[0]
        return not self.fed

    def next_channel(self) -> Any:
        return Streams.BODY, self.channels[Streams.BODY]

    def feed(self, stream: Streams, frames: Any) -> None:
        self.fed.append((stream, frames))

    def fail_receiving(self, error: SplitArrowError) -> None:
        self.failures.append(error)

    def finish(self) -> None:
        self.is_exhausted = True


def stream_of(*messages: pa.RecordBatch) -> tuple[AsyncStream, Reader]:
    stream, reader = AsyncStream(Opening(URIS, StreamOptions())), Reader(*messages)
    any_reader: Any = reader
    stream._reader = any_reader
    return stream, reader


def real_reader() -> readers.Reader:
    reader = readers.Reader(URIS, StreamOptions())
    channels: Any = {Streams.METADATA: Channel(), Streams.BODY: Channel()}
    reader.channels.update(channels)
    return reader


def blocking_stream(reader: Any) -> Stream:
    stream = Stream.__new__(Stream)
    driver = ReaderSource(reader)
    read_ahead = ReadAhead(driver, 1, None)
    fields = {"_reader": reader, "_source": driver, "_read_ahead": read_ahead, "_run": Run()}
    vars(stream).update(fields, _window_bytes=0)
    return stream


async def test_other_tasks_run_between_messages_that_have_arrived() -> None:
    stream, reader = stream_of(*BATCHES)
    assert stream.bytes_received == 24
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anext(stream)
    assert scope.cancelled_caught
    assert await anext(stream) == BATCHES[0]
    reader.batches.append(BATCHES[2])  # Those of one run follow at once.
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await anext(stream) == BATCHES[2]
    assert await anext(stream) == BATCHES[1]


async def test_frames_are_received_until_a_batch_or_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, reader = stream_of()

    async def receive(channel: Any, timeout: float | None) -> Any:
        assert (channel, timeout) == (reader.channels[Streams.BODY], 30.0)
        return ["frame"]

    monkeypatch.setattr(streams, "aio", SimpleNamespace(receive=receive))
    assert [batch async for batch in stream] == []
    assert reader.fed == [(Streams.BODY, ["frame"])]
    assert stream.is_exhausted


@pytest.mark.parametrize(
    ("error", "is_cancelled", "kind"),
    [
        (ConnectionLostError("lost"), False, ConnectionLostError),
        (ConnectionLostError("lost"), True, ClosedError),
        (NotFoundError("gone"), True, NotFoundError),
    ],
)
async def test_a_connection_that_a_cancellation_ends_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
    error: SplitArrowError,
    is_cancelled: bool,
    kind: type[SplitArrowError],
) -> None:
    async def receive_later(*_: Any) -> Any:
        raise error

    def receive(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(streams, "aio", SimpleNamespace(receive=receive_later))
    monkeypatch.setattr(read_ahead, "blocking", SimpleNamespace(receive=receive))
    stream, other = AsyncStream(Opening(URIS, StreamOptions())), blocking_stream(real_reader())
    stream._reader = real_reader()
    for each in (stream, other):
        if is_cancelled:
            each.cancel()
    with pytest.raises(kind) as caught:
        await anext(stream)
    with pytest.raises(kind) as also_caught:
        next(other)
    for found in (caught.value, also_caught.value):
        assert (found is error) == (kind is not ClosedError)


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_cancelling_interrupts_all_connections_of_a_stream_that_is_read(
    is_exhausted: bool,
) -> None:
    """One that was read to its end keeps the connection over which its batches are leased."""
    stream, other = AsyncStream(Opening(URIS, StreamOptions())), blocking_stream(real_reader())
    stream._reader = real_reader()
    for each in (stream, other):
        each._reader.is_exhausted = is_exhausted
        each.cancel()
        channels: Any = each._reader.channels
        found = [channel.interrupted for channel in channels.values()]
        assert found == [not is_exhausted] * 2
