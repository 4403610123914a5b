"""Data of a server on this host that readers open in the memory of a device."""

from __future__ import annotations

import gc
from dataclasses import replace
from decimal import Decimal
from typing import Any

import anyio
import pyarrow as pa
import pytest

import splitarrow
from helpers.trap_device import TrapDevice, TrapMemory
from helpers.waiting import wait_until
from splitarrow import errors
from splitarrow.memory import DeviceBatch, device_bodies, imports
from splitarrow.memory.interfaces import DLManagedTensor, find_pointer
from splitarrow.protocol.regions import DeviceHandles
from splitarrow.server.catalog import device_table
from splitarrow.server.embedded import Server
from splitarrow.transport import shm
from splitarrow.transport.shm import pack_device_announcement, parse_device_announcement

ROWS = 5000
FIXED: dict[str, Any] = {
    "n": pa.array(range(ROWS), pa.int64()),
    "f": pa.array([None if n % 3 == 0 else n / 2 for n in range(ROWS)], pa.float32()),
    "b": pa.array([n % 5 == 0 for n in range(ROWS)]),
    "m": pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.int16(), 2)),
}
NUMBERS = pa.record_batch(FIXED)
MONEY = pa.record_batch({"d": pa.array([Decimal(n) for n in range(ROWS)], pa.decimal128(9))})
TEXTS = pa.record_batch({"n": FIXED["n"], "s": [str(n) for n in range(ROWS)]})
HANDLE = bytes(range(16))


