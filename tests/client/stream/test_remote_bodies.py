"""Bodies of offsets: which are decoded in place, and which are copied or refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from helpers.regions import MemoryRegion
from helpers.streams import ipc_stream, split_messages
from splitarrow.client.stream.remote_bodies import EncapsulatedBody, RemoteBodies
from splitarrow.errors import DatasetError, LimitError, ProtocolError
from splitarrow.formats.arrow.message import encapsulate, read_batch_layout
from splitarrow.protocol.limits import DEFAULT_LIMITS, Limits
from splitarrow.protocol.memory import ReceivedBody
from splitarrow.protocol.messages import Message
from splitarrow.protocol.regions import RemoteBody
from splitarrow.protocol.tags import BodyType

BATCH = pa.record_batch(
    {"n": [1, 2, 3], "e": pa.array([None, 4, 5], pa.int16()), "s": ["a", "bc", ""]}
)
_, _MESSAGE = split_messages(ipc_stream([BATCH], BATCH.schema))
METADATA = bytes(_MESSAGE.metadata)
BODY = b"".join(bytes(part) for part in _MESSAGE.body or ())
LAYOUT = read_batch_layout(METADATA).buffers
Spans = list[tuple[int, int]]


class Returns:
    """The leases that were granted."""

    def __init__(self) -> None:
        self.granted: list[tuple[int, ...]] = []

    def lease(self, offsets: tuple[int, ...]) -> Any:
        self.granted.append(offsets)
        return object()


def packed_at(begin: int) -> Spans:
    """Return the spans of the body's buffers if it begins at an offset of the region."""
    return [(begin + offset, length) if length else (0, 0) for offset, length in LAYOUT]


def remote(region: MemoryRegion, spans: Sequence[tuple[int, int]], **header: int) -> Message:
    flat = [number for span in spans for number in span]
    total = header.get("total", sum(flat[1::2]))
    count = header.get("count", len(spans))
    payload = struct.pack(f"<{2 + len(flat)}Q", total, count, *flat)
    body = RemoteBody(ReceivedBody.copy(payload, 0), region)
    return Message(1, METADATA, body, BodyType.OFFSETS)


def decode(message: Message, schema: pa.Schema = BATCH.schema) -> pa.RecordBatch:
    """Return the record batch of a resolved message."""
    assert message.body is not None
    assert message.body_type is BodyType.PACKED
    head = encapsulate(message.metadata)
    body = message.body.payload()
    data = b"".join([head, memoryview(body)])
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


@pytest.fixture
def returns() -> Returns:
    return Returns()


@pytest.fixture
def bodies(returns: Returns) -> RemoteBodies:
    leases: Any = returns
    return RemoteBodies(leases, DEFAULT_LIMITS)


def test_packed_bodies_are_decoded_in_place(bodies: RemoteBodies, returns: Returns) -> None:
    region = MemoryRegion(bytes(64) + BODY + bytes(8) + BODY)
    filled = [offset for offset, length in LAYOUT if length]
    lengths = sum(length for _, length in LAYOUT)
    for number, begin in enumerate((64, 72 + len(BODY), 64), 1):
        message = bodies.resolve(remote(region, packed_at(begin)))
        assert decode(message) == BATCH
        assert message.body is not None
        assert memoryview(message.body.payload()).nbytes == len(BODY)
        assert returns.granted[-1] == tuple(begin + offset for offset in filled)
        assert bodies.leased_bytes == number * lengths


def test_a_body_behind_its_metadata_needs_no_copy_of_it(bodies: RemoteBodies) -> None:
    head = encapsulate(METADATA)
    region = MemoryRegion(head + BODY)
    spans = packed_at(len(head))
    first, second = (bodies.resolve(remote(region, spans)) for _ in range(2))
    assert decode(first) == decode(second) == BATCH
    assert isinstance(second.body, EncapsulatedBody)
    assert second.body.start == len(head)


def test_a_body_that_is_arranged_in_another_way_is_decoded_too(bodies: RemoteBodies) -> None:
    region = MemoryRegion(bytes(64) + BODY)
    assert decode(bodies.resolve(remote(region, packed_at(64)))) == BATCH
    # The last buffer comes first: at an aligned offset, and at one that requires a copy.
    (offset, length) = next(span for span in reversed(LAYOUT) if span[1])
    tail = BODY[offset : offset + length]
    for shift in (8, 9):
        moved = MemoryRegion(bytes(shift) + tail.ljust(56, b"\0") + BODY)
        begin = shift + 56
        spans = packed_at(begin)
        spans[spans.index((begin + offset, length))] = (shift, length)
        assert decode(bodies.resolve(remote(moved, spans))) == BATCH


def test_a_copy_is_not_leased(bodies: RemoteBodies, returns: Returns) -> None:
    region = MemoryRegion(bytes(3) + BODY)
    message = bodies.resolve(remote(region, packed_at(3)))
    assert decode(message) == BATCH
    assert len(returns.granted) == 1


