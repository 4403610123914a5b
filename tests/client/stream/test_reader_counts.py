"""What a stream counts while it is read."""

from __future__ import annotations

import pyarrow as pa
import pytest

import splitarrow

BATCHES = [pa.record_batch({"n": [number, number + 1, number + 2]}) for number in range(300)]


@pytest.mark.parametrize("scheme", ["tcp", "shm", "inproc"])
async def test_rows_and_bytes_are_counted(scheme: str) -> None:
    """Small batches form runs over tcp, and are decoded many at a time."""
    table = pa.Table.from_batches(BATCHES)
    listen = ["tcp://127.0.0.1:0", "shm://", "inproc://"]
    with splitarrow.serve({"d": table}, listen=listen) as server:
        with splitarrow.open(server.uri("d", scheme)) as stream:
            assert stream.rows_received == 0
            assert next(stream) == BATCHES[0]
            assert 3 <= stream.rows_received <= table.num_rows
            assert stream.rows_received % 3 == 0
            assert sum(1 for _ in stream) == len(BATCHES) - 1
            assert stream.rows_received == table.num_rows
            assert stream.bytes_received > table.nbytes
        async with splitarrow.aio.open(server.uri("d", scheme)) as other:
            assert [batch async for batch in other] == BATCHES
            assert other.rows_received == table.num_rows
