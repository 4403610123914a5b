"""The steps of reading remote bodies: plans, memory and requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from helpers.ucx_requests import Library
from splitarrow.errors import LimitError, ProtocolError
from splitarrow.protocol.limits import Limits
from splitarrow.protocol.memory import BodyPool, ReceivedBody
from splitarrow.protocol.payloads import pack_spans, parse_spans
from splitarrow.transport.ucx import (
    remote_reads,
)
from splitarrow.transport.ucx.ffi import IN_PROGRESS, OK, StatusError, ffi

GAP = 64 << 10


@pytest.mark.parametrize(
    ("spans", "pieces", "offsets", "nbytes"),
    [
        ([], [], [], 0),
        ([(0, 0), (9, 0)], [], [0, 0], 0),
        ([(128, 1)], [(128, 1)], [0], 64),
        ([(128, 64), (192, 65)], [(128, 129)], [0, 64], 192),
        ([(192, 65), (128, 64)], [(128, 129)], [64, 0], 192),
        ([(0, 64), (GAP + 128, 64)], [(0, GAP + 192)], [0, GAP + 128], GAP + 192),
        ([(0, 64), (GAP + 193, 64)], [(0, 64), (GAP + 193, 64)], [0, 64], 128),
        (
            [(0, 65), (0, 0), (1 << 20, 1), (0, 65)],
            [(0, 65), (1 << 20, 1)],
            [0, 0, 128, 0],
            192,
        ),
    ],
)
def test_buffers_that_are_close_are_read_in_one_piece(
    spans: list[tuple[int, int]], pieces: list[tuple[int, int]], offsets: list[int], nbytes: int
) -> None:
    plan = remote_reads._plan_read(spans)
    assert (plan.pieces, plan.nbytes) == (pieces, nbytes)
    assert plan.offsets == offsets


@pytest.mark.parametrize(
    ("behind", "start", "moved"),
    [(0, 128, 0), (1, 128, 64), (63, 128, 64), (64, 128, 0), (4095, 128, 0), (1, 0, 0)],
)
def test_a_target_is_not_just_behind_its_source(behind: int, start: int, moved: int) -> None:
    buffer = pa.allocate_buffer(start + 256)
    view = memoryview(buffer).cast("B")
    view[:] = b"x" * len(view)
    memory = ReceivedBody(buffer, view, start, 256)
    pieces = [(192, 65), (7 << 20, 128)]
    address = buffer.address + start - 192 - behind + (5 << 12)
    assert remote_reads._prepare(memory, pieces, address) is memory
    assert memory.start == start - moved
    expected = b"x" * (memory.start + 65) + bytes(63) + b"x" * (128 + moved)
    assert bytes(view) == expected
    assert remote_reads._prepare(memory, [], 0).start == start - moved


def test_a_local_region_keeps_to_its_memory() -> None:
    body = ReceivedBody.copy(bytes(range(100)), headroom=64)
    region = remote_reads.LocalRegion(body)
    region.check()
    assert region.size == 100
    assert region.buffer(0, 100, None).to_pybytes() == bytes(range(100))
    assert region.buffer(99, 1, None).to_pybytes() == b"c"
    assert region.buffer(100, 0, None).size == 0
    for offset, nbytes in [(-1, 1), (0, -1), (1, 100), (101, 0)]:
        with pytest.raises(ProtocolError, match="outside a region of 100 bytes"):
            region.buffer(offset, nbytes, None)
    prefix = bytes(64)
    found = region.prefixed_buffer(prefix, 0, 100, None)
    assert found is not None
    assert found.to_pybytes() == prefix + bytes(range(100))
    assert found.address == body.buffer.address
    assert region.prefixed_buffer(prefix + b"x", 0, 100, None) is None
    assert region.prefixed_buffer(prefix, 0, 101, None) is None
    assert region.prefixed_buffer(prefix, 1, 99, None) is None
    short = region.prefixed_buffer(b"ab", 0, 3, None)
    assert short is not None
    assert short.to_pybytes() == b"ab\0\1\2"


def read_of(spans: list[tuple[int, int]], limits: Limits | None = None) -> remote_reads.RemoteRead:
    region: Any = SimpleNamespace(address=1 << 32, size=1 << 30, key="key")
    payload = memoryview(pack_spans(spans))
    return remote_reads.RemoteRead(7, payload, region, limits or Limits(), BodyPool(), 100)


def test_a_read_is_complete_once_each_request_is(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(ffi.NULL, "a", "b")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(64, 65), (1 << 20, 10), (0, 0), (1 << 25, 20)])
    read.start("endpoint", "param")
    assert (read.nbytes, read.offsets) == (95, [64, 1 << 20, 1 << 25])
    sources = [(call[2], call[3]) for call in library.calls]
    assert sources == [
        (65, (1 << 32) + 64),
        (10, (1 << 32) + (1 << 20)),
        (20, (1 << 32) + (1 << 25)),
    ]
    targets = [int(ffi.cast("uintptr_t", call[1])) for call in library.calls]
    assert [target - targets[0] for target in targets] == [0, 128, 192]
    library.statuses = {"a": IN_PROGRESS, "b": IN_PROGRESS}
    assert read.status() == IN_PROGRESS
    library.statuses["b"] = OK
    assert read.status() == IN_PROGRESS
    assert library.freed == ["b"]
    library.statuses["a"] = OK
    assert read.status() == read.status() == OK
    body = read.body()
    assert parse_spans(bytes(body), region_size=body.region.size, expected=4) == [
        *((0, 65), (128, 10), (0, 0), (192, 20)),
    ]
    assert body.region.size == 256


def test_a_read_fails_with_its_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library("a", "b", "c")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(64, 65), (1 << 20, 10), (1 << 25, 20)])
    read.start("endpoint", "param")
    library.statuses = {"a": OK, "b": -5, "c": -3}
    assert read.status() == -3
    assert library.freed == ["c", "b", "a"]
    library.freed.clear()
    read.abandon()
    assert library.freed == []
    library.results = ["x"]
    monkeypatch.setattr(remote_reads, "get_status", lambda _: -3)
    with pytest.raises(StatusError):
        read_of([(0, 1)]).start("endpoint", "param")


def test_an_abandoned_read_frees_its_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library("a", "b")
    monkeypatch.setattr(remote_reads, "ucp", library)
    monkeypatch.setattr(remote_reads, "get_status", lambda _: IN_PROGRESS)
    read = read_of([(0, 65), (1 << 20, 10)])
    read.start("endpoint", "param")
    assert read.abandon() is read.abandon()
    assert library.freed == ["a", "b"]


def test_the_size_of_a_read_is_limited() -> None:
    spans = [(0, 64), (64, 64)]
    assert read_of(spans, Limits(buffers=2, body_bytes=128)).nbytes == 128
    with pytest.raises(LimitError, match="a body of 2 buffers; the limit is 1"):
        read_of(spans, Limits(buffers=1))
    with pytest.raises(LimitError, match="a body of 128 bytes; the limit is 127"):
        read_of(spans, Limits(body_bytes=127))
    read = remote_reads.RemoteRead
    with pytest.raises(ProtocolError):
        read(7, memoryview(b"short"), SimpleNamespace(size=1), Limits(), BodyPool(), 0)  # pyright: ignore[reportArgumentType]
