"""A stream without room waits for its reader as long as the reader frees offsets."""

from __future__ import annotations

import asyncio
from contextlib import closing

import anyio
import pytest
from anyio.lowlevel import checkpoint

from helpers.clock import Clock
from splitarrow.protocol.lease_table import LeaseTable
from splitarrow.server.bodies.connection import ConnectionLeases
from splitarrow.server.config import load_settings
from splitarrow.server.shm.regions import SharedRegions


async def test_each_free_gives_the_reader_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    clock = Clock(loop.time())
    monkeypatch.setattr(loop, "time", clock)
    settings = load_settings(listen=("shm://",), max_leased=5, lease_seconds=10)
    table = LeaseTable()
    with closing(SharedRegions(settings)) as regions:
        leases = ConnectionLeases(table, regions, lambda: table.held_bytes)
        leases.grant([(offset, 1) for offset in range(5)], None, clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leases.wait_for_room, 5)
            for offset in range(5):
                while not regions.freed.statistics().tasks_waiting:
                    await checkpoint()
                clock.now += 6
                leases.free([offset])
