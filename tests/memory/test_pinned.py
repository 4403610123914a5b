"""Page-locked memory as the place where bodies land, on the heap of a host without CUDA."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pyarrow as pa
import pytest

import splitarrow
from splitarrow.errors import LimitError
from splitarrow.memory import PinnedMemory, pinned
from splitarrow.protocol.memory import ARENA_BYTES

TABLE = pa.table({"n": pa.array(range(100_000), pa.int64()), "s": ["a", "b"] * 50_000})
LISTENERS = ["tcp://127.0.0.1:0", "ucx://127.0.0.1:0"]
_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)


def allocate(nbytes: int) -> int:
    return _libc.aligned_alloc(64, nbytes)


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = SimpleNamespace(
        allocate=allocate, free=_libc.free, check=lambda: None, synchronize=lambda: None
    )
    monkeypatch.setattr(pinned, "PinnedHeap", lambda: heap)


@pytest.mark.parametrize("listener", LISTENERS)
def test_batches_are_received_into_it(listener: str) -> None:
    memory = PinnedMemory("16MiB")
    with (
        splitarrow.serve({"data": TABLE}, listen=listener) as server,
        splitarrow.open(server.uri("data"), batch_rows=10_000, memory=memory) as stream,
    ):
        batches = list(stream)
        assert pa.Table.from_batches(batches) == TABLE
        assert memory.used_bytes >= TABLE.nbytes
    del batches
    assert memory.used_bytes <= ARENA_BYTES  # the connection may keep one for small bodies


def test_a_buffer_can_be_written_and_keeps_its_block() -> None:
    memory = PinnedMemory()
    buffer = memory.allocate(100)
    assert (buffer.size, buffer.is_mutable, buffer.address % 64) == (100, True, 0)
    part = buffer.slice(10, 20)
    del buffer
    assert memory.used_bytes
    del part
    assert memory.used_bytes == 0


def test_a_spent_budget_is_named() -> None:
    memory = PinnedMemory("512KiB")
    with (
        splitarrow.serve({"data": TABLE}, listen=LISTENERS[0]) as server,
        splitarrow.open(server.uri("data"), batch_rows=10_000, memory=memory) as stream,
        pytest.raises(LimitError, match="the budget of 512KiB of page-locked memory is spent"),
    ):
        assert list(stream)
