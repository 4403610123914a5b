"""Streams whose batches land on a device, whose memory the processor cannot touch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.trap_device import TrapMemory
from splitarrow import errors
from splitarrow.client.stream.device_stream import AsyncDeviceStream, DeviceStream
from splitarrow.server.embedded import Server

TABLE = pa.table(
    {
        "n": pa.array(range(50_000), pa.int64()),
        "s": pa.array([None if n % 7 == 0 else str(n) for n in range(50_000)]),
        "d": pa.array([str(n % 5) for n in range(50_000)]).dictionary_encode(),
    }
)
SCHEMES = ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"]


@pytest.fixture(scope="module", params=SCHEMES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    control, http = "grpc://127.0.0.1:0", "http://127.0.0.1:0"
    with splitarrow.serve(
        {"data": TABLE}, listen=[request.param], control=control, http=http
    ) as running:
        yield running


def collect(stream: Any) -> pa.Table:
    assert isinstance(stream, DeviceStream)
    assert stream.device == "trap:0"
    return pa.Table.from_batches([batch.to_arrow() for batch in stream], stream.schema)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_stream_lands_on_the_device(server: Server, compression: str) -> None:
    memory = TrapMemory()
    uri = server.uri("data")
    with splitarrow.open(uri, batch_rows=8_000, compression=compression, memory=memory) as stream:
        assert collect(stream) == TABLE
        assert stream.is_exhausted
    assert memory.used_bytes == 0


@pytest.mark.parametrize("transport", ["auto", "flight", "http"])
def test_a_dataset_lands_on_the_device(server: Server, transport: str) -> None:
    assert server.control_uri is not None
    memory = TrapMemory()
    with (
        splitarrow.connect(server.control_uri) as client,
        client.read("data", transport=transport, memory=memory, limit=30_000) as stream,
    ):
        assert collect(stream) == TABLE[:30_000]
    for uri in (server.control_uri, server.http_uri):
        with splitarrow.open(f"{uri}/data", memory=memory) as stream:
            assert collect(stream) == TABLE


def test_an_asynchronous_stream_lands_on_the_device(server: Server) -> None:
    memory = TrapMemory()

    async def read(stream: Any) -> pa.Table:
        assert isinstance(stream, AsyncDeviceStream)
        async with stream:
            batches = [batch.to_arrow() async for batch in stream]
            return pa.Table.from_batches(batches, stream.schema)

    async def run() -> None:
        assert server.control_uri is not None
        assert await read(splitarrow.aio.open(server.uri("data"), memory=memory)) == TABLE
        for address in (server.control_uri, server.http_uri):
            assert await read(splitarrow.aio.open(f"{address}/data", memory=memory)) == TABLE
        async with splitarrow.aio.connect(server.control_uri) as client:
            assert await read(client.read("data", memory=memory)) == TABLE

    anyio.run(run)


def test_batches_outlive_their_stream() -> None:
    memory = TrapMemory()
    with (
        splitarrow.serve({"data": TABLE}, listen="tcp://127.0.0.1:0") as server,
        splitarrow.open(server.uri("data"), batch_rows=10_000, memory=memory) as stream,
    ):
        batch: Any = next(stream)
    assert batch.to_arrow() == TABLE.combine_chunks().to_batches()[0][:10_000]
    assert memory.used_bytes
    del batch
    assert memory.used_bytes == 0


def test_a_spent_budget_is_named() -> None:
    memory = TrapMemory(budget="1MiB")
    held: list[Any] = []
    with (
        splitarrow.serve({"data": TABLE}, listen="tcp://127.0.0.1:0") as server,
        splitarrow.open(server.uri("data"), batch_rows=10_000, memory=memory) as stream,
        pytest.raises(errors.LimitError, match="the budget of 1MiB of the memory of trap"),
    ):
        held.extend(stream)
    assert held


@pytest.mark.parametrize("memory", ["gpu", "cuda:x", "", 3, object()])
def test_other_arguments_are_refused(memory: object) -> None:
    with pytest.raises(errors.UsageError, match="expected 'pinned', 'cuda:0', CudaMemory, or an"):
        splitarrow.open("tcp://127.0.0.1:1/data", memory=memory)
