"""A server that repeats itself forever does not keep its reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

import splitarrow
from helpers.clock import Clock
from helpers.streams import ipc_stream, list_frames, receive_frames, split_messages
from helpers.wire_writer import Manners, Writer
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.rpc.channel import FlightChannel
from splitarrow.client.rpc.download import FlightStream
from splitarrow.client.stream import reader as progress
from splitarrow.client.stream.reader import Reader
from splitarrow.client.uris import parse_control_uri, resolve_uris
from splitarrow.errors import LimitError, StallError
from splitarrow.proto import Flight_pb2 as flight
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.uri import Streams

BATCH = pa.record_batch([pa.array([1, 2, 3])], names=["n"])
STALL_SECONDS = 0.5


@pytest.fixture
def repeating() -> Iterator[Writer]:
    """A server that sends two messages, and then the first one again and again."""
    manners = Manners(end=False, repeat_first_every=0.01)
    with Writer(ipc_stream([BATCH], BATCH.schema), manners) as server:
        yield server


def test_only_new_frames_reset_the_stall_timeout(repeating: Writer) -> None:
    with splitarrow.open(repeating.uri, stall_timeout=STALL_SECONDS) as stream:
        assert next(stream) == BATCH
        started = time.monotonic()
        with pytest.raises(StallError, match=r"has sent only duplicates for 0\.5 s"):
            next(stream)
        assert time.monotonic() - started > STALL_SECONDS


async def test_only_new_frames_reset_the_stall_timeout_of_an_async_stream(
    repeating: Writer,
) -> None:
    async with splitarrow.aio.open(repeating.uri, stall_timeout=STALL_SECONDS) as stream:
        assert await anext(stream) == BATCH
        with pytest.raises(StallError, match="only duplicates"):
            await anext(stream)


def test_a_slow_consumer_is_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    messages = split_messages(ipc_stream([BATCH] * 2, BATCH.schema))
    schema, *first, metadata, body, _ = receive_frames(list_frames(messages))
    reader = Reader(
        resolve_uris("tcp://h:1?want_data=0x10000000001&ticket=d"),
        StreamOptions(stall_timeout=10.0),
    )
    channel: Any = SimpleNamespace(peer="server", is_local=True, abort=lambda: None)
    reader.channels[Streams.BOTH] = channel
    reader.start()
    reader.feed(Streams.BOTH, [schema, *first])
    reader.feed(Streams.BOTH, [schema])
    clock.now += 9.5
    reader.feed(Streams.BOTH, [metadata, body])
    for _ in range(2):
        assert reader.take() == BATCH
        clock.now += 100.0  # the consumer works
    reader.feed(Streams.BOTH, [schema])
    clock.now += 9.5
    reader.feed(Streams.BOTH, [schema])
    assert reader.expects_more()
    clock.now += 0.5
    reader.feed(Streams.BOTH, [schema])
    with pytest.raises(StallError, match="server has sent only duplicates for 10 s"):
        reader.expects_more()


def test_duplicates_are_bounded_without_a_timeout(repeating: Writer) -> None:
    with splitarrow.open(repeating.uri, stall_timeout=None, limits=Limits(duplicates=20)) as stream:
        next(stream)
        with pytest.raises(LimitError, match="21 duplicates arrived in succession"):
            next(stream)


class _Nothing(grpc.GenericRpcHandler):
    """A Flight service whose DoGet never sends a message, only application metadata."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def service(self, handler_call_details: Any) -> Any:
        def do_get(request: bytes, context: Any) -> Iterator[bytes]:
            while not self.stop.wait(0.01):
                yield flight.FlightData(app_metadata=b"working").SerializeToString()

        return grpc.unary_stream_rpc_method_handler(do_get)


def test_messages_without_data_do_not_reset_the_stall_timeout_of_do_get() -> None:
    stop = threading.Event()
    server: Any = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Nothing(stop)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = FlightChannel(parse_control_uri(f"grpc://127.0.0.1:{port}"), None, None, 30.0)
    try:
        with pytest.raises(StallError, match=r"nothing arrived for 0\.5 s"):
            FlightStream(channel, b"t", "data", StreamOptions(stall_timeout=STALL_SECONDS))
    finally:
        stop.set()
        channel.close()
        server.stop(None).wait()
