"""Bodies that UCX receives into the memory of a device, which the processor cannot touch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

import splitarrow
from helpers.trap_device import TrapDevice, TrapMemory
from helpers.trap_library import TrapLibrary
from splitarrow import errors
from splitarrow.memory import DeviceBatch, device_bodies
from splitarrow.server.embedded import Server
from splitarrow.transport.ucx import memory as device_memory
from splitarrow.transport.ucx import receiving, transport
from splitarrow.transport.ucx.ffi import ucp

ROWS, BATCH_ROWS = 200_000, 20_000
NUMBERS = np.arange(ROWS)
PAIRS = np.stack([NUMBERS % 7, NUMBERS % 9], axis=1)
COLUMNS: dict[str, Any] = {
    "n": pa.array(NUMBERS),
    "f": pa.array(NUMBERS / 2, pa.float32(), mask=NUMBERS % 3 == 0),
    "b": pa.array(NUMBERS % 5 == 0),
    "m": pa.FixedSizeListArray.from_arrays(pa.array(PAIRS.ravel(), pa.int16()), 2),
    "t": pa.array(NUMBERS, pa.timestamp("us")),
}
FIXED = pa.table(COLUMNS)
TEXTS = pa.table({"n": COLUMNS["n"], "s": pa.array(NUMBERS).cast(pa.string())})
TIMES = pa.table({"n": COLUMNS["n"], "t": pa.array(NUMBERS, pa.int32()).cast(pa.time32("ms"))})
MONEY = pa.table({"d": pa.array(NUMBERS).cast(pa.decimal128(19)).cast(pa.decimal128(9))})
SETS = {"fixed": FIXED, "texts": TEXTS, "times": TIMES, "money": MONEY}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    listen = "ucx://127.0.0.1:0"
    with splitarrow.serve(dict(SETS), listen=listen, control="grpc://127.0.0.1:0") as running:
        yield running


@pytest.fixture
def memory() -> TrapMemory:
    return TrapMemory()


@pytest.fixture
def library(memory: TrapMemory, monkeypatch: pytest.MonkeyPatch) -> TrapLibrary:
    """UCX as it works where it knows the device, so that it receives for it."""
    code = TrapDevice.type_code
    library = TrapLibrary(memory.device, ucp)
    monkeypatch.setitem(device_memory.MEMORY_TYPES, code, library.memory_type)
    monkeypatch.setattr(transport, "list_direct_types", lambda _: frozenset({code}))
    monkeypatch.setattr(receiving, "ucp", library)
    monkeypatch.setattr(device_bodies, "PROTECTION", 0)
    return library


def collect(stream: Any) -> pa.Table:
    batches = list(stream)
    assert all(isinstance(batch, DeviceBatch) for batch in batches)
    return pa.Table.from_batches([batch.to_arrow() for batch in batches], stream.schema)


def read(server: Server, name: str, memory: TrapMemory, **options: Any) -> pa.Table:
    options = {"batch_rows": BATCH_ROWS, **options}
    with splitarrow.open(server.uri(name), memory=memory, **options) as stream:
        return collect(stream)


@pytest.mark.parametrize("validate", ["strict", "full", "cheap", "off"])
def test_bodies_go_straight_to_the_device(
    server: Server, memory: TrapMemory, library: TrapLibrary, validate: str
) -> None:
    assert read(server, "fixed", memory, validate=validate) == FIXED
    # The first bodies may arrive with the schema, and then reach the device by a copy.
    assert library.received
    assert memory.used_bytes == 0


def test_values_are_not_read_where_nothing_has_to_be_checked(
    server: Server, memory: TrapMemory, library: TrapLibrary
) -> None:
    with splitarrow.open(
        server.uri("fixed"), memory=memory, batch_rows=BATCH_ROWS, columns=["n", "b", "m"]
    ) as stream:
        batches = list(stream)
    assert library.received
    assert memory.device.reads == 0
    assert sum(batch.num_rows for batch in batches) == ROWS


@pytest.mark.parametrize(
    ("name", "validate", "is_direct"),
    [
        ("texts", "off", False),
        ("times", "full", False),
        ("times", "strict", False),
        ("times", "cheap", True),
        ("money", "full", False),
        ("money", "off", True),
    ],
)
def test_values_that_have_to_be_checked_come_through_the_host(
    server: Server,
    memory: TrapMemory,
    library: TrapLibrary,
    name: str,
    validate: str,
    is_direct: bool,
) -> None:
    assert read(server, name, memory, validate=validate) == SETS[name]
    assert bool(library.received) is is_direct


def test_compressed_bodies_are_fetched(
    server: Server, memory: TrapMemory, library: TrapLibrary
) -> None:
    uri = server.uri("fixed")
    with splitarrow.open(uri, memory=memory, batch_rows=BATCH_ROWS, compression="lz4") as stream:
        batches: list[Any] = list(stream)
    assert memory.device.reads == len(library.received)
    table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
    assert table == FIXED


def test_small_bodies_come_through_the_host(
    server: Server, memory: TrapMemory, library: TrapLibrary
) -> None:
    assert read(server, "fixed", memory, batch_rows=500, limit=20_000) == FIXED[:20_000]
    assert not library.received


def test_a_dataset_and_an_asynchronous_stream_do_the_same(
    server: Server, memory: TrapMemory, library: TrapLibrary
) -> None:
    assert server.control_uri is not None
    options: Any = {"memory": memory, "batch_rows": BATCH_ROWS, "prefetch_bytes": 1 << 20}
    with (
        splitarrow.connect(server.control_uri) as client,
        client.read("fixed", limit=150_001, **options) as stream,
    ):
        assert collect(stream) == FIXED[:150_001]
    received = len(library.received)
    assert received > 3

    async def run() -> None:
        async with splitarrow.aio.open(server.uri("fixed"), **options) as stream:
            batches: list[Any] = [batch async for batch in stream]
            assert pa.Table.from_batches([each.to_arrow() for each in batches]) == FIXED

    anyio.run(run)
    assert len(library.received) > received


def test_remote_bodies_that_a_uri_requires_come_through_the_host(
    server: Server, memory: TrapMemory, library: TrapLibrary
) -> None:
    uri = server.uri("fixed") + "&body=remote"
    with splitarrow.open(uri, memory=memory, batch_rows=BATCH_ROWS) as stream:
        assert collect(stream) == FIXED
    assert not library.received


@pytest.mark.usefixtures("library")
def test_a_spent_budget_is_named(server: Server, memory: TrapMemory) -> None:
    memory = TrapMemory(budget="1MiB", device=memory.device)
    with (
        splitarrow.open(server.uri("fixed"), memory=memory, batch_rows=BATCH_ROWS) as stream,
        pytest.raises(errors.LimitError, match="the budget of 1MiB of the memory of trap:0"),
    ):
        list(stream)


def test_memory_that_is_used_again_is_waited_for(memory: TrapMemory) -> None:
    copier = memory.open_copier()
    batch: Any = copier.copy(pa.record_batch({"n": range(100_000)}))
    device = memory.device
    allocator = memory.open_allocator().device
    assert device.copied < device.queued
    del batch
    body = allocator.allocate(100_000 * 8)  # the same memory, whose copy has not run yet
    assert device.copied == device.queued
    assert body.nbytes == 800_000
