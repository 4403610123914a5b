"""How much readers may hold, the async client, and other libraries on mapped memory."""

from __future__ import annotations

from typing import Any

import pytest

import splitarrow
from splitarrow.errors import ExhaustedError

from .conftest import Serve
from .parts import filled, places_of, table_of, wait_until

SENT = filled(16, 1 << 20)


def test_a_reader_that_frees_goes_on(serve: Serve) -> None:
    server = serve({"data": SENT}, max_leased=3 << 20, lease_seconds=5)
    with splitarrow.open(server.uri("data")) as stream:
        assert [batch["n"][0].as_py() for batch in stream] == list(range(7000, 7016))


def test_a_reader_that_holds_everything_is_told(serve: Serve) -> None:
    server = serve({"data": SENT}, max_leased=3 << 20, lease_seconds=0.3)
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream) for _ in range(3)]
        with pytest.raises(ExhaustedError, match="max-leased") as caught:
            batches += stream
        assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert batches == SENT[:3]


async def test_async_streams(serve: Serve) -> None:
    server = serve({"data": SENT})
    async with splitarrow.aio.open(server.uri("data")) as stream:
        batches = [batch async for batch in stream]
        assert len(places_of(batches)) >= 1
    assert server.stats()["leases"] == 16
    assert batches == SENT
    batches.clear()
    wait_until(lambda: server.stats()["leases"] == 0)


def test_numpy_sees_the_memory(serve: Serve) -> None:
    server = serve({"data": SENT})
    with splitarrow.open(server.uri("data")) as stream:
        batch = next(stream)
    values: Any = batch["n"].to_numpy(zero_copy_only=True)
    assert values.__array_interface__["data"] == (batch["n"].buffers()[1].address, True)  # pyright: ignore[reportOptionalMemberAccess]


def test_pandas_sees_the_memory(serve: Serve) -> None:
    pandas: Any = pytest.importorskip("pandas")
    server = serve({"data": SENT})
    with splitarrow.open(server.uri("data")) as stream:
        batch = next(stream)
    frame: Any = table_of([batch]).to_pandas(types_mapper=pandas.ArrowDtype)
    seen = frame["n"].array._pa_array.chunk(0).buffers()[1].address
    assert seen == batch["n"].buffers()[1].address  # pyright: ignore[reportOptionalMemberAccess]
