"""The asynchronous client, on asyncio and trio."""

from __future__ import annotations

import anyio
import pyarrow as pa
import pytest

from splitarrow import errors
from splitarrow.client.control_aio import connect

from .conftest import Running

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_everything(server: Running, table: pa.Table) -> None:
    async with connect(server.uri) as client:
        assert {info.name for info in await client.datasets()} >= {"table", "many"}
        info = await client.info("many")
        assert info.schema == await client.schema("many") == table.schema
        async with client.read("many") as stream:
            assert stream.schema == table.schema
            assert await stream.read_all() == table
            assert stream.transport == "tcp"
            assert stream.rows_received == table.num_rows
            assert stream.bytes_received
            assert not stream.resumed
        async with client.read("table", transport="flight", limit=10) as stream:
            assert [batch.num_rows async for batch in stream] == [10]
        stored = await client.put("async", table)
        assert stored.rows == table.num_rows
        await client.drop("async")
        assert not (await client.status())["draining"]
        with pytest.raises(errors.NotFoundError, match="'async'"):
            async with client.read("async"):
                pass
    with pytest.raises(errors.ClosedError):
        await client.datasets()


async def test_not_entered(server: Running) -> None:
    client = connect(server.uri)
    with pytest.raises(errors.ClosedError):
        await client.datasets()
    async with client:
        with pytest.raises(errors.ClosedError):
            _ = client.read("table").schema


async def test_a_cancelled_read_loses_nothing(server: Running, table: pa.Table) -> None:
    async with connect(server.uri) as client, client.read("many") as stream:
        batches: list[pa.RecordBatch] = []
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                batches.append(await anext(stream))
        batches += [batch async for batch in stream]
        assert pa.Table.from_batches(batches) == table


async def test_cancel(server: Running) -> None:
    async with connect(server.uri) as client, client.read("many") as stream:
        await anext(stream)
        stream.cancel()
        with pytest.raises(errors.ClosedError):
            await stream.read_all()


async def test_nobody_waits_for_a_connection_any_more(server: Running) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with connect(server.uri):
            pass
    assert scope.cancelled_caught
