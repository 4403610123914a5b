"""Mapped memory (`shm`) that is page-locked for a device, which then copies from it directly."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import splitarrow
from helpers.files import write_file
from helpers.trap_device import TrapDevice, TrapMemory
from helpers.waiting import wait_until
from splitarrow.server.embedded import Server

TABLE = pa.table(
    {
        "n": pa.array(range(50_000), pa.int64()),
        "s": pa.array([str(n) for n in range(50_000)]),
    }
)


class Staging:
    """Host memory that the device copies from by itself."""

    is_host = True
    budget = 64 << 20

    def __init__(self, device: TrapDevice) -> None:
        self._device = device
        self.count = 0

    def allocate(self, nbytes: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(nbytes)
        self._device.locked.append((buffer.address, nbytes))
        self.count += 1
        return buffer


@pytest.fixture
def memory() -> TrapMemory:
    device = TrapDevice()
    device.has_pageable_memory = True
    return TrapMemory(device=device, staging=Staging(device))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = write_file(tmp_path_factory.mktemp("data") / "data.arrow", TABLE, batch_rows=10_000)
    with splitarrow.serve({"table": TABLE, "file": path}, listen="shm://") as running:
        yield running


def read(server: Server, name: str, memory: TrapMemory) -> pa.Table:
    with splitarrow.open(server.uri(name), memory=memory) as stream:
        batches: list[Any] = list(stream)
        return pa.Table.from_batches([batch.to_arrow() for batch in batches])


@pytest.mark.parametrize("name", ["table", "file"])
def test_the_device_copies_from_the_mapping(server: Server, memory: TrapMemory, name: str) -> None:
    assert read(server, name, memory) == TABLE
    device, staging = memory.device, memory.staging
    assert device.registrations == 1
    assert device.sources
    assert all(map(device.is_page_locked, device.sources))
    assert isinstance(staging, Staging)
    assert staging.count == 0
    wait_until(lambda: not device.registered)  # the region is not mapped any more


def test_staging_memory_takes_its_place(
    server: Server, memory: TrapMemory, caplog: pytest.LogCaptureFixture
) -> None:
    device = memory.device
    device.refusal = "the driver cannot"
    with caplog.at_level(logging.DEBUG, "splitarrow.memory"):
        for _ in range(2):
            assert read(server, "table", memory) == TABLE
    (message,) = caplog.messages
    assert message == (
        "shared memory is not page-locked for trap:0, so its batches are copied through staging "
        "memory: the driver cannot"
    )
    assert device.sources
    assert all(map(device.is_page_locked, device.sources))


def test_page_locked_memory_has_a_limit(
    server: Server, memory: TrapMemory, caplog: pytest.LogCaptureFixture
) -> None:
    small = Staging(memory.device)
    small.budget = 100_000
    memory = TrapMemory(device=memory.device, staging=small)
    with caplog.at_level(logging.DEBUG, "splitarrow.memory"):
        assert read(server, "table", memory) == TABLE
    assert "it would be more than the 100" in caplog.text
    assert small.count
    assert not memory.device.registrations


def test_copies_from_pageable_memory_do_without_staging_memory_that_is_spent(
    server: Server, memory: TrapMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nbytes: int) -> pa.Buffer:
        raise MemoryError("it is spent")

    memory.device.refusal = "the driver cannot"
    monkeypatch.setattr(memory.staging, "allocate", refuse)
    assert read(server, "table", memory) == TABLE


def test_a_file_that_changes_is_unlocked_before_its_pages_are_replaced(
    memory: TrapMemory, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "data.arrow", TABLE, batch_rows=10_000)
    device = memory.device
    with (
        splitarrow.serve({"data": path}, listen="shm://") as server,
        splitarrow.open(server.uri("data"), memory=memory) as stream,
    ):
        batch: Any = next(stream)
        assert len(device.registered) == 1
        with path.open("r+b") as file:  # waits until the file is revoked
            wait_until(lambda: not device.registered)
            file.write(bytes(100))
        assert device.copied == device.queued
        assert batch.to_arrow() == TABLE.combine_chunks().to_batches()[0][:10_000]
