"""The memory of received bodies."""

from __future__ import annotations

import pyarrow as pa
import pytest

from splitarrow.errors import LimitError, UsageError
from splitarrow.protocol.memory import (
    ALIGNMENT,
    ARENA_BYTES,
    DEFAULT_ALLOCATOR,
    SMALL_BODY_BYTES,
    BodyPool,
    DeviceSpan,
    ReceivedBody,
)

LARGE = 1 << 20


class RecordingAllocator:
    """Allocates host memory, and remembers the sizes and the buffers."""

    def __init__(self, *, is_host: bool = True) -> None:
        self.is_host = is_host
        self.sizes: list[int] = []
        self.buffers: list[pa.Buffer] = []

    def allocate(self, nbytes: int) -> pa.Buffer:
        self.sizes.append(nbytes)
        self.buffers.append(pa.allocate_buffer(nbytes))
        return self.buffers[-1]


class FixedAllocator:
    """Returns one buffer, or raises MemoryError without one."""

    is_host = True

    def __init__(self, buffer: pa.Buffer | None, reason: str = "") -> None:
        self.buffer = buffer
        self.reason = reason

    def allocate(self, nbytes: int) -> pa.Buffer:
        if self.buffer is None:
            raise MemoryError(self.reason)
        return self.buffer


def test_bodies_land_in_the_memory_of_the_allocator() -> None:
    allocator = RecordingAllocator()
    body = BodyPool(allocator).allocate(LARGE, headroom=100)
    assert allocator.sizes == [128 + LARGE]
    assert body.buffer.address == allocator.buffers[0].address
    assert body.start == 128
    assert body.payload().address % ALIGNMENT == 0
    body.view[body.start :] = b"x" * LARGE
    assert body.payload().to_pybytes() == b"x" * LARGE


def test_small_bodies_share_an_allocation_of_host_memory() -> None:
    allocator = RecordingAllocator()
    pool = BodyPool(allocator)
    bodies = [pool.allocate(100, headroom=0) for _ in range(10)]
    assert allocator.sizes == [ARENA_BYTES]
    addresses = [body.buffer.address for body in bodies]
    assert addresses == [addresses[0] + 128 * index for index in range(10)]


def test_a_pool_that_is_not_shared_allocates_no_more_than_each_body() -> None:
    allocator = RecordingAllocator()
    pool = BodyPool(allocator, shared=False)
    assert [pool.allocate(100, headroom).start for headroom in (0, 65)] == [0, 128]
    assert allocator.sizes == [100, 228]


def test_bodies_share_an_allocation_up_to_the_limit_and_never_overlap() -> None:
    allocator = RecordingAllocator()
    pool = BodyPool(allocator)
    shared = ARENA_BYTES // SMALL_BODY_BYTES
    bodies = [pool.allocate(SMALL_BODY_BYTES - 64, headroom=64) for _ in range(shared + 1)]
    assert allocator.sizes == [ARENA_BYTES] * 2
    starts = [body.buffer.address for body in bodies]
    first = allocator.buffers[0].address
    assert starts[:shared] == [first + SMALL_BODY_BYTES * n for n in range(shared)]
    assert starts[shared] == allocator.buffers[1].address
    for number, body in enumerate(bodies):
        body.view[:] = bytes([number]) * len(body.view)
    assert [set(body.view) for body in bodies] == [{number} for number in range(shared + 1)]
    pool.allocate(SMALL_BODY_BYTES - 63, headroom=64)
    assert allocator.sizes[2:] == [SMALL_BODY_BYTES + 1]


@pytest.mark.parametrize(
    ("nbytes", "headroom", "start"),
    [
        (LARGE, 64 << 10, 64 << 10),
        (64 << 10, 64 << 10, 64 << 10),
        (100, 64 << 10, 64 << 10),
        (100, (64 << 10) + 64, 0),
        (128 << 10, (64 << 10) + 64, (64 << 10) + 64),
    ],
)
def test_a_large_headroom_is_reserved_for_a_larger_body_only(
    nbytes: int, headroom: int, start: int
) -> None:
    body = BodyPool().allocate(nbytes, headroom)
    assert (body.start, body.buffer.size) == (start, start + nbytes)


@pytest.mark.parametrize("nbytes", [0, 100, SMALL_BODY_BYTES, LARGE])
def test_bodies_outside_host_memory_get_no_headroom_and_share_nothing(nbytes: int) -> None:
    allocator = RecordingAllocator(is_host=False)
    body = BodyPool(allocator).allocate(nbytes, headroom=100)
    assert allocator.sizes == [nbytes]
    assert (body.start, body.nbytes, len(body.view)) == (0, nbytes, 0)


UNSUITABLE = {
    "too small": pa.allocate_buffer(LARGE - 1),
    "too large": pa.allocate_buffer(LARGE + 1),
    "immutable": pa.py_buffer(bytes(LARGE)),
    "misaligned": pa.allocate_buffer(LARGE + 8).slice(8),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_an_unsuitable_buffer_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="needs a mutable buffer of 1048576 bytes, aligned to 64"):
        BodyPool(FixedAllocator(UNSUITABLE[name])).allocate(LARGE, headroom=0)


@pytest.mark.parametrize("nbytes", [100, LARGE])
def test_a_lack_of_memory_fails_the_stream(nbytes: int) -> None:
    with pytest.raises(LimitError, match=r"cannot allocate \d+ bytes for a body") as caught:
        BodyPool(FixedAllocator(None)).allocate(nbytes, headroom=0, tag=7)
    assert caught.value.tag == 7


def test_the_default_allocator_returns_aligned_host_memory() -> None:
    buffer = DEFAULT_ALLOCATOR.allocate(100)
    assert (buffer.size, buffer.is_mutable, buffer.address % ALIGNMENT) == (100, True, 0)
    assert DEFAULT_ALLOCATOR.is_host


@pytest.mark.parametrize(("reason", "end"), [("", "for a body"), ("it is full", ": it is full")])
def test_the_reason_of_the_allocator_is_reported(reason: str, end: str) -> None:
    pool = BodyPool(FixedAllocator(None, reason))
    with pytest.raises(LimitError) as caught:
        pool.allocate_buffer(7, tag=3)
    assert caught.value.message.startswith("cannot allocate 7 bytes for a body")
    assert caught.value.message.endswith(end)
    assert caught.value.tag == 3


def test_small_bodies_take_16_kib_at_most_of_128_kib() -> None:
    """Whoever keeps one small body keeps 128 KiB, and no more."""
    assert (SMALL_BODY_BYTES, ARENA_BYTES) == (16 << 10, 128 << 10)
    assert ALIGNMENT == 64


def test_the_next_body_begins_behind_the_padding_of_the_last() -> None:
    pool = BodyPool()
    bodies = [pool.allocate(nbytes, headroom) for nbytes, headroom in [(1, 0), (64, 65), (9, 0)]]
    first = bodies[0].buffer.address
    assert [body.buffer.address - first for body in bodies] == [0, 64, 64 + 128 + 64]


def test_the_beginning_of_a_span_of_device_memory_has_the_same_owner() -> None:
    owner = object()
    part = DeviceSpan(4096, 100, 2, owner).slice(60)
    assert (part.address, part.nbytes, part.type_code) == (4096, 60, 2)
    assert part.owner is owner


def test_a_copy_has_no_headroom_by_default() -> None:
    body = ReceivedBody.copy(b"abc")
    assert (body.start, body.nbytes, body.buffer.size) == (0, 3, 3)