class Setup:
    """A server's device and a reader's, whose processes are the same here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_bodies, "PROTECTION", 0)
        monkeypatch.setattr(device_table, "BATCH_BYTES", 32 << 10)
        self.source = TrapMemory()
        monkeypatch.setitem(imports.DEVICES, TrapDevice.type_code, lambda _: self.source.device)
        self.memory = TrapMemory()

    def serve(self, *batches: pa.RecordBatch, **settings: Any) -> Server:
        copier = self.source.open_copier()
        data = [copier.copy(each) for each in batches]
        return splitarrow.serve({"data": data}, listen="shm://", **settings)

    def read(self, server: Server, **options: Any) -> pa.Table:
        with splitarrow.open(server.uri("data"), memory=self.memory, **options) as stream:
            batches: list[Any] = list(stream)
            assert all(isinstance(batch, DeviceBatch) for batch in batches)
            return pa.Table.from_batches([each.to_arrow() for each in batches], stream.schema)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(monkeypatch)


@pytest.mark.parametrize("validate", [None, "full"])
def test_a_reader_opens_the_memory_of_the_server(setup: Setup, validate: str | None) -> None:
    device = setup.memory.device
    with setup.serve(NUMBERS, NUMBERS) as server:
        reads = setup.source.device.reads
        table = setup.read(server, validate=validate, columns=["m", "n", "f"])
        assert setup.source.device.reads == reads
    expected = NUMBERS.select(["m", "n", "f"])
    assert table == pa.Table.from_batches([expected, expected])
    assert device.opened == 2  # an allocation for each batch
    assert device.queued == 0
    assert setup.memory.used_bytes == 0
    wait_until(lambda: device.closed == 2)


def test_leases_end_with_the_last_tensor(setup: Setup) -> None:
    device = setup.memory.device
    with setup.serve(NUMBERS) as server:
        with splitarrow.open(server.uri("data"), memory=setup.memory) as stream:
            batches: list[Any] = list(stream)
        buffers = 5  # in a batch
        assert server.stats()["leases"] == buffers * len(batches)
        first, column = batches[0], batches[-1]["n"]
        capsule = column.__dlpack__(stream=7, max_version=(1, 0))
        if "dltensor_versioned" in repr(capsule):  # pyarrow before 26 makes others
            managed = find_pointer(capsule, b"dltensor_versioned")
            assert DLManagedTensor.from_address(managed).flags & 1  # read-only
        del batches
        wait_until(lambda: server.stats()["leases"] == buffers * 2)
        del column, first
        wait_until(lambda: server.stats()["leases"] == buffers)
        assert not device.closed
        del capsule
        wait_until(lambda: server.stats()["leases"] == 0)
        assert device.recorded == [7]  # the work of the tensor's stream was waited for
        wait_until(lambda: device.closed == device.opened)


def test_a_handle_is_opened_once(setup: Setup) -> None:
    device = setup.memory.device
    with setup.serve(NUMBERS) as server:
        uri = server.uri("data")
        with splitarrow.open(uri, memory=setup.memory) as one:
            first = next(one)
            with splitarrow.open(uri, memory=setup.memory) as two:
                second = next(two)
            assert device.opened == 1
            del first, second
    gc.collect()
    wait_until(lambda: device.closed == 1)


def test_a_dataset_of_a_control_plane_does_the_same(setup: Setup) -> None:
    copier = setup.source.open_copier()
    options: Any = {"listen": ["tcp://127.0.0.1:0", "shm://"], "control": "grpc://127.0.0.1:0"}
    with (
        splitarrow.serve({"data": copier.copy(NUMBERS)}, **options) as server,
        splitarrow.connect(str(server.control_uri)) as client,
        client.read("data", memory=setup.memory) as stream,
    ):
        batches: list[Any] = list(stream)
        assert stream.transport == "shm"
    assert pa.Table.from_batches([each.to_arrow() for each in batches]) == pa.table(NUMBERS)
    assert setup.memory.device.opened == 1


def test_an_asynchronous_stream_does_the_same(setup: Setup) -> None:
    async def run(uri: str) -> None:
        async with splitarrow.aio.open(uri, memory=setup.memory) as stream:
            batches: list[Any] = [batch async for batch in stream]
        assert pa.Table.from_batches([each.to_arrow() for each in batches]) == pa.table(NUMBERS)

    with setup.serve(NUMBERS) as server:
        anyio.run(run, server.uri("data"))
    assert setup.memory.device.opened == 1


def test_values_that_have_to_be_checked_are_copied_to_the_host(setup: Setup) -> None:
    with setup.serve(MONEY) as server:
        assert setup.read(server, validate="full") == pa.table(MONEY)
        assert setup.memory.device.opened
        assert setup.memory.device.queued


@pytest.mark.parametrize("options", [{"limit": 10}, {"batch_rows": 100}, {"compression": "lz4"}])
def test_what_needs_the_values_is_staged(setup: Setup, options: dict[str, Any]) -> None:
    with setup.serve(NUMBERS) as server:
        table = setup.read(server, **options)
    assert table == pa.table(NUMBERS)[: options.get("limit", ROWS)]
    assert not setup.memory.device.opened


def test_numbers_at_odd_addresses_are_copied(setup: Setup) -> None:
    whole = setup.source.open_copier().copy(NUMBERS.select(["n"]))
    whole.wait()
    (column,) = whole.layouts
    assert column.buffers[1] is not None
    shifted = replace(column, length=64, buffers=(None, column.buffers[1].slice(3, 64 * 8)))
    odd = DeviceBatch(whole.schema, [shifted], 64, whole._residence)
    assert not odd.is_aligned
    with pytest.raises(errors.UsageError, match="does not begin at a multiple of the size of int"):
        odd["n"].__dlpack__()
    with splitarrow.serve({"data": odd}, listen="shm://") as server:
        with splitarrow.open(server.uri("data"), memory=setup.memory) as stream:
            (batch,) = list(stream)
        assert setup.memory.device.opened
        assert setup.memory.device.queued  # a copy from the host
        assert isinstance(batch, DeviceBatch)
        assert batch.is_aligned
        assert batch.to_arrow() == odd.to_arrow()


def test_texts_are_staged(setup: Setup) -> None:
    with setup.serve(TEXTS) as server:
        assert setup.read(server) == pa.table(TEXTS)
    assert not setup.memory.device.opened


def test_readers_of_host_memory_get_copies(setup: Setup) -> None:
    with setup.serve(NUMBERS) as server, splitarrow.open(server.uri("data")) as stream:
        assert stream.read_all() == pa.table(NUMBERS)


def test_memory_that_cannot_be_exported_is_staged(setup: Setup) -> None:
    setup.source.device.refusal = "it belongs to a pool"
    with setup.serve(NUMBERS) as server:
        assert setup.read(server) == pa.table(NUMBERS)
    assert not setup.memory.device.opened


@pytest.mark.parametrize("reason", ["handle", "device"])
def test_memory_that_cannot_be_opened_is_staged(
    setup: Setup, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = setup.memory.device
    if reason == "device":
        monkeypatch.setattr(device, "uuid", b"another device..", raising=False)
    else:

        def refuse(handle: bytes, nbytes: int) -> int:
            raise errors.SplitArrowError("invalid handle")

        monkeypatch.setattr(device, "open_allocation", refuse)
    with setup.serve(NUMBERS) as server:
        assert setup.read(server) == pa.table(NUMBERS)

        async def run() -> None:
            async with splitarrow.aio.open(server.uri("data"), memory=setup.memory) as stream:
                assert len([batch async for batch in stream])

        anyio.run(run)
    assert not device.opened
    assert device.queued


def test_other_users_do_not_get_the_memory(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "get_peer_credentials", lambda sock: (1, 4711))
    with setup.serve(NUMBERS, shm_users=[4711]) as server:
        assert setup.read(server) == pa.table(NUMBERS)
    assert not setup.memory.device.opened


def test_a_device_that_cannot_open_its_own_exports_requests_none(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup.memory.device, "opens_own_exports", False, raising=False)
    with setup.serve(NUMBERS) as server:
        assert setup.read(server) == pa.table(NUMBERS)
    assert not setup.memory.device.opened


def handles(count: int = 2) -> DeviceHandles:
    return DeviceHandles(2, bytes(16), tuple((n.to_bytes(64), 1000 + n) for n in range(count)))


def test_an_announcement_round_trips() -> None:
    for count in (1, 2, 4096):
        message = pack_device_announcement(HANDLE, handles(count))
        assert parse_device_announcement(message, HANDLE) == handles(count)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:30],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:16] + (5).to_bytes(8, "little") + data[24:],
        lambda data: data[:28] + (0).to_bytes(4, "little") + data[32:48],
        lambda data: data[:28] + (4097).to_bytes(4, "little") + data[32:48] + bytes(72 * 4097),
        lambda data: data[:-8] + bytes(8),
    ],
    ids=["short", "cut", "long", "size", "none", "many", "empty"],
)
def test_malformed_announcements_are_refused(change: Any) -> None:
    message = change(pack_device_announcement(HANDLE, handles()))
    with pytest.raises(errors.ProtocolError, match="announced"):
        parse_device_announcement(message, HANDLE)


def test_the_announcement_of_another_server_is_refused() -> None:
    message = pack_device_announcement(bytes(16), handles())
    with pytest.raises(errors.NotAPeerError):
        parse_device_announcement(message, HANDLE)