def test_without_leases_nothing_is_counted() -> None:
    bodies = RemoteBodies(None, DEFAULT_LIMITS)
    region = MemoryRegion(BODY)
    for _ in range(2):
        assert decode(bodies.resolve(remote(region, packed_at(0)))) == BATCH
    assert bodies.leased_bytes == 0


FIRST = next(index for index, (_, length) in enumerate(LAYOUT) if length)
EMPTY = next(index for index, (_, length) in enumerate(LAYOUT) if not length)


def altered(index: int, offset: int = 0, length: int = 0) -> Spans:
    """Return the spans at offset 64, of which one is changed."""
    spans = packed_at(64)
    spans[index] = (spans[index][0] + offset, spans[index][1] + length)
    return spans


@pytest.mark.parametrize(
    ("spans", "header"),
    [
        (altered(FIRST, length=1), {}),
        (altered(FIRST, offset=1 << 40), {}),
        (packed_at(64), {"total": 1}),
        (packed_at(64), {"count": 1}),
        (packed_at(64)[1:], {}),
        (packed_at(72), {}),
        (packed_at(1 << 62), {}),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_offsets_that_do_not_fit_are_refused(
    bodies: RemoteBodies, returns: Returns, spans: Spans, header: dict[str, int], is_known: bool
) -> None:
    """Those of a layout that was seen before are compared, and the others parsed."""
    region = MemoryRegion(bytes(64) + BODY)
    if is_known:
        bodies.resolve(remote(region, packed_at(64)))
    granted = len(returns.granted)
    with pytest.raises(ProtocolError):
        bodies.resolve(remote(region, spans, **header))
    assert len(returns.granted) == granted


def test_an_empty_buffer_may_have_any_offset(bodies: RemoteBodies) -> None:
    region = MemoryRegion(bytes(64) + BODY)
    for spans in (packed_at(64), altered(EMPTY, offset=8)):
        assert decode(bodies.resolve(remote(region, spans))) == BATCH


def test_a_body_may_end_where_its_region_ends(bodies: RemoteBodies) -> None:
    region = MemoryRegion(bytes(8) + BODY)
    for _ in range(2):
        assert decode(bodies.resolve(remote(region, packed_at(8)))) == BATCH


def test_a_changed_region_is_not_read(bodies: RemoteBodies) -> None:
    region = MemoryRegion(BODY)
    bodies.resolve(remote(region, packed_at(0)))
    region.has_changed = True
    with pytest.raises(DatasetError, match="changed"):
        bodies.resolve(remote(region, packed_at(0)))


def test_a_body_without_a_region_is_refused(bodies: RemoteBodies) -> None:
    message = Message(5, METADATA, ReceivedBody.copy(b"", 0), BodyType.OFFSETS)
    with pytest.raises(ProtocolError, match="a body of offsets has no region") as caught:
        bodies.resolve(message)
    assert caught.value.sequence == 5


def test_the_number_of_buffers_is_bounded() -> None:
    bodies = RemoteBodies(None, Limits(buffers=len(LAYOUT) - 1))
    with pytest.raises((LimitError, ProtocolError), match="buffers; the limit is"):
        bodies.resolve(remote(MemoryRegion(BODY), packed_at(0)))
    RemoteBodies(None, Limits(buffers=len(LAYOUT))).resolve(
        remote(MemoryRegion(BODY), packed_at(0))
    )


def test_a_batch_without_values_has_no_body() -> None:
    empty = BATCH.slice(0, 0).select(["n", "e"])
    _, message = split_messages(ipc_stream([empty], empty.schema))
    layout = read_batch_layout(bytes(message.metadata)).buffers
    payload = struct.pack(f"<{2 + 2 * len(layout)}Q", 0, len(layout), *[0] * 2 * len(layout))
    bodies = RemoteBodies(None, DEFAULT_LIMITS)
    region = MemoryRegion(b"")
    for _ in range(2):
        body = RemoteBody(ReceivedBody.copy(payload, 0), region)
        found = bodies.resolve(Message(1, bytes(message.metadata), body, BodyType.OFFSETS))
        assert decode(found, empty.schema) == empty


def test_a_copy_is_padded_with_zeros() -> None:
    class Dirty:
        """Supplies memory that held something else before."""

        is_host = True

        def allocate(self, nbytes: int) -> pa.Buffer:
            memory = pa.allocate_buffer(nbytes)
            memoryview(memory).cast("B")[:] = b"\xff" * nbytes
            return memory

    bodies = RemoteBodies(None, DEFAULT_LIMITS, Dirty())
    region = MemoryRegion(bytes(3) + BODY)
    message = bodies.resolve(remote(region, packed_at(3)))
    assert decode(message) == BATCH
    assert message.body is not None
    found = memoryview(message.body.payload()).cast("B")
    expected = bytearray(len(found))
    layout = read_batch_layout(message.metadata).buffers
    for (begin, length), (source, _) in zip(layout, LAYOUT, strict=True):
        expected[begin : begin + length] = BODY[source : source + length]
    assert found == expected
