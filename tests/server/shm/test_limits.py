"""The limit on leases, the asynchronous client, and other libraries on mapped memory."""

from __future__ import annotations

from typing import Any

import pytest

import splitarrow
from helpers.shm import find_mappings, make_filled_batches, make_table
from helpers.shm_servers import Serve
from helpers.waiting import wait_until
from splitarrow.errors import ExhaustedError

SENT = make_filled_batches(16, 1 << 20)


def test_a_reader_that_frees_can_read_more_than_the_limit(serve: Serve) -> None:
    """The stream goes on as soon as the reader frees, not only after `lease_seconds`."""
    server = serve({"data": SENT}, max_leased=3 << 20, lease_seconds=600)
    with splitarrow.open(server.uri("data"), stall_timeout=30) as stream:
        assert [batch["n"][0].as_py() for batch in stream] == list(range(7000, 7016))


def test_a_reader_that_frees_nothing_fails_at_the_limit(serve: Serve) -> None:
    server = serve({"data": SENT}, max_leased=3 << 20, lease_seconds=0.3)
    with splitarrow.open(server.uri("data")) as stream:
        batches = [next(stream) for _ in range(3)]
        with pytest.raises(ExhaustedError, match="max-leased") as caught:
            batches += stream
        assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert batches == SENT[:3]


async def test_asynchronous_streams_lease_memory(serve: Serve) -> None:
    server = serve({"data": SENT})
    async with splitarrow.aio.open(server.uri("data")) as stream:
        batches = [batch async for batch in stream]
        assert len(find_mappings(batches)) >= 1
    assert server.stats()["leases"] == 16
    assert batches == SENT
    batches.clear()
    wait_until(lambda: server.stats()["leases"] == 0)


def test_numpy_arrays_share_mapped_memory(serve: Serve) -> None:
    server = serve({"data": SENT})
    with splitarrow.open(server.uri("data")) as stream:
        batch = next(stream)
    values: Any = batch["n"].to_numpy(zero_copy_only=True)
    assert values.__array_interface__["data"] == (batch["n"].buffers()[1].address, True)  # pyright: ignore[reportOptionalMemberAccess]


def test_pandas_frames_share_mapped_memory(serve: Serve) -> None:
    pandas: Any = pytest.importorskip("pandas")
    server = serve({"data": SENT})
    with splitarrow.open(server.uri("data")) as stream:
        batch = next(stream)
    frame: Any = make_table([batch]).to_pandas(types_mapper=pandas.ArrowDtype)
    seen = frame["n"].array._pa_array.chunk(0).buffers()[1].address
    assert seen == batch["n"].buffers()[1].address  # pyright: ignore[reportOptionalMemberAccess]
