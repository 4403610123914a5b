"""The argument `memory` of a read decides where bodies land."""

from __future__ import annotations

import pyarrow as pa
import pytest

import splitarrow

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


@pytest.mark.parametrize("scheme", ["tcp", "ucx"])
def test_batches_are_views_of_the_allocator_s_memory(scheme: str) -> None:
    allocator = RecordingAllocator()
    with (
        splitarrow.serve({"data": TABLE}, listen=[f"{scheme}://127.0.0.1:0"]) as server,
        splitarrow.open(server.uri("data"), memory=allocator) as stream,
    ):
        batches = list(stream)
    check(batches, allocator)


@pytest.mark.parametrize("transport", ["tcp", "flight"])
def test_the_memory_of_a_dataset_is_the_allocator_s(transport: str) -> None:
    allocator = RecordingAllocator()
    control = "grpc://127.0.0.1:0"
    with (
        splitarrow.serve({"data": TABLE}, listen="tcp://127.0.0.1:0", control=control) as server,
        splitarrow.connect(server.control_uri or "") as client,
        client.read("data", transport=transport, memory=allocator) as stream,
    ):
        batches = list(stream)
    check(batches, allocator)


def check(batches: list[pa.RecordBatch], allocator: RecordingAllocator) -> None:
    assert pa.Table.from_batches(batches) == TABLE
    for batch in batches:
        data = batch.column(0).buffers()[1]
        assert data is not None
        assert allocator.contains(data)
