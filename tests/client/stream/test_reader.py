"""A stream's reader without connections: what it sends, what it makes of frames, how it ends."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from helpers.streams import ipc_stream, list_frames, receive_frames, small_stream, split_messages
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.stream import reader as module
from splitarrow.client.stream.decoders import open_decoder
from splitarrow.client.stream.reader import Reader
from splitarrow.client.uris import resolve_uris
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidDataError,
    NotFoundError,
    ProtocolError,
    RemoteError,
    StallError,
)
from splitarrow.protocol.frames import MessageRun, ReceivedFrame, UntaggedFrame
from splitarrow.protocol.splitter import Splitter
from splitarrow.protocol.states import ReaderState
from splitarrow.protocol.tags import FREE_DATA, KEEP_ALIVE, WANT_DATA
from splitarrow.protocol.uri import DataUri, Streams
from splitarrow.transport.base import Capabilities

URI = f"tcp://h:1?want_data={WANT_DATA}&ticket=d"
MESSAGES = small_stream(3)
FRAMES = receive_frames(list_frames(MESSAGES))
BATCHES = [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


class Channel:
    """A connection that records how it ends."""

    capabilities = Capabilities()
    is_local = True
    peer = "server"
    lanes: tuple[str, ...] = ()
    bytes_received = 10

    def __init__(self, **changes: Any) -> None:
        vars(self).update(changes)
        self.ended: list[str] = []

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")


class Leases:
    """The leases of a connection, some of which are still held."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.ended: list[str] = []

    def linger(self) -> bool:
        self.ended.append("lingers")
        return self.held

    def close(self, *, abort: bool) -> None:
        self.ended.append("aborted" if abort else "closed")


def open_reader(*channels: Channel, uri: Any = URI, **options: Any) -> Reader:
    """Return a reader that has sent its requests."""
    reader = Reader(resolve_uris(uri), StreamOptions(**options))
    for each, address in zip(channels or (Channel(),), reader.uris, strict=True):
        channel: Any = each
        reader.attach(channel, address)
    reader.start()
    return reader


def take_all(reader: Reader) -> list[Any]:
    batches: list[Any] = []
    while (batch := reader.take()) is not None:
        batches.append(batch["n"].to_pylist())
    return batches


# Requests.


@pytest.mark.parametrize(
    ("keep_alive", "timeout", "interval"),
    [
        ("", 30.0, None),
        (f"&keep_alive={KEEP_ALIVE}", None, None),
        (f"&keep_alive={KEEP_ALIVE}", 30.0, 10_000),
    ],
)
def test_keep_alives_are_requested_before_the_data(
    keep_alive: str, timeout: float | None, interval: int | None
) -> None:
    (uri,) = resolve_uris(URI + keep_alive)
    reader = Reader([uri], StreamOptions(stall_timeout=timeout))
    channel: Any = Channel()
    *first, (tag, nbytes, buffers) = reader.attach(channel, uri)
    assert (tag, nbytes, buffers) == (WANT_DATA, 1, (b"d",))
    if interval is None:
        assert first == []
    else:
        assert first == [(KEEP_ALIVE, 4, (interval.to_bytes(4, "little"),))]
    assert reader.state is ReaderState.CONNECTING
    reader.start()
    assert reader.state is ReaderState.OPENING
    assert reader.channels == {Streams.BOTH: channel}


@pytest.mark.parametrize(
    ("required", "is_used"),
    [(None, 1), ("ucx", 1), ("cma", 1), ("cma/memory", 1), ("tcp", 1), ("rc", 0), ("memory", 0)],
)
def test_a_required_transport_is_a_scheme_or_a_lane(required: str | None, is_used: bool) -> None:
    uri = DataUri.parse(URI.replace("tcp:", "ucx:"))
    reader = Reader([uri], StreamOptions(require_transport=required))
    channel: Any = Channel(lanes=("cma/memory", "tcp"))
    if is_used:
        assert reader.attach(channel, uri)
    else:
        with pytest.raises(
            ConnectError,
            match=rf"h:1 is connected over ucx \(cma/memory, tcp\), and {required} is required",
        ):
            reader.attach(channel, uri)
    assert reader.transport == "ucx (cma/memory, tcp)"
    assert reader.channels[Streams.BOTH] is channel  # which `close` closes
    assert Reader([uri], StreamOptions()).transport == "ucx"


