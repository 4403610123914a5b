"""Streams over HTTP: whole messages become record batches, and only a proven end is one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from helpers.scripted_http import ScriptedServer, chunked, head, scripted_server
from helpers.streams import ipc_stream
from splitarrow.client.arguments import StreamOptions
from splitarrow.client.http.download import HttpServer, HttpStream, encode_request
from splitarrow.client.stream.decoders import find_messages
from splitarrow.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    InvalidDataError,
    LimitError,
    ProtocolError,
    SplitArrowError,
    StallError,
    UsageError,
)
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.request import Request
from splitarrow.protocol.uri import DataUri

BATCH = pa.record_batch({"n": [1, 2, 3], "s": pa.array(["a", "b", "a"]).dictionary_encode()})
BATCHES = [BATCH, BATCH.slice(1), BATCH]
BODY = ipc_stream(BATCHES, BATCH.schema)
RESPONSE = chunked(BODY, 60, rows=8, splitarrow_version="v1")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server(lambda _: [RESPONSE]) as started:
        yield started


def open_stream(
    server: ScriptedServer, response: bytes | None = None, **options: Any
) -> HttpStream:
    if response is not None:
        server.script = lambda _: [response]
    return HttpStream(f"{server.uri}/v1/datasets/d/data", "d", StreamOptions(**options))


def test_batches_arrive_in_order(server: ScriptedServer) -> None:
    stream = open_stream(server)
    assert stream.schema == BATCH.schema
    assert (stream.transport, stream.format, stream.version) == ("http", "arrow", "v1")
    assert 0 < stream.bytes_received < len(BODY)
    assert list(stream) == BATCHES
    assert stream.bytes_received == len(BODY)
    assert list(stream) == []
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_chunks_of_any_size_and_other_framings(server: ScriptedServer, size: int) -> None:
    assert list(open_stream(server, chunked(BODY, size, rows=8))) == BATCHES
    legacy = ipc_stream(BATCHES, BATCH.schema, use_legacy_format=True)
    assert list(open_stream(server, chunked(legacy, size, rows=8))) == BATCHES
    sized = head(Content_Length=str(len(BODY))) + BODY
    assert list(open_stream(server, sized)) == BATCHES


@pytest.mark.parametrize(
    "step", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
def test_a_response_that_is_cut_is_never_a_short_result(server: ScriptedServer, step: int) -> None:
    for position in range(0, len(RESPONSE), step):
        with pytest.raises(SplitArrowError) as caught:
            list(open_stream(server, RESPONSE[:position]))
        assert caught.value.stream == "d"


def test_the_end_needs_its_marker_and_all_rows(server: ScriptedServer) -> None:
    with pytest.raises(ConnectionLostError, match="ended early"):
        list(open_stream(server, chunked(BODY[:-8], 60, rows=8)))
    with pytest.raises(ProtocolError, match="data follows the end of the stream"):
        list(open_stream(server, chunked(BODY + BODY, 60, rows=16)))
    with pytest.raises(ProtocolError, match="received 8 rows; the server has sent 9"):
        list(open_stream(server, chunked(BODY, 60, rows=9)))


@pytest.mark.parametrize(
    ("body", "kind", "problem"),
    [
        (b"", ConnectionLostError, "ended early"),
        (BODY[-8:], ProtocolError, "ended before its schema"),
        (BODY[BODY.index(b"\xff\xff\xff\xff", 4) :], ProtocolError, "not a schema"),
        (BODY[:-8] + BODY, ProtocolError, "a second schema"),
        (b"<html>" * 100, LimitError, "metadata of .* bytes exceeds the limit"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -1), ProtocolError, "declares -1 bytes"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 8) + bytes(8), ProtocolError, "not an Arrow"),
    ],
)
def test_garbage_is_refused(
    server: ScriptedServer, body: bytes, kind: type[Exception], problem: str
) -> None:
    with pytest.raises(kind, match=problem) as caught:
        list(open_stream(server, chunked(body)))
    assert getattr(caught.value, "stream") == "d"  # noqa: B009


def test_sizes_are_bounded(server: ScriptedServer) -> None:
    with pytest.raises(LimitError, match="exceeds the limit of 64"):
        open_stream(server, limits=Limits(metadata_bytes=64))
    with pytest.raises(LimitError, match=r"declares a body of \d+ bytes; the limit is 8 bytes"):
        list(open_stream(server, limits=Limits(body_bytes=8)))
    big = pa.record_batch({"n": list(range(10_000))})
    body = ipc_stream([big], big.schema, compression="zstd")
    with pytest.raises(LimitError):
        list(open_stream(server, chunked(body), max_decoded_bytes=1000))


def test_values_are_validated(server: ScriptedServer) -> None:
    offsets = pa.py_buffer(struct.pack("<2i", 0, 1))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    body = ipc_stream([pa.record_batch({"s": broken})], pa.schema([("s", pa.string())]))
    with pytest.raises(InvalidDataError):
        list(open_stream(server, chunked(body)))
    assert len(list(open_stream(server, chunked(body), validate="cheap"))) == 1


def test_bodies_arrive_in_the_memory_of_an_allocator(server: ScriptedServer) -> None:
    class Allocator:
        is_host = True

        def __init__(self) -> None:
            self.buffers: list[pa.Buffer] = []

        def allocate(self, nbytes: int) -> pa.Buffer:
            self.buffers.append(pa.allocate_buffer(nbytes))
            return self.buffers[-1]

    batch = pa.record_batch({"n": list(range(10_000))})
    allocator = Allocator()
    response = chunked(ipc_stream([batch], batch.schema), 1000)
    (received,) = open_stream(server, response, allocator=allocator)
    values = received.column(0).buffers()[1]
    assert values is not None
    assert any(
        buffer.address <= values.address < buffer.address + buffer.size
        for buffer in allocator.buffers
    )

    class DeviceAllocator(Allocator):
        is_host = False

    with pytest.raises(UsageError, match="host memory"):
        open_stream(server, allocator=DeviceAllocator())


def test_messages_are_kept_on_request(server: ScriptedServer) -> None:
    stream = open_stream(server)
    stream.keep_messages()
    kept = find_messages(next(stream))
    assert kept is not None
    assert kept.schema_metadata == stream.schema_metadata
    assert len(kept.messages) == 2
    stream.close()


def test_a_closed_or_cancelled_stream_raises(server: ScriptedServer) -> None:
    stream = open_stream(server)
    stream.close()
    with pytest.raises(ClosedError, match="the stream is closed"):
        next(stream)
    stream = open_stream(server)
    stream.cancel()
    with pytest.raises(ClosedError, match="cancelled"):
        next(stream)


def test_silence_after_the_schema_is_an_error(server: ScriptedServer) -> None:
    def script(_: Any) -> Iterator[bytes]:
        yield RESPONSE[: len(RESPONSE) // 2]
        yield from server.wait_for_end()

    server.script = script
    stream = open_stream(server, stall_timeout=0.1, open_timeout=30)
    with pytest.raises(StallError, match=r"nothing arrived for 0\.1 s"):
        list(stream)


@pytest.mark.parametrize("name", ["tcp", "https", "http (tls)"])
def test_another_transport_is_not_used(server: ScriptedServer, name: str) -> None:
    with pytest.raises(ConnectError, match="read over http;"):
        open_stream(server, require_transport=name)
    assert server.received == []
    assert list(open_stream(server, require_transport="http")) == BATCHES


def test_other_items_are_refused(server: ScriptedServer) -> None:
    stream = open_stream(server)
    with pytest.raises(UsageError, match="not tensors"):
        stream.next_tensor()
    with pytest.raises(UsageError, match="no Vortex arrays"):
        stream.next_array()
    stream.close()


def test_a_request_is_a_json_object() -> None:
    request = Request(
        *("d", ("a", "b"), 3, 4, "auto", "arrow", "c3Vi", 5, 6, "v"), batches=((0, 2), (7, 8))
    )
    assert encode_request(request) == (
        b'{"columns": ["a", "b"], "limit": 3, "batch_rows": 4, "offset": 5, "shard": 6, '
        b'"version": "v", "batches": [[0, 2], [7, 8]], "substrait": "c3Vi"}'
    )
    assert encode_request(Request("d", compression="lz4")) == b'{"compression": "lz4"}'


def test_the_url_of_a_dataset_is_encoded() -> None:
    server = HttpServer(DataUri("https", "host", path="/prefix"), token="secret")
    assert server.locate("a/ü?") == "https://host/prefix/v1/datasets/a%2F%C3%BC%3F"
    assert "secret" not in repr(server)
