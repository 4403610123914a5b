"""The allocator of a reader decides where bodies land."""

from __future__ import annotations

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.client.stream.blocking import Stream
from splitarrow.client.stream.options import ReadOptions
from splitarrow.client.stream.uris import resolve_uris

TABLE = pa.table({"n": pa.array(range(100_000), pa.int64())})


class RecordingAllocator:
    """Allocates host memory, and remembers the buffers."""

    is_host = True

    def __init__(self) -> None:
        self.buffers: list[pa.Buffer] = []

    def allocate(self, nbytes: int) -> pa.Buffer:
        self.buffers.append(pa.allocate_buffer(nbytes))
        return self.buffers[-1]

    def contains(self, buffer: pa.Buffer) -> bool:
        return any(
            each.address <= buffer.address
            and buffer.address + buffer.size <= each.address + each.size
            for each in self.buffers
        )


@pytest.mark.parametrize("scheme", ["tcp://127.0.0.1:0", "ucx://127.0.0.1:0"])
def test_batches_are_views_of_the_allocator_s_memory(scheme: str) -> None:
    allocator = RecordingAllocator()
    with splitarrow.serve({"data": TABLE}, listen=[scheme]) as server:
        uris = resolve_uris(server.uri("data"), None)
        with Stream(uris, ReadOptions(allocator=allocator)) as stream:
            batches = list(stream)
    assert pa.Table.from_batches(batches) == TABLE
    for batch in batches:
        data = batch.column(0).buffers()[1]
        assert data is not None
        assert allocator.contains(data)