@pytest.mark.parametrize(
    ("capabilities", "stream", "tracked", "resolved"),
    [
        (Capabilities(), "", 0, 0),
        (Capabilities(offset_bodies=True), "", 1, 1),
        (Capabilities(offset_bodies=True, remote_reads=True), "", 0, 1),
        (Capabilities(offset_bodies=True), "&stream=metadata", 0, 0),
        (Capabilities(remote_reads=True), "", 0, 0),
    ],
)
def test_leases_are_tracked_where_bodies_stay_at_the_server(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: Capabilities,
    stream: str,
    tracked: bool,
    resolved: bool,
) -> None:
    made: list[Any] = []
    resolvers: list[Any] = []

    def track(channel: Any, free_data: int | None) -> Any:
        made.append((channel, free_data))
        return Leases(held=False)

    def record(message: Any, limits: Any, validate: Any, name: str, remote: Any) -> Any:
        resolvers.append(remote)
        return open_decoder(message, limits, validate, name, remote)

    monkeypatch.setattr(module, "track_leases", track)
    monkeypatch.setattr(module, "open_content_decoder", record)
    uri = DataUri.parse(f"{URI}&free_data={FREE_DATA}{stream}")
    reader = Reader([uri], StreamOptions())
    channel: Any = Channel(capabilities=capabilities)
    reader.attach(channel, uri)
    assert made == ([(channel, FREE_DATA)] if tracked else [])
    reader.start()
    reader.feed(Streams.BOTH, FRAMES[:1])
    assert (resolvers[0] is not None) == resolved
    if resolvers[0] is not None:
        resolvers[0].leased_bytes = 7
    assert reader.bytes_received == 10 + 7 * resolved


@pytest.mark.parametrize(
    ("local", "validate", "used"),
    [
        ([True], None, "cheap"),
        ([False], None, "full"),
        ([True, False], None, "full"),
        ([True, True], None, "cheap"),
        ([False], "off", "off"),
        ([True], "strict", "strict"),
    ],
)
def test_data_of_this_host_is_checked_cheaply_by_default(
    monkeypatch: pytest.MonkeyPatch, local: list[bool], validate: Any, used: str
) -> None:
    found: list[str] = []

    def record(message: Any, limits: Any, validate: Any, *others: Any) -> Any:
        found.append(validate)
        assert limits.decoded_bytes == 1000
        return open_decoder(message, limits, validate, *others)

    monkeypatch.setattr(module, "open_content_decoder", record)
    pair = [f"{URI}&stream=metadata", f"{URI}&stream=body"]
    uri = URI if len(local) == 1 else pair
    channels = [Channel(is_local=each) for each in local]
    reader = open_reader(*channels, uri=uri, validate=validate, max_decoded_bytes=1000)
    reader.feed(next(iter(reader.channels)), FRAMES[:1])
    assert found == [used]
    assert reader.bytes_received == 10 * len(local)


def test_the_next_message_of_a_pair_comes_from_the_stream_that_it_waits_for() -> None:
    metadata, body = Channel(), Channel()
    uris = [f"{URI}&stream=body", f"{URI}&stream=metadata"]
    reader = open_reader(body, metadata, uri=uris)
    assert reader.next_channel() == (Streams.METADATA, metadata)
    reader.feed(Streams.METADATA, FRAMES[:1])
    assert reader.next_channel() == (Streams.METADATA, metadata)
    reader.feed(Streams.METADATA, FRAMES[1:2])
    assert reader.next_channel() == (Streams.BODY, body)
    reader.feed(Streams.BODY, FRAMES[2:3])
    assert reader.next_channel() == (Streams.METADATA, metadata)
    assert take_all(reader) == BATCHES[:1]
    only = Channel()
    assert open_reader(only).next_channel() == (Streams.BOTH, only)


# Frames.


