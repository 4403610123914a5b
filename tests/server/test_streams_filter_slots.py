"""One principal evaluates a few filters at a time, and leaves worker threads to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import splitarrow
from splitarrow.errors import ExhaustedError
from splitarrow.protocol.request import Request
from splitarrow.server.prefetch import Prefetch
from splitarrow.server.shares import ThreadShares
from splitarrow.server.streams import ReadSlots

FILTERED, WHOLE = Request("x", filter="AAAA"), Request("x")


class Items:
    """Yields one item, once it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def __iter__(self) -> Iterator[int]:
        self.entered.set()
        assert self.released.wait(30)
        yield 1


async def test_streams_of_one_principal_wait_for_each_other() -> None:
    slots, threads = ReadSlots(1, ThreadShares(4, 4)), anyio.CapacityLimiter(4)
    first, second, other, whole = (Items() for _ in range(4))
    async with anyio.create_task_group() as tasks:

        def prefetch(items: Items, request: Request, principal: str) -> Prefetch[int]:
            slot = slots.slot_for(request, principal)
            return Prefetch(iter(items), lambda: None, tasks, threads, slot)

        with (
            prefetch(first, FILTERED, "ada") as first_items,
            prefetch(second, FILTERED, "ada") as second_items,
            prefetch(other, FILTERED, "bob"),
            prefetch(whole, WHOLE, "ada"),
        ):
            for items in (first, other, whole):
                assert await anyio.to_thread.run_sync(items.entered.wait, 30)
            assert not second.entered.is_set()
            assert threads.borrowed_tokens == 3
            first.released.set()
            assert await anext(first_items) == 1
            assert await anyio.to_thread.run_sync(second.entered.wait, 30)
            second.released.set()
            assert await anext(second_items) == 1
            other.released.set()
            whole.released.set()


@pytest.mark.parametrize("transport", ["tcp", "shm", "flight"])
def test_a_reader_learns_that_its_filter_takes_too_long(transport: str) -> None:
    table = pa.table({"n": pa.array(range(200_000), pa.int64())})
    expensive = pc.if_else(pc.field("n") > 3, "x" * 26_000, "y") == "z"
    with (
        splitarrow.serve(
            {"x": table},
            listen=["tcp://127.0.0.1:0", "shm://"],
            control="grpc://127.0.0.1:0",
            filter_seconds=0.01,
        ) as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        with pytest.raises(ExhaustedError, match=r"more than 0\.01 s of processor time") as raised:
            client.read("x", filter=expensive, transport=transport).read_all()
        assert raised.value.code == "RESOURCE_EXHAUSTED"
        cheap = client.read("x", filter=pc.field("n") < 9, transport=transport)
        assert cheap.read_all().num_rows == 9
