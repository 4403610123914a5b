"""A reader distinguishes a slow source from a dead server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

import splitarrow
from splitarrow.errors import StallError

STALL = 1.2
SLOW = 2.0
BATCH = pa.record_batch({"n": [1, 2, 3]})
SCHEMES = ["tcp", "shm", "ucx", "inproc", "flight"]


def slow_reader() -> pa.RecordBatchReader:
    """Return a reader that takes longer than the stall timeout for its second batch."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield BATCH
        time.sleep(SLOW)
        yield BATCH

    return pa.RecordBatchReader.from_batches(BATCH.schema, batches())


def serve() -> splitarrow.Server:
    listen = ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0", "inproc://keep-alives"]
    return splitarrow.serve({"slow": slow_reader()}, listen=listen, control="grpc://127.0.0.1:0")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_slow_source_does_not_stall(scheme: str) -> None:
    with serve() as server:
        if scheme != "flight":
            with splitarrow.open(server.uri("slow", scheme=scheme), stall_timeout=STALL) as stream:
                assert stream.read_all().num_rows == 6
            return
        with splitarrow.connect(server.control_uri or "") as client:
            stream = client.read("slow", transport="flight", stall_timeout=STALL)
            assert stream.read_all().num_rows == 6


def test_a_slow_source_stalls_neither_of_two_connections() -> None:
    listen = ["tcp://127.0.0.1:0?stream=metadata", "tcp://127.0.0.1:0?stream=body"]
    with (
        splitarrow.serve({"slow": slow_reader()}, listen=listen[:1], control=None) as metadata,
        splitarrow.serve({"slow": slow_reader()}, listen=listen[1:], control=None) as body,
    ):
        uris = [metadata.uri("slow", stream="metadata"), body.uri("slow", stream="body")]
        with splitarrow.open(uris, stall_timeout=STALL) as stream:
            assert stream.read_all().num_rows == 6


async def test_a_slow_source_does_not_stall_an_asynchronous_reader() -> None:
    with serve() as server:
        async with splitarrow.aio.open(server.uri("slow"), stall_timeout=STALL) as stream:
            assert sum([batch.num_rows async for batch in stream]) == 6


def test_a_reader_that_requests_no_keep_alives_gets_none() -> None:
    with serve() as server:
        uri = splitarrow.protocol.uri.DataUri.parse(server.uri("slow")).replace(keep_alive=None)
        with (
            splitarrow.open(str(uri), stall_timeout=STALL) as stream,
            pytest.raises(StallError, match="silent"),
        ):
            stream.read_all()


def test_a_flight_client_of_another_maker_gets_no_keep_alives() -> None:
    with serve() as server, flight.connect(server.control_uri or "") as client:
        assert client.do_get(flight.Ticket(b"slow")).read_all().num_rows == 6