def test_batches_are_decoded_when_they_are_taken() -> None:
    channel = Channel()
    reader = open_reader(channel)
    assert (reader.has_schema, reader.take(), reader.expects_more()) == (False, None, True)
    reader.feed(Streams.BOTH, FRAMES[:3])
    assert reader.schema == pa.schema([("n", pa.int64())])
    assert (reader.state, reader.rows_received, reader.footer_metadata) == (
        ReaderState.STREAMING,
        0,
        None,
    )
    assert take_all(reader) == BATCHES[:1]
    assert (reader.rows_received, reader.expects_more()) == (4, True)
    reader.feed(Streams.BOTH, FRAMES[3:])
    assert reader.state is ReaderState.ENDED
    assert reader.rows_received == 4
    assert take_all(reader) == BATCHES[1:]
    assert (reader.rows_received, reader.expects_more(), reader.is_exhausted) == (12, False, False)
    assert reader.facts() == ["ended", "tcp", "12 rows so far"]
    reader.finish()
    assert channel.ended == ["closed"]
    reader.finish()
    reader.close()
    assert (channel.ended, reader.expects_more()) == (["closed"], False)
    assert reader.facts() == ["read to its end", "tcp", "12 rows"]


@pytest.mark.parametrize("headroom", [0, 512])
def test_a_run_is_decoded_as_a_whole_if_its_memory_allows(headroom: int) -> None:
    batch = pa.record_batch({"n": [7, 8]})
    schema, message = split_messages(ipc_stream([batch], batch.schema))
    first = receive_frames(list_frames([schema, message])[:3], 512)
    reader = open_reader()
    reader.feed(Streams.BOTH, first)
    assert take_all(reader) == [[7, 8]]
    stride = MessageRun.stride_of(message.body_length, headroom)
    run = MessageRun(
        2, bytes(message.metadata), message.body_length, headroom, 3, pa.allocate_buffer(3 * stride)
    )
    body = receive_frames(list_frames([schema, message]))[2]
    assert isinstance(body, ReceivedFrame)
    for number in range(3):
        begin = number * stride + run.start
        run.view[begin : begin + message.body_length] = bytes(body.body)
    reader.feed(Streams.BOTH, [run])
    assert reader.rows_received == 2
    taken = reader.take()
    assert taken is not None
    assert len(reader.batches) == (2 if headroom else 0)
    assert reader.rows_received == (8 if headroom else 4)
    assert [taken["n"].to_pylist(), *take_all(reader)] == [[7, 8]] * 3
    assert reader.rows_received == 8
    reader.close()
    assert not reader.batches


def test_dictionaries_are_no_batches() -> None:
    batch = pa.record_batch({"n": pa.array(["a", "b"]).dictionary_encode()})
    reader = open_reader()
    reader.feed(
        Streams.BOTH, receive_frames(list_frames(split_messages(ipc_stream([batch], batch.schema))))
    )
    assert take_all(reader) == [["a", "b"]]
    assert reader.rows_received == 2


# Errors.


def test_the_batches_before_an_error_are_returned() -> None:
    channel = Channel()
    reader = open_reader(channel)
    reader.feed(Streams.BOTH, [*FRAMES[:3], UntaggedFrame(b"bad")])
    assert (channel.ended, reader.state) == (["aborted"], ReaderState.FAILED)
    assert take_all(reader) == BATCHES[:1]
    with pytest.raises(ProtocolError):
        reader.expects_more()
    with pytest.raises(ProtocolError) as caught:
        reader.expects_more()
    assert (caught.value.stream, caught.value.state) == ("d", "streaming")
    reader.close()
    assert reader.state is ReaderState.CLOSED


def test_a_failure_of_the_server_is_raised_as_it_is() -> None:
    splitter = Splitter()
    frames = [*splitter.split(MESSAGES[:2]), *splitter.fail("NOT_FOUND", "gone")]
    reader = open_reader()
    reader.feed(Streams.BOTH, receive_frames(frames))
    assert take_all(reader) == BATCHES[:1]
    with pytest.raises(NotFoundError, match="gone") as caught:
        reader.expects_more()
    assert (caught.value.stream, getattr(caught.value, "state", None)) == ("d", None)
    reader.feed(Streams.BOTH, FRAMES[3:])  # what was under way
    with pytest.raises(NotFoundError):
        reader.expects_more()


