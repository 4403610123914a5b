"""Datasets in the memory of a device, which the processor cannot touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.arrow_data import make_arrays_of_all_types
from helpers.catalog import read_source
from helpers.trap_device import HostDevice, TrapDevice, TrapMemory
from helpers.trap_library import TrapLibrary
from splitarrow.errors import ExhaustedError, UsageError
from splitarrow.memory import DeviceBatch, device_bodies, imports
from splitarrow.memory.pool import BlockPool, wrap_block
from splitarrow.protocol.memory import DeviceSpan
from splitarrow.protocol.request import Request
from splitarrow.server.bodies.remote import SharedBodies, open_shared
from splitarrow.server.catalog import device_table
from splitarrow.server.catalog.catalog import open_dataset
from splitarrow.server.catalog.dataset import Encoding
from splitarrow.transport.ucx import channel, sending
from splitarrow.transport.ucx import memory as device_memory
from splitarrow.transport.ucx.ffi import ucp

ARRAYS = make_arrays_of_all_types()
TRAP = TrapDevice.type_code
ROWS = 5000
FIXED: Any = {
    "n": pa.array(range(ROWS), pa.int64()),
    "f": pa.array([None if n % 3 == 0 else n / 2 for n in range(ROWS)], pa.float32()),
    "b": pa.array([n % 5 == 0 for n in range(ROWS)]),
    "m": pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.int16(), 2)),
}
NUMBERS = pa.record_batch(FIXED)
TEXTS: Any = {
    "s": [None if n % 7 == 0 else str(n) for n in range(ROWS)],
    "l": pa.array([list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32())),
    "d": pa.array([str(n % 5) for n in range(ROWS)]).dictionary_encode(),
    "t": pa.array([{"a": n, "b": [str(n)] * (n % 3)} for n in range(ROWS)]),
}
REFUSED = ("view", "union", "run_end")
MIXED = pa.record_batch(FIXED | TEXTS)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> TrapMemory:
    memory = TrapMemory()
    monkeypatch.setitem(imports.DEVICES, TRAP, lambda _: memory.device)
    monkeypatch.setattr(device_table, "BATCH_BYTES", 32 << 10)
    return memory


def move(batch: pa.RecordBatch, memory: TrapMemory) -> DeviceBatch:
    return memory.open_copier().copy(batch)


def read_all(source: Any, scheme: str = "tcp://127.0.0.1:0", **options: Any) -> pa.Table:
    with (
        splitarrow.serve({"data": source}, listen=scheme) as server,
        splitarrow.open(server.uri("data"), **options) as stream,
    ):
        return stream.read_all()


@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:0", "shm://", "ucx://127.0.0.1:0"])
def test_data_of_a_device_is_served_by_staging(memory: TrapMemory, scheme: str) -> None:
    batch = move(MIXED, memory)
    table = read_all(batch, scheme)
    table.validate(full=True)
    assert table.combine_chunks().to_batches() == [MIXED]
    assert table["n"].num_chunks > 5


def test_requests_select_rows_and_columns(memory: TrapMemory) -> None:
    sent = MIXED.select(["n", "f", "b", "s", "l"])  # a filter does not know all types
    batch = move(sent, memory)
    with (
        splitarrow.serve({"data": batch}, control="grpc://127.0.0.1:0") as server,
        splitarrow.connect(server.control_uri or "") as client,
    ):
        assert client.info("data").rows == ROWS
        for transport in ("auto", "flight"):
            options: Any = {"columns": ["s", "n"], "filter": "n >= 100", "limit": 50}
            table = client.read("data", transport=transport, **options).read_all()
            assert table == pa.table(sent.select(["s", "n"]))[100:150]
        table = client.read("data", batches=(1, 2), compression="lz4").read_all()
        step = table.num_rows
        assert table == pa.table(sent)[step : 2 * step]
        assert sum(client.count_rows("data")[0]) == ROWS
        assert sum(client.count_rows("data", filter="n < 10")[0]) == 10


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_is_served_or_refused(memory: TrapMemory, name: str) -> None:
    batch = pa.record_batch({"c": ARRAYS[name]})
    moved = move(batch, memory)
    if any(word in name for word in REFUSED):
        with pytest.raises(UsageError, match="cannot be served from a device"):
            open_dataset(moved)
        return
    dataset = open_dataset(moved)
    assert dataset.device_type == TRAP
    assert read_all(move(batch, memory)).to_batches() == [batch]


def test_batches_of_fixed_width_are_sent_without_being_read(
    memory: TrapMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_bodies, "PROTECTION", 0)
    dataset = open_dataset([move(NUMBERS, memory), move(NUMBERS, memory)])
    reads = memory.device.reads
    with_devices = Encoding(devices=frozenset({TRAP}))
    groups = list(dataset.open(Request("data"), with_devices))
    parts = [part for (message,) in groups for part in message.body or ()]
    assert memory.device.reads == reads
    assert memory.device.activations == len(groups) - 1
    assert len(parts) > 30
    for part in parts:
        assert isinstance(part, DeviceSpan)
        memory.device.read(part.address, part.nbytes)
    for (message,) in groups[1:]:
        assert sum(part.nbytes for part in message.body or ()) == message.body_length
        assert message.body_length % 8 == 0


@pytest.mark.parametrize(
    "request_",
    [
        Request("data", offset=5),
        Request("data", limit=5),
        Request("data", batch_rows=7),
        Request("data", compression="zstd"),
    ],
)
def test_what_needs_the_values_is_staged(memory: TrapMemory, request_: Request) -> None:
    dataset = open_dataset(move(NUMBERS, memory))
    source = dataset.open(request_, Encoding(devices=frozenset({TRAP})))
    assert source.blocking
    parts = [part for group in source for message in group for part in message.body or ()]
    assert not any(isinstance(part, DeviceSpan) for part in parts)
    source.close()


def test_fields_of_structs_are_staged(memory: TrapMemory) -> None:
    structs = pa.array([None if n % 3 == 0 else {"x": n, "y": n / 2} for n in range(ROWS)])
    dataset = open_dataset(move(pa.record_batch({"p": structs, "n": FIXED["n"]}), memory))
    source = dataset.open(
        Request("data", columns=("n", "p.y")), Encoding(devices=frozenset({TRAP}))
    )
    table = read_source(source).table
    assert table["p.y"].to_pylist() == [None if n % 3 == 0 else n / 2 for n in range(ROWS)]
    assert table["n"].to_pylist() == list(range(ROWS))


@pytest.fixture(params=["trap", "readable"])
def sending_memory(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, memory: TrapMemory
) -> Iterator[TrapMemory]:
    """Memory that UCX can send from: with a stub that copies for the device, or by itself."""
    if request.param == "trap":
        monkeypatch.setitem(device_memory.MEMORY_TYPES, TRAP, TrapLibrary.memory_type)
        types = frozenset({TRAP})
        monkeypatch.setattr(channel, "list_direct_types", lambda _: types)
        monkeypatch.setattr(sending, "ucp", TrapLibrary(memory.device, ucp))
        yield memory
        return

    class Readable(HostDevice):
        type_code = TRAP

    readable = TrapMemory(device=Readable())
    monkeypatch.setitem(imports.DEVICES, TRAP, lambda _: readable.device)
    monkeypatch.setitem(device_memory.MEMORY_TYPES, TRAP, 0)
    monkeypatch.setattr(channel, "list_direct_types", lambda _: frozenset({TRAP}))
    yield readable


@pytest.mark.parametrize("body", ["packed", None])
def test_ucx_sends_from_the_device(sending_memory: TrapMemory, body: str | None) -> None:
    batch = move(NUMBERS, sending_memory)
    with splitarrow.serve({"data": batch}, listen="ucx://127.0.0.1:0") as server:
        reads = sending_memory.device.reads
        uri = server.uri("data") + (f"&body={body}" if body else "")
        with splitarrow.open(uri) as stream:
            table = stream.read_all()
        assert sending_memory.device.reads == reads
        with splitarrow.open(uri, columns=["m", "n"], limit=10) as stream:
            assert stream.read_all() == pa.table(NUMBERS.select(["m", "n"]))[:10]
        assert sending_memory.device.reads > reads
    table.validate(full=True)
    assert table == pa.table(NUMBERS)


@pytest.mark.parametrize("devices", [frozenset({TRAP}), frozenset[int]()])
def test_a_source_outlives_its_dataset(memory: TrapMemory, devices: frozenset[int]) -> None:
    dataset = open_dataset(move(NUMBERS, memory))
    source = dataset.open(Request("data"), Encoding(devices=devices))
    dataset.close()
    assert sum(message.rows for group in source for message in group) == ROWS


@pytest.mark.parametrize("devices", [frozenset({TRAP}), frozenset[int]()])
def test_a_batch_without_rows_is_served(memory: TrapMemory, devices: frozenset[int]) -> None:
    dataset = open_dataset(move(NUMBERS.slice(0, 0), memory))
    messages = [m for g in dataset.open(Request("data"), Encoding(devices=devices)) for m in g]
    assert [message.rows for message in messages] == [0, 0]
    assert read_all(move(MIXED.slice(0, 0), memory)) == pa.table(MIXED.slice(0, 0))


def test_arrays_are_columns(memory: TrapMemory) -> None:
    batch = move(NUMBERS, memory)
    assert read_all(batch["n"]).to_pydict() == {"values": list(range(ROWS))}
    moved: Any = {"a": batch["n"], "b": move(NUMBERS.select(["n"]), memory)["n"]}
    table = read_all(moved)
    assert table.column_names == ["a", "b"]
    assert table["a"].to_pylist() == table["b"].to_pylist() == list(range(ROWS))


class CudaArray:
    """An array as Numba describes it."""

    def __init__(self, column: Any, **changes: Any) -> None:
        data = column._array.children[0].buffers[1]
        self._column = column
        self.__cuda_array_interface__ = {
            "shape": (ROWS, 2),
            "typestr": "<i2",
            "data": (data.address, False),
            "strides": None,
            "version": 3,
        } | changes


def test_arrays_of_more_dimensions_are_lists(
    memory: TrapMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "find_pointer_device", lambda _: (TRAP, 0))
    column = move(NUMBERS, memory)["m"]
    for changes in ({}, {"strides": (4, 2)}):
        table = read_all(CudaArray(column, **changes))
        assert table["values"].to_pylist() == FIXED["m"].to_pylist()
    for changes, reason in (
        ({"strides": (8, 2)}, "is strided"),
        ({"mask": object()}, "has a mask"),
        ({"typestr": "|b1"}, "expected integers or floating-point numbers"),
        ({"typestr": ">i2"}, "expected integers or floating-point numbers"),
        ({"shape": ()}, "in at least one dimension"),
    ):
        with pytest.raises(UsageError, match=reason):
            open_dataset(CudaArray(column, **changes))


def test_arrays_of_different_lengths_are_refused(memory: TrapMemory) -> None:
    batch, short = move(NUMBERS, memory), move(NUMBERS.slice(0, 8), memory)
    with pytest.raises(UsageError, match=rf"they have \[8, {ROWS}\] rows on \['trap:0'\]"):
        open_dataset({"a": batch["n"], "b": short["n"]})
    with pytest.raises(UsageError, match="record batch 1 differs"):
        open_dataset([batch, move(NUMBERS.select(["n"]), memory)])


def test_a_device_that_is_not_known_is_named() -> None:
    with pytest.raises(UsageError, match=r"memory of the device type 12 .* cannot be served"):
        open_dataset(move(NUMBERS, TrapMemory()))


def test_offsets_of_an_exported_array_are_applied(memory: TrapMemory) -> None:
    part = imports.import_device_data(move(MIXED, memory))
    assert part is not None
    columns = [column.slice(64, 100) for column in part[0].columns]
    dataset = device_table.DeviceTable(
        [replace(part[0], columns=columns, num_rows=100)], TrapMemory().staging
    )
    source = dataset.open(Request("data"), Encoding())
    assert sum(message.rows for group in source for message in group) == 100
    source.close()


def test_negative_offsets_are_refused(memory: TrapMemory) -> None:
    batch = move(pa.record_batch({"s": ["a", "bc"]}), memory)
    memory.device.synchronize()
    offsets = batch.layouts[0].buffers[1]
    assert offsets is not None
    memory.device.write(offsets.address + 8, (-1).to_bytes(4, "little", signed=True))
    with pytest.raises(UsageError, match="an array on a device has the offset -1"):
        open_dataset(batch)


def test_a_spent_budget_of_the_staging_memory_is_named(
    memory: TrapMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        is_host = True
        pool = BlockPool(memory.device.allocate, memory.device.free, 128 << 10, "small memory")

        def allocate(self, nbytes: int) -> pa.Buffer:
            return wrap_block(self.pool.acquire(nbytes), nbytes)

    part = imports.import_device_data(move(pa.record_batch({"n": range(100_000)}), memory))
    assert part is not None
    monkeypatch.setattr(device_table, "BATCH_BYTES", 1 << 20)
    with pytest.raises(ExhaustedError, match="the budget of 128KiB of small memory is spent"):
        list(device_table.DeviceTable(part, Small()).open(Request("data"), Encoding()))


def test_host_arrays_are_no_datasets() -> None:
    page_locked = SimpleNamespace(__dlpack_device__=lambda: (3, 0))
    for source in ({"a": 1}, {"a": page_locked}):
        with pytest.raises(UsageError, match="cannot serve an object of the type dict"):
            open_dataset(source)


def test_the_buffers_of_a_message_are_found_in_the_memory_of_the_device(
    memory: TrapMemory,
) -> None:
    sent = pa.record_batch({"a": range(64), "b": range(64, 128), "c": range(128, 192)})
    table = open_dataset(move(sent, memory))
    export: Any = SimpleNamespace(locate=lambda address: address)
    announcement: Any = None
    shared = SharedBodies(export, announcement)
    source = table.open(Request("d"), Encoding(devices=frozenset({TRAP})))
    with closing(source):
        (message,) = [each for group in source for each in group if each.body is not None]
        spans = [span for span in shared.locate(message) if span[1]]
        assert [memory.device.read(*span) for span in spans] == [
            column.to_numpy().tobytes() for column in sent.columns
        ]


def test_rows_that_are_filtered_on_the_host_are_not_shared(memory: TrapMemory) -> None:
    table: Any = open_dataset(move(NUMBERS, memory))
    connection: Any = SimpleNamespace(channel=None, encoding=Encoding())
    assert open_shared(table, Request("d", limit=3), connection) is None