def test_a_lost_connection_says_what_is_missing() -> None:
    channel = Channel()
    reader = open_reader(channel)
    reader.feed(Streams.BOTH, FRAMES[:2])
    reader.fail(ConnectionLostError("lost", stream="other"))
    reader.fail(StallError("silent"))  # The first error counts.
    with pytest.raises(ConnectionLostError) as caught:
        reader.expects_more()
    assert caught.value.message == "lost; missing: the body of message 1"
    assert (caught.value.stream, caught.value.state) == ("other", "streaming")
    assert reader.state is ReaderState.FAILED
    assert channel.ended == ["aborted", "aborted"]
    stalled = open_reader()
    stalled.fail(StallError("silent"))
    with pytest.raises(StallError) as silent:
        stalled.expects_more()
    assert (silent.value.message, silent.value.state) == ("silent", "opening")


def test_an_error_of_a_message_precedes_that_of_a_later_frame() -> None:
    messages = split_messages(
        ipc_stream([pa.record_batch({"n": ["ab"]})] * 2, pa.schema([("n", pa.string())]))
    )
    frames = receive_frames(list_frames(messages))
    broken = receive_frames(list_frames(messages))[2]
    assert isinstance(broken, ReceivedFrame)
    broken.body.view[broken.body.start :] = b"\xff" * broken.body.nbytes
    reader = open_reader(Channel(is_local=False))
    reader.feed(Streams.BOTH, [*frames[:2], broken, *frames[3:5]])
    reader.fail(ConnectionLostError("lost"))
    assert reader.take() is None
    with pytest.raises(InvalidDataError) as caught:
        reader.expects_more()
    assert (caught.value.stream, caught.value.sequence) == ("d", 1)
    assert reader.take() is None  # Nothing after it is decoded.


def test_a_malformed_schema_is_an_error_at_once() -> None:
    channel = Channel()
    reader = open_reader(channel)
    reader.feed(Streams.BOTH, receive_frames(list_frames(MESSAGES[1:]))[:2])
    assert channel.ended == ["aborted"]
    with pytest.raises(ProtocolError):
        reader.expects_more()
    assert (reader.has_schema, reader.take()) == (False, None)


# The end.


@pytest.mark.parametrize("fed", [0, 1, 3])
def test_a_stream_that_is_closed_early_is_aborted(fed: int) -> None:
    channel = Channel()
    reader = open_reader(channel)
    reader.feed(Streams.BOTH, FRAMES[:fed])
    for _ in range(2):
        reader.close()
    assert (channel.ended, reader.take()) == (["aborted"], None)
    assert reader.facts() == ["closed", "tcp", "0 rows so far"]
    with pytest.raises(ClosedError, match="the stream is closed") as caught:
        reader.expects_more()
    assert caught.value.stream == "d"


@pytest.mark.parametrize(
    ("fed", "held", "ended"),
    [
        (len(FRAMES), True, ["lingers"]),
        (len(FRAMES), False, ["lingers", "closed"]),
        (3, True, ["aborted"]),
    ],
)
def test_a_connection_stays_open_for_the_leases_of_a_complete_stream(
    monkeypatch: pytest.MonkeyPatch, fed: int, held: bool, ended: list[str]
) -> None:
    leases: Any = Leases(held)
    monkeypatch.setattr(module, "track_leases", lambda *_: leases)
    channel = Channel(capabilities=Capabilities(offset_bodies=True))
    reader = open_reader(channel)
    reader.feed(Streams.BOTH, FRAMES[:fed])
    reader.close()
    assert (leases.ended, channel.ended) == (ended, [])


def test_only_the_connection_of_the_bodies_has_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    leases: Any = Leases(held=True)
    monkeypatch.setattr(module, "track_leases", lambda *_: leases)
    metadata, body = Channel(), Channel(capabilities=Capabilities(offset_bodies=True))
    reader = open_reader(metadata, body, uri=[f"{URI}&stream=metadata", f"{URI}&stream=body"])
    for frame in FRAMES:
        stream = Streams.METADATA if isinstance(frame, UntaggedFrame) else Streams.BODY
        reader.feed(stream, [frame])
    assert reader.state is ReaderState.ENDED
    reader.close()
    assert (metadata.ended, body.ended, leases.ended) == (["closed"], [], ["lingers"])


def test_an_error_after_the_end_is_an_error() -> None:
    reader = open_reader()
    reader.feed(Streams.BOTH, FRAMES)
    assert reader.state is ReaderState.ENDED
    reader.feed(Streams.BOTH, [UntaggedFrame(b"bad")])
    assert take_all(reader) == BATCHES
    with pytest.raises((ProtocolError, RemoteError)):
        reader.expects_more()
